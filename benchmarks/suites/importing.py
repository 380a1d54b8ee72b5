"""The import of a SET, by the command in a process of its own: its rate beside the server's limit, and its memory.

Each member is one `BITFIELD` when it is copied, and one when it is checked. The limit is how many of such the server
answers in a second where the client has packed them before, and does nothing but send and count replies. It is measured
before and after each import, in the same run. Memory is the most that the process had resident, Scrapy included.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

import redis

from benchmarks.harness import report
from benchmarks.harness.digests import fingerprints
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from devtools.crawl_process import ROOT
from devtools.servers import Server, available, running
from scrapy_bloom.filter.layer import NO_IDENTITY
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.storage.bits import CheckBits

SIZES = (100_000, 1_000_000)
MOST_MEGABYTES = 100
_BATCH = 1000
_BATCHES = 50
_POLL_SECONDS = 0.1
_KEY = "bench:importing"


@dataclass(frozen=True)
class Import:
    """One import: members, its seconds, what the command said, the peak of its memory, and the limits around it."""

    members: int
    said: dict[str, Any]
    peak_bytes: int
    limits: Sequence[float]

    @property
    def bitfields_a_second(self) -> float:
        """The BITFIELDs that it had the server answer in a second."""
        return 2 * float(self.said["members_a_second"])


def run(_: Asked) -> list[Plot]:
    """Import a small SET and a large one into each kind of server."""
    for kind in available():
        with running(kind) as server, server.client() as client:
            found = [_import(server, client, members) for members in SIZES]
        rows = [
            (
                f"{each.members:,}",
                f"{each.bitfields_a_second / mean(each.limits):.2f}",
                f"{each.said['members_a_second']:,.0f}",
                f"{each.bitfields_a_second:,.0f}",
                f"{mean(each.limits):,.0f}",
                f"{each.said['seconds']:.1f}",
                f"{each.peak_bytes / 1e6:.0f}",
            )
            for each in found
        ]
        columns = ("members", "of the limit", "members/s", "BITFIELD/s", "limit/s", "seconds", "peak MB")
        report.table(f"{server.name}; both passes, error rate 1e-6.", columns, rows)
        report.target("peak memory in MB,", max(each.peak_bytes for each in found) / 1e6, MOST_MEGABYTES)
    return []


def _import(server: Server, client: redis.Redis, members: int) -> Import:
    endless = fingerprints()
    for _ in range(0, members, _BATCH):
        client.sadd(_KEY, *islice(endless, _BATCH))
    report.say(f"  {members:,} members")
    before = _limit(server)
    said, peak = _command(server)
    found = Import(members, said, peak, (before, _limit(server)))
    client.unlink(*client.scan_iter(f"{_KEY}*", count=_BATCH))
    return found


def _command(server: Server) -> tuple[dict[str, Any], int]:
    """Run the command; gives what it printed, and the most bytes that it had resident."""
    arguments = ["import", "--key", _KEY, "--redis-url", server.url, "--wait", "0", "--json"]
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "scrapy", "bloom", *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=out,
        )
        peak = 0
        while process.poll() is None:
            peak = max(peak, _peak_bytes(process.pid))
            time.sleep(_POLL_SECONDS)
        out.seek(0)
        return json.load(out), peak


def _peak_bytes(process: int) -> int:
    """The most that a process had resident until now; what wait4 tells counts what its parent had, too."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def _limit(server: Server) -> float:
    """BITFIELDs a second that the server answers on one connection."""
    layer = FilterParameters().first_layer(f"{_KEY}:limit", NO_IDENTITY, 0, 0.0)
    items = [each.encode() for each in islice(fingerprints(), _BATCH)]
    packed = b"".join(CheckBits(*layer.locate(item), mark=True).command().pack() for item in items)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        _send(connection, packed)
        began = time.perf_counter()
        for _ in range(_BATCHES):
            _send(connection, packed)
        seconds = time.perf_counter() - began
    with server.client() as client:
        client.unlink(*layer.shard_keys)
    return _BATCH * _BATCHES / seconds


def _send(connection: socket.socket, packed: bytes) -> None:
    """Send a batch, and wait until each of its commands has a reply: an array, which alone begins with a star."""
    connection.sendall(packed)
    replies = 0
    while replies < _BATCH:
        replies += connection.recv(1 << 16).count(b"*")
