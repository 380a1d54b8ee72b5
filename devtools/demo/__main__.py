"""The demo: some workers crawl a site with a common queue and filter, and every page is accounted for.

    python -m devtools.demo
    python -m devtools.demo --pages 5000 --links 100 --workers 4
    python -m devtools.demo --cluster
    python -m devtools.demo --start-url http://localhost:8000/ --redis-url redis://localhost:6379

Exit codes: 0 if every page was fetched exactly once, 1 if one was missed or fetched twice or a worker or
Redis failed, 2 for invalid options, 130 if it was interrupted.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from redis import Redis, RedisError

from devtools import site
from devtools.clusters import running_cluster
from devtools.demo import crawl
from devtools.demo.table import Report, measure
from devtools.demo.tally import Tally
from devtools.sentinels import watched_pair
from devtools.servers import running
from scrapy_bloom.transport.client import disconnect
from scrapy_bloom.transport.urls import SCHEMES, FromUrl, RedisUrl

PASSED, FAILED, INTERRUPTED = 0, 1, 130

UNKNOWN_SITE = 10_000
"""URLs that the filter is sized for if their number is unknown."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        report = _crawl(options)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except (crawl.CrawlFailedError, RedisError) as error:
        print(f"Failed: {error}", file=sys.stderr)
        return FAILED
    print(report.table(), report.verdict(), sep="\n\n")
    if report.passed:
        return PASSED
    print(report.faults(), file=sys.stderr)
    return FAILED


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m devtools.demo",
        description="Crawl a site with workers that share a queue and a filter, and account for every page.",
    )
    site.add_options(parser)
    parser.add_argument("--workers", type=int, default=2, help="spider processes (%(default)s)")
    parser.add_argument("--start-url", help="crawl your own site from this URL, not the made-up one")
    server = parser.add_mutually_exclusive_group()
    server.add_argument("--redis-url", help="server to use ($REDIS_URL, else one of its own)")
    server.add_argument("--cluster", action="store_true", help="use a cluster of its own, with replicas")
    server.add_argument("--sentinel", action="store_true", help="use a master of its own with a replica and a Sentinel")
    parser.add_argument(
        "--capacity",
        type=int,
        help=f"URLs to size the filter for (a quarter more than --pages; {UNKNOWN_SITE:,} for a --start-url)",
    )
    parser.add_argument("--timeout", type=float, default=600, help="seconds the crawl may take (%(default)s)")
    options = parser.parse_args(arguments)
    if not (options.redis_url or options.cluster or options.sentinel):
        options.redis_url = os.environ.get("REDIS_URL")
    if options.capacity is None:
        options.capacity = UNKNOWN_SITE if options.start_url else options.pages * 5 // 4
    for name in ("pages", "links", "workers", "capacity", "timeout"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} = {getattr(options, name)}: must be at least 1")
    if options.start_url and not options.start_url.startswith(("http://", "https://")):
        parser.error(f"--start-url = {options.start_url}: must begin with http:// or https://")
    try:
        _require_valid(options.redis_url or "redis://")
    except ValueError:  # its text may hold a part of a password
        parser.error(f"--redis-url: must be a URL like redis://localhost:6379/0, with one of {', '.join(SCHEMES)}")
    return options


def _require_valid(url: str) -> None:
    """Raise a ValueError for an invalid URL; nothing is connected."""
    parts = RedisUrl.parse(url)
    if not url.startswith(SCHEMES):
        raise ValueError("another scheme")
    if parts.kind:
        parts.addresses(0)
    else:
        Redis.from_url(url).close()


def _place(options: argparse.Namespace, directory: Path, stack: ExitStack) -> tuple[str, Any]:
    """Return the URL of the servers, which are started if they are the demo's, and a client."""
    if options.cluster:
        cluster = stack.enter_context(running_cluster("valkey", 3, replicas=1))
        return cluster.url, stack.enter_context(cluster.client())
    if options.sentinel:
        url = stack.enter_context(watched_pair(directory))
    else:
        url = options.redis_url or stack.enter_context(running("valkey")).url
    client = (FromUrl if RedisUrl.parse(url).kind else Redis).from_url(url)
    stack.callback(disconnect, client)
    return url, client


def _crawl(options: argparse.Namespace) -> Report:
    """Crawl, and measure before the keys are deleted; every started process is stopped afterwards."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="scrapy-bloom-demo-")))
        redis_url, server = _place(options, directory, stack)
        prefix = stack.enter_context(crawl.keys_of_its_own(server))
        start_url, expected = options.start_url, []
        if not start_url:
            made_up = site.MadeUpLinks(options.pages, options.links)
            served = stack.enter_context(site.serving(made_up))
            start_url, expected = f"{served.url}/", [served.url + path for path in made_up]
        job = crawl.job(start_url, redis_url, prefix, options.capacity, os.environ)
        crew = stack.enter_context(crawl.working(job, options.workers, directory))
        tally = Tally([worker.ledger for worker in crew])
        print(f"{options.workers} workers crawl {start_url}", flush=True)
        crawl.follow(crew, tally, len(expected), options.timeout)
        memory = measure(server, f"{prefix}:filter", f"{prefix}:set", tally.offered)
    return Report(tally, tally.missed(expected), memory, options.capacity)


if __name__ == "__main__":
    sys.exit(main())
