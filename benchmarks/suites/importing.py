"""The import of a SET by the command: its rate and its memory.

The command runs in a separate process, and its rate is compared with the server's limit. Each member takes one
`BITFIELD` for the copy and one for the check. The limit is the number of such commands that the server answers in a
second to a client that has packed them before, and only sends and counts replies. It is measured before and after
each import, in the same run. Memory is the peak resident size of the process, Scrapy included.
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
    """One import: its members, its JSON output, its peak memory, and the limits before and after."""

    members: int
    said: dict[str, Any]
    peak_bytes: int
    limits: Sequence[float]

    @property
    def bitfields_a_second(self) -> float:
        """The BITFIELDs per second of the import."""
        return 2 * float(self.said["members_a_second"])


def run(_: Asked) -> list[Plot]:
    """Import a small and a large SET on each kind of server."""
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
    """Run the command; return its JSON output and its peak resident bytes."""
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
    """Return the peak resident bytes of a process; those of wait4 include its parent's."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def _limit(server: Server) -> float:
    """Return the BITFIELDs per second that the server answers on one connection."""
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
    """Send a batch and read its replies: arrays, and only they have a star."""
    connection.sendall(packed)
    replies = 0
    while replies < _BATCH:
        replies += connection.recv(1 << 16).count(b"*")
