"""The import of a SET by the command: its rate and its memory.

The command runs in a separate process. Memory is the peak resident size of the process, Scrapy included.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import redis

from benchmarks.harness import report
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from benchmarks.harness.urls import fingerprints
from devtools.crawl_process import ROOT
from devtools.servers import Server, available, cpu_seconds, running

SIZES = (100_000, 1_000_000)
MOST_MEGABYTES = 100
_BATCH = 1000
_POLL_SECONDS = 0.1
_KEY = "bench:importing"


def run(_: Asked) -> list[Plot]:
    """Import a small and a large SET on each kind of server."""
    for kind in available():
        rows, most = [], 0.0
        with running(kind) as server, server.client() as client:
            for members in SIZES:
                seconds, server_cpu, megabytes = _import(server, client, members)
                most = max(most, megabytes)
                micros = server_cpu / members * 1e6
                row = (
                    f"{members:,}",
                    f"{members / seconds:,.0f}",
                    f"{seconds:.1f}",
                    f"{micros:.1f}",
                    f"{megabytes:.0f}",
                )
                rows.append(row)
            columns = ("members", "members/s", "seconds", "server CPU, us a member", "peak MB")
            report.table(f"{server.name}; error rate 1e-6.", columns, rows)
        report.target("peak memory in MB,", most, MOST_MEGABYTES)
    return []


def _import(server: Server, client: redis.Redis, members: int) -> tuple[float, float, float]:
    """Return the seconds, the server's CPU seconds and the peak megabytes of an import."""
    endless = fingerprints()
    for _ in range(0, members, _BATCH):
        client.sadd(_KEY, *islice(endless, _BATCH))
    report.say(f"  {members:,} members")
    used = cpu_seconds(client)
    said, peak = _command(server)
    used = cpu_seconds(client) - used
    client.unlink(*client.scan_iter(f"*{_KEY}*", count=_BATCH))
    return float(said["seconds"]), used, peak / 1e6


def _command(server: Server) -> tuple[dict[str, Any], int]:
    """Run the command; return its JSON output and its peak resident bytes."""
    arguments = ["import", "--key", _KEY, "--redis-url", server.url, "--json"]
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
