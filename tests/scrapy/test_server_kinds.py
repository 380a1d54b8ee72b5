"""Queue and filter over each kind of server that a URL can name."""

from collections.abc import Callable

import pytest
from scrapy import Request

from scrapy_bloom import BloomScheduler
from tests.support.in_process import end
from tests.support.kinds import KINDS, Place

NUMBER = 30


def keys_at(place: Place, key: str) -> set[str]:
    """The keys of a test on a server, without the number that they begin with."""
    with place.client() as client:
        return {each.decode().partition("}:")[2] for each in client.scan_iter(match=f"*{key}*", count=10_000)}


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_kinds(place: Place, opened: Callable[..., BloomScheduler], key: str) -> None:
    """Each request is taken once, and the end leaves no key."""
    scheduler = opened(BLOOMFILTER_CAPACITY=20)
    urls = [f"https://shop.test/{number}" for number in range(NUMBER)]
    for number, url in enumerate(urls):
        for _ in range(1 + number % 2):
            scheduler.enqueue_request(Request(url))
    assert sorted(request.url for request in iter(scheduler.next_request, None)) == sorted(urls)
    assert {"filter", "queue"} <= {each.split(":")[0] for each in keys_at(place, key)}
    scheduler.close("shutdown")
    end(scheduler.spider.crawler, "shutdown")
    assert keys_at(place, key) == set()
