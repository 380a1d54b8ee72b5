"""Queue and filter over each kind of server that a URL can name."""

from collections.abc import Callable
from typing import Any

import pytest
from scrapy import Request, signals

from scrapy_bloom import BloomScheduler
from tests.support import crawling
from tests.support.in_process import start
from tests.support.kinds import KINDS, Place

NUMBER = 30


def settings_at(key: str, url: str) -> dict[str, Any]:
    """The settings of a crawl whose keys contain the test's."""
    return {
        "DUPEFILTER_CLASS": crawling.BLOOM,
        "REDIS_URL": url,
        "SCHEDULER_DUPEFILTER_KEY": f"{{{key}}}:filter",
        "SCHEDULER_QUEUE_KEY": f"{{{key}}}:queue",
        "BLOOMFILTER_CAPACITY": 20,
    }


def keys_at(place: Place, key: str) -> set[str]:
    """The keys of a test on a server, without the number that they begin with."""
    with place.client() as client:
        return {each.decode().partition("}:")[2] for each in client.scan_iter(match=f"*{key}*", count=10_000)}


def crawled(settings: dict[str, Any]) -> tuple[Any, Any, list[str]]:
    """A scheduler that has queued some requests, and every second of them twice; its crawler; the requests it gives."""
    crawler = start(settings)
    scheduler = BloomScheduler.from_crawler(crawler)
    scheduler.open(crawler.spider)
    for number in range(NUMBER):
        for _ in range(1 + number % 2):
            scheduler.enqueue_request(Request(f"https://shop.test/{number}"))
    taken = []
    while (request := scheduler.next_request()) is not None:
        taken.append(request.url)
    return scheduler, crawler, taken


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(places: Callable[[str], Place], kind: str, key: str) -> None:
    """Each request is taken once, and the end leaves no key."""
    place = places(kind)
    scheduler, crawler, taken = crawled(settings_at(key, place.url))
    assert sorted(taken) == sorted(f"https://shop.test/{number}" for number in range(NUMBER))
    assert {"filter", "queue"} <= {each.split(":")[0] for each in keys_at(place, key)}
    scheduler.close("shutdown")
    crawler.signals.send_catch_log(signals.spider_closed, spider=crawler.spider, reason="shutdown")
    assert keys_at(place, key) == set()
