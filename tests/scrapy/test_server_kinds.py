"""Queue and filter over each kind of server that a URL can name, on one server or on two."""

from collections.abc import Callable
from typing import Any

import pytest
from scrapy import Request, signals

from scrapy_bloom import BloomScheduler
from tests.support import crawling
from tests.support.in_process import start
from tests.support.kinds import KINDS, Place

NUMBER = 30


def settings_at(key: str, url: str, **more: Any) -> dict[str, Any]:
    """The settings of a crawl whose keys contain the test's."""
    return {
        "DUPEFILTER_CLASS": crawling.BLOOM,
        "REDIS_URL": url,
        "SCHEDULER_DUPEFILTER_KEY": f"{{{key}}}:filter",
        "SCHEDULER_QUEUE_KEY": f"{{{key}}}:queue",
        "BLOOMFILTER_CAPACITY": 20,
        **more,
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


@pytest.mark.parametrize("of_filter", KINDS)
@pytest.mark.parametrize("of_queue", KINDS)
def test_pairs(places: Callable[[str], Place], of_queue: str, of_filter: str, key: str) -> None:
    """Each request is taken once; the filter is on its server only, the queue on the other."""
    queue, kept = places(of_queue), places(of_filter)
    more = {"BLOOMFILTER_REDIS_URL": kept.url} if of_filter != of_queue else {}
    scheduler, crawler, taken = crawled(settings_at(key, queue.url, **more))
    assert sorted(taken) == sorted(f"https://shop.test/{number}" for number in range(NUMBER))
    there = {each.split(":")[0] for each in keys_at(kept, key)}, {each.split(":")[0] for each in keys_at(queue, key)}
    assert "filter" in there[0]
    assert "queue" in there[1]
    assert of_filter == of_queue or ("queue" not in there[0] and "filter" not in there[1])
    scheduler.close("shutdown")
    crawler.signals.send_catch_log(signals.spider_closed, spider=crawler.spider, reason="shutdown")
    assert keys_at(kept, key) == keys_at(queue, key) == set()
