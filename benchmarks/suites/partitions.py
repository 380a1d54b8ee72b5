"""A crawl in partitions on three masters of a cluster, beside one in one partition on one server.

Links go through BloomScheduler's `enqueue_request` and `next_request` in pages of 50, all new or 90 % repeats. CPU of
the servers is that of INFO, summed over the masters. Links a second are those for which the busiest master uses a core.
The made-up site is crawled by one worker. The largest partition is that of the requests of two real sites, and of
made-up URLs: few requests spread unevenly by chance.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from scrapy import Request
from scrapy.utils.request import fingerprint

from benchmarks.harness import report
from benchmarks.harness.interleaved import ratio, rotated
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from benchmarks.harness.urls import urls
from benchmarks.subjects.measured import PAGE, Links
from benchmarks.subjects.whole_crawl import OUR_SCHEDULER, Crawl, crawl, serving
from benchmarks.suites.streams import NEW, streams
from devtools.round_trips import Sent, counting
from devtools.servers import available, cpu_seconds, running
from scrapy_bloom._format import plural
from scrapy_bloom.queue.keys import partition_of
from tests.support.clusters import Cluster, running_cluster

MASTERS = 3
PARTITIONS = (1, 2, 4, 8)
STREAMS = {"all new": PAGE, "90 % repeats": PAGE // 10}
ROUNDS = 5
CRAWL_PARTITIONS, CRAWL_ROUNDS, WORKERS, PAGES = 6, 3, 1, 200
SPREAD_OVER, MADE_UP_URLS = 16, 100_000
MOST_CPU = MOST_TIME = MOST_OF_THE_MEAN = 1.1
ONE = "one server"


class Cost(NamedTuple):
    """The costs of a link; the servers' CPU by master."""

    servers: tuple[float, ...]
    client: float
    trips: float


def run(_: Asked) -> list[Plot]:
    """Measure links, crawls, and the spread."""
    kind = available()[0]
    with ExitStack() as stack:
        server = stack.enter_context(running(kind))
        cluster = stack.enter_context(running_cluster(MASTERS, kind=kind))
        _measure_links(server, cluster, stack)
        _measure_crawls(server, cluster)
    _print_spread()
    return []


def _measure_links(server: Any, cluster: Cluster, stack: ExitStack) -> None:
    masters = {f"{number} on {MASTERS} masters": list(cluster) for number in PARTITIONS}
    places = {ONE: [server], **masters}
    clients = {name: [stack.enter_context(node.client()) for node in nodes] for name, nodes in places.items()}
    links = {ONE: Links(server.url)}
    for name, number in zip(masters, PARTITIONS, strict=True):
        keys = {"SCHEDULER_QUEUE_KEY": f"{{{number}}}:queue", "SCHEDULER_DUPEFILTER_KEY": f"{{{number}}}:filter"}
        links[name] = Links(cluster.url, BLOOMFILTER_PARTITIONS=number, **keys)
    found: dict[str, dict[str, list[Cost]]] = {stream: {name: [] for name in places} for stream in STREAMS}
    with counting() as sent:
        for turn in range(-1, ROUNDS):
            for stream, new in STREAMS.items():
                for name in rotated(list(places), turn):
                    cost = _cost(links[name], new, clients[name], sent)
                    if turn >= 0:  # the first turns load scripts and modules
                        found[stream][name].append(cost)
            report.say(f"  links: round {turn + 1} of {ROUNDS}")
    for each in links.values():
        each.close()
    for stream, by_name in found.items():
        _print_links(stream, by_name, server.name)


def _cost(links: Links, new: int, clients: Sequence[Any], sent: Sent) -> Cost:
    before, trips, used = [cpu_seconds(client) for client in clients], sent.trips, time.process_time()
    number = links.turn(new)
    used, trips = time.process_time() - used, sent.trips - trips
    servers = (cpu_seconds(client) - began for client, began in zip(clients, before, strict=True))
    return Cost(tuple(each / number for each in servers), used / number, trips / number)


def _print_links(stream: str, by_name: dict[str, list[Cost]], server: str) -> None:
    sums = {name: [sum(cost.servers) for cost in costs] for name, costs in by_name.items()}
    ratios = {name: ratio(sums[name], sums[ONE]) for name in by_name}
    rows = [
        (
            name,
            report.times(ratios[name]),
            f"{median(sums[name]) * 1e6:.1f}",
            f"{1 / median(max(cost.servers) for cost in costs):,.0f}",
            f"{median(cost.client for cost in costs) * 1e6:.0f}",
            f"{median(cost.trips for cost in costs) * 1000:.0f}",
        )
        for name, costs in by_name.items()
    ]
    report.table(
        f"Links, {stream}; {server}, medians of {ROUNDS} rounds.",
        (
            *("partitions", f"CPU of the servers to {ONE}", "us of it", "links a second"),
            *("us of CPU of the client", "round trips for 1,000"),
        ),
        rows,
    )
    last = list(by_name)[-1]
    report.target(f"{stream}: CPU of the servers, {last}, times {ONE},", ratios[last], MOST_CPU)


def _measure_crawls(server: Any, cluster: Cluster) -> None:
    places = {ONE: (server, 1), f"{CRAWL_PARTITIONS} on {MASTERS} masters": (cluster, CRAWL_PARTITIONS)}
    found = {name: list[Crawl]() for name in places}
    with tempfile.TemporaryDirectory(prefix="scrapy-bloom-bench-") as scratch, serving("--pages", str(PAGES)) as url:
        for turn in range(CRAWL_ROUNDS):
            for name in rotated(list(places), turn):
                place, number = places[name]
                one = crawl(OUR_SCHEDULER, url, WORKERS, place, Path(scratch), BLOOMFILTER_PARTITIONS=number)
                found[name].append(one)
            report.say(f"  crawls: round {turn + 1} of {CRAWL_ROUNDS}")
    seconds = {name: [each.seconds for each in crawls] for name, crawls in found.items()}
    ratios = {name: ratio(seconds[name], seconds[ONE]) for name in found}
    report.table(
        f"Crawls of {PAGES:,} pages by {plural(WORKERS, 'worker')}, medians of {CRAWL_ROUNDS} rounds.",
        ("partitions", f"time to {ONE}", "seconds", "s of CPU of the worker", "round trips"),
        [
            (
                name,
                report.times(ratios[name]),
                f"{median(seconds[name]):.1f}",
                f"{median(each.cpu_seconds for each in crawls):.1f}",
                f"{median(each.round_trips for each in crawls):,.0f}",
            )
            for name, crawls in found.items()
        ],
    )
    last = list(found)[-1]
    report.target(f"time of a crawl, {last}, times {ONE},", ratios[last], MOST_TIME)


def _print_spread() -> None:
    sites = {site: {link for page in pages for link in page} for site, pages in streams().items() if site != NEW}
    sites[f"{MADE_UP_URLS:,} made-up URLs"] = set(urls(0, MADE_UP_URLS))
    largest = {}
    for site, links in sites.items():
        of_parts = Counter(partition_of(fingerprint(Request(link)), SPREAD_OVER) for link in links)
        largest[site] = max(of_parts.values()) * SPREAD_OVER / of_parts.total()
    report.table(
        f"Requests in the largest of {SPREAD_OVER} partitions, of the mean.",
        ("requests", "number", "largest"),
        [(site, f"{len(links):,}", f"{largest[site]:.2f}") for site, links in sites.items()],
    )
    for site, share in largest.items():
        report.target(f"{site}: largest of {SPREAD_OVER} partitions, times the mean,", share, MOST_OF_THE_MEAN)
