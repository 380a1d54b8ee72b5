"""The import of a SET by the command: its rate and its memory.

The command runs in a separate process. Memory is the peak resident size of that process, Scrapy included.
"""

import json
import os
import subprocess
import sys
from itertools import islice
from typing import Any

from benchmarks.harness import report
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from benchmarks.harness.urls import fingerprints
from devtools.crawl_process import ROOT
from devtools.servers import Server, available, cpu_seconds, running

SIZES = (100_000, 1_000_000)
MOST_MEGABYTES = 100
_BATCH = 1000
_KEY = "bench:importing"
# The peak resident size that the kernel reports to a parent may be the parent's own.
_COMMAND = """
import atexit, sys
from scrapy.cmdline import execute
atexit.register(lambda: sys.stderr.write(open("/proc/self/status").read()))
execute(["scrapy", "bloom", *sys.argv[1:]])
"""


def run(_: Asked) -> list[Plot]:
    """Import a small and a large SET."""
    rows, most = [], 0.0
    with running(available()[0]) as server, server.client() as client:
        for members in SIZES:
            endless = fingerprints()
            for batch in range(0, members, _BATCH):
                client.sadd(_KEY, *islice(endless, min(_BATCH, members - batch)))
            report.say(f"  {members:,} members")
            used = cpu_seconds(client)
            said, megabytes = _import(server)
            micros = (cpu_seconds(client) - used) / members * 1e6
            client.unlink(*client.scan_iter(f"*{_KEY}*", count=_BATCH))
            seconds, most = float(said["seconds"]), max(most, megabytes)
            rate = f"{members / seconds:,.0f}"
            rows.append((f"{members:,}", rate, f"{seconds:.1f}", f"{micros:.1f}", f"{megabytes:.0f}"))
    columns = ("members", "members/s", "seconds", "server CPU, us a member", "peak MB")
    report.table(f"{server.name}; error rate 1e-6.", columns, rows)
    report.target("peak memory in MB,", most, MOST_MEGABYTES)
    return []


def _import(server: Server) -> tuple[dict[str, Any], float]:
    """Run the command; return its JSON output and its peak resident megabytes."""
    arguments = ["import", "--key", _KEY, "--redis-url", server.url, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", _COMMAND, *arguments], env=environment, check=True, capture_output=True, text=True
    )
    kilobytes = next(line.split()[1] for line in ended.stderr.splitlines() if line.startswith("VmHWM:"))
    return json.loads(ended.stdout), int(kilobytes) / 1e3
