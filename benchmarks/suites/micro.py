"""The steps of a check one by one: the cost of a repeated link, and of a new one.

Each step is a loop over many calls. The best of several turns counts, because disturbances only add time. The ratio
is to Scrapy's own fingerprint, which every other filter makes for every link. The ratio and the first time are CPU
time of this process; by the clock there is the wait for the server as well.
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

NUMBER = 1_000
TURNS = 15
FINGERPRINT = "Scrapy's fingerprint of a request"

Step = tuple[Callable[[Any], object], Callable[[], Sequence[Any]]]
"""A call, and the arguments of its calls in a turn."""


def run(_: Asked) -> list[Plot]:
    """Measure each step, and print the table."""
    with running(available()[0]) as server, server.client(protocol=3) as client, server.client(protocol=3) as plain:
        settings = {"REDIS_URL": server.url, "SCHEDULER_DUPEFILTER_KEY": "bench:micro"}
        crawler = get_crawler(Spider, settings)
        crawler.spider = Spider.from_crawler(crawler, name="bench")
        dupefilter = BloomRFPDupeFilter.from_spider(crawler.spider)
        bloom = BloomFilter(client, "bench:micro:filter")
        endless = fingerprints()
        links, few = urls(0, NUMBER), NUMBER // 5
        for link in links:
            dupefilter.request_seen(Request(link))

        def requests() -> list[Request]:
            return [Request(link) for link in links]

        def items() -> list[str]:
            return list(islice(endless, few))

        steps: dict[str, Step] = {
            FINGERPRINT: (fingerprint, requests),
            "a duplicate, request_seen": (dupefilter.request_seen, requests),
            "SADD by redis-py": (lambda item: plain.sadd("bench:set", item), items),
            "add, a new item": (bloom.add, items),
            "a new link, request_seen": (
                dupefilter.request_seen,
                lambda: [Request(f"https://example.com/{item}") for item in items()],
            ),
            "add_many, 100 new items": (bloom.add_many, lambda: [list(islice(endless, 100)) for _ in range(few // 20)]),
        }
        _print(server.name, steps)
    return []


def _print(server: str, steps: Mapping[str, Step]) -> None:
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
    title = f"One after another on {server}, the best of {TURNS} turns."
    report.table(title, ("step", "to a fingerprint", "us of CPU", "us by the clock"), rows)
