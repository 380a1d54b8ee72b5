"""What a link costs the server of a crawl, and how long the import of a SET takes.

BloomScheduler crawls without downloads: it enqueues the ten links of a page, and takes as many requests. A new link is
checked, queued, leased and acknowledged. The duplicates are links that an earlier process enqueued, so the cache of
this one does not know them. CPU is that of INFO.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import redis
from scrapy import Request

from benchmarks.harness import report
from benchmarks.harness.plots import Plot
from benchmarks.harness.urls import fingerprints, urls
from benchmarks.subjects.queued import scheduling
from devtools.round_trips import counting
from devtools.servers import Server, available, cpu_seconds, running

LINKS, A_PAGE = 20_000, 10
MEMBERS, BATCH = 1_000_000, 10_000


def run(_: Sequence[Path]) -> list[Plot]:
    """Measure on each available server."""
    for kind in available():
        with running(kind) as server, server.client() as client:
            rows = [("new", *_links(server, client)), ("duplicate", *_links(server, client))]
            titles = ("link", "us of the server", "links a second of its core", "round trips a page")
            report.table(f"{LINKS:,} links of each kind. {server.name}.", titles, rows)
            took = f"{_import(server, client):.0f} s"
            report.line(f"\nImport of a SET of {MEMBERS:,} fingerprints: {took}. {server.name}.")
    return []


def _links(server: Server, client: redis.Redis) -> tuple[str, str, str]:
    """Enqueue the links of all pages; return the costs."""
    with scheduling(server.url, SCHEDULER_PERSIST=True, BLOOMFILTER_CAPACITY=LINKS) as scheduler, counting() as sent:
        used, trips = cpu_seconds(client), sent.trips
        for start in range(0, LINKS, A_PAGE):
            for url in urls(start, A_PAGE):
                scheduler.enqueue_request(Request(url))
            for _ in range(A_PAGE):
                scheduler.next_request()
        seconds = (cpu_seconds(client) - used) / LINKS
        a_page = (sent.trips - trips) * A_PAGE / LINKS
    return f"{seconds * 1e6:.0f}", f"{1 / seconds:,.0f}", f"{a_page:.2f}"


def _import(server: Server, client: redis.Redis) -> float:
    """Return the seconds of `scrapy bloom import`."""
    members = islice(fingerprints(), MEMBERS)
    while batch := [*islice(members, BATCH)]:
        client.sadd("bench:dupefilter", *batch)
    command = f"-m scrapy bloom import --key bench:dupefilter --redis-url {server.url}"
    started = time.monotonic()
    subprocess.run([sys.executable, *command.split()], check=True, capture_output=True)
    return time.monotonic() - started
