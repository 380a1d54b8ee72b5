"""A process that measures the scrapy_bloom on its PYTHONPATH, before or after the switch: `measured.py URL`.

It reads the name of a stream, one a line, and writes the costs of a turn as JSON. It uses only names that both packages
have: a scheduler through Scrapy's calls, and the public methods of `BloomFilter`.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count, islice
from typing import Any

import redis
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

import scrapy_bloom
from benchmarks.harness.urls import fingerprints, url
from devtools.round_trips import Sent, counting
from devtools.servers import cpu_seconds
from scrapy_bloom import BloomFilter, BloomScheduler

LINKS = 1_000
PAGE, NEW_OF_REPEATS = 50, 5
# Links in the queue at the start, which is never empty afterwards.
WAITING = 500
BATCH, SINGLES = 100, 500
CAPACITY = 5_000_000
# Of the filter whose bytes are measured.
FULL = 1_000_000

Stream = Callable[[], int]
"""Makes the calls of a turn; returns the number of items."""


class Links:
    """The links of a crawl's pages through BloomScheduler, which the engine takes as fast as they come.

    `more` are settings.
    """

    def __init__(self, server: str, **more: object) -> None:
        settings = {
            "REDIS_URL": server,
            "DUPEFILTER_CLASS": "scrapy_bloom.BloomRFPDupeFilter",
            "BLOOMFILTER_CAPACITY": CAPACITY,
            # No heartbeat falls into a turn.
            "BLOOMFILTER_LEASE": 3600,
            **more,
        }
        crawler = get_crawler(Spider, settings)
        self.spider = crawler.spider = Spider.from_crawler(crawler, name="measured")
        self.scheduler: Any = BloomScheduler.from_crawler(crawler)
        self.scheduler.open(self.spider)
        self._numbers = count()
        for number in islice(self._numbers, WAITING):
            self.scheduler.enqueue_request(Request(url(number)))

    def turn(self, new: int) -> int:
        """Offer pages of links, of which so many are new and the others were offered before; take as many as new."""
        for _ in range(LINKS // PAGE):
            numbers = [*islice(self._numbers, new)]
            repeats = range(numbers[0] - PAGE + new, numbers[0])
            for number in (*numbers, *repeats):
                self.scheduler.enqueue_request(Request(url(number)))
            for _ in numbers:
                # It is None when the time that the scheduler grants itself is up, on a busy machine.
                while self.scheduler.next_request() is None:
                    pass
        return LINKS

    def close(self) -> None:
        """Leave the queue, and delete it."""
        self.scheduler.close("finished")


def streams(server: str, links: Links) -> dict[str, Stream]:
    """Return the streams by name."""
    client = redis.Redis.from_url(server)
    bloom = BloomFilter(client, "measured", capacity=CAPACITY, cache_size=0)
    endless = fingerprints()
    batches = [[next(endless) for _ in range(BATCH)] for _ in range(LINKS // BATCH)]

    def new() -> int:
        batches[:] = [[next(endless) for _ in range(BATCH)] for _ in batches]
        return repeats()

    def repeats() -> int:
        return sum(len(bloom.add_many(batch)) for batch in batches)

    def singles() -> int:
        return sum(1 for item in islice(endless, SINGLES) if bloom.add(item))

    def memory() -> int:
        before = set(client.scan_iter())
        BloomFilter(client, "full", capacity=FULL, error_rate=1e-6).add("first")
        keys = set(client.scan_iter()) - before
        return sum(client.memory_usage(key, samples=0) or 0 for key in keys)

    return {
        "new": lambda: links.turn(PAGE),
        "repeats": lambda: links.turn(NEW_OF_REPEATS),
        "batches": new,
        "repeated batches": repeats,
        "singles": singles,
        "memory": memory,
    }


def costs(stream: Stream, sent: Sent, client: redis.Redis) -> dict[str, float]:
    """Return the costs of an item in a turn; the result itself as `bytes` for the memory of a filter."""
    server, trips, size = cpu_seconds(client), sent.trips, sent.bytes
    used = time.process_time()
    items = stream()
    used = time.process_time() - used
    trips, size = sent.trips - trips, sent.bytes - size
    server = cpu_seconds(client) - server
    return {"client": used / items, "server": server / items, "trips": trips / items, "sent": size / items, "of": items}


def main(server: str, lines: Iterator[str]) -> None:
    """Measure the turns that are asked for."""
    print(json.dumps(scrapy_bloom.__file__), flush=True)
    with redis.Redis.from_url(server) as client, counting() as sent, closing(Links(server)) as links:
        by_name = streams(server, links)
        for line in lines:
            print(json.dumps(costs(by_name[line.strip()], sent, client)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], iter(sys.stdin.readline, ""))
