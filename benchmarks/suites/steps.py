"""The steps of a check one by one: the cost of a repeated link, and of a new one.

Each step is a loop over many calls. The best of several turns counts, because disturbances only add time. The ratio
is to Scrapy's own fingerprint, which every other filter makes for every link. The ratio and the first time are CPU
time of this process; with a server, the clock includes the wait for it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from scrapy import Request, Spider
from scrapy.utils.request import fingerprint
from scrapy.utils.test import get_crawler

from benchmarks.harness import report
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from benchmarks.harness.urls import fingerprints, urls
from devtools.servers import available, running
from scrapy_bloom import BloomFilter, BloomRFPDupeFilter
from scrapy_bloom.filter import hashing
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.settings import BloomSettings

NUMBER = 2_000
TURNS = 15
FINGERPRINT = "Scrapy's fingerprint of a request"

Step = Callable[[Any], object]


def run(_: Asked) -> list[Plot]:
    """Measure each step; print a table of the steps in the process, and one of the steps with a server."""
    with running(available()[0]) as server, server.client(protocol=3) as client, server.client(protocol=3) as plain:
        settings = {"REDIS_URL": server.url, "SCHEDULER_DUPEFILTER_KEY": "bench:micro"}
        crawler = get_crawler(Spider, settings)
        crawler.spider = Spider.from_crawler(crawler, name="bench")
        dupefilter = BloomRFPDupeFilter.from_spider(crawler.spider)
        links, few = urls(0, NUMBER), range(20)
        for link in links:
            dupefilter.request_seen(Request(link))
        items = [each.encode() for each in islice(fingerprints(), NUMBER)]
        secret = hashing.new_secret().encode()
        _print(
            f"In the process; {NUMBER:,} in each of {TURNS} turns, the best of them.",
            {
                FINGERPRINT: (fingerprint, lambda: [Request(link) for link in links]),
                "fingerprint remembered": (dupefilter.fingerprint_of, lambda: [Request(link) for link in links]),
                "a repeat, request_seen": (dupefilter.request_seen, lambda: [Request(link) for link in links]),
                "the digest of an item": (lambda item: hashing.digest(item, secret), lambda: items),
                "settings to configuration": (
                    lambda _: BloomSettings.from_settings(crawler.settings),
                    lambda: links[:20],
                ),
                "capacity and error rate to sizes": (lambda _: FilterParameters().sizes(), lambda: few),
            },
        )
        endless = fingerprints()
        bloom = BloomFilter(client, "bench:micro:filter")
        some = NUMBER // 10
        _print(
            f"With {server.name}, one after another; {some:,} in each of {TURNS} turns, the best of them.",
            {
                FINGERPRINT: (fingerprint, lambda: [Request(link) for link in links]),
                "PING by redis-py": (lambda _: plain.ping(), lambda: links[:some]),
                "SADD by redis-py": (lambda item: plain.sadd("bench:set", item), lambda: list(islice(endless, some))),
                "add, a new item": (bloom.add, lambda: list(islice(endless, some))),
                "a new link, request_seen": (
                    dupefilter.request_seen,
                    lambda: [Request(f"https://example.com/{item}") for item in islice(endless, some)],
                ),
                "add_many, 100 new items": (
                    bloom.add_many,
                    lambda: [list(islice(endless, 100)) for _ in range(some // 20)],
                ),
                "an existing filter opened": (lambda _: BloomFilter(client, "bench:micro:filter"), lambda: few),
            },
        )
    return []


def _print(title: str, steps: Mapping[str, tuple[Step, Callable[[], Sequence[Any]]]]) -> None:
    cpu, clock = (dict.fromkeys(steps, float("inf")) for _ in range(2))
    for _ in range(TURNS):
        for name, (step, given) in steps.items():
            each = given()
            started, worked = time.perf_counter(), time.process_time()
            for one in each:
                step(one)
            cpu[name] = min(cpu[name], (time.process_time() - worked) / len(each))
            clock[name] = min(clock[name], (time.perf_counter() - started) / len(each))
    rows = [
        (name, f"{cost / cpu[FINGERPRINT]:.3f}", f"{cost * 1e6:.2f}", f"{clock[name] * 1e6:.2f}")
        for name, cost in cpu.items()
    ]
    report.table(title, ("step", "to a fingerprint", "us of CPU", "us by the clock"), rows)
