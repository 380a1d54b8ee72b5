"""BloomScheduler with JSON: foreign members, and unserializable requests."""

from collections.abc import Callable
from typing import Any

import pytest
from scrapy import Request

from scrapy_bloom import BloomScheduler
from tests.support.outcomes import holders_of
from tests.support.servers import Server
from tests.support.waiting import until

URL = "http://shop.test/"
JSON = {"SCHEDULER_SERIALIZER": "scrapy_bloom.serializers.json"}

Opened = Callable[..., BloomScheduler]


def urls(scheduler: BloomScheduler) -> list[str]:
    """The URLs of the requests in their order, until only dead letters are left."""
    taken: list[str] = []

    def is_empty() -> bool:
        taken.extend(request.url for request in iter(scheduler.next_request, None))
        return not scheduler.has_pending_requests()

    until(is_empty)
    return taken


def test_pickles_that_are_left(valkey: Server, opened: Opened, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """Pickles left by an earlier crawl are kept, logged and counted."""
    before = opened(SCHEDULER_PERSIST=True)
    before.enqueue_request(Request(URL + "before"))
    before.close("shutdown")
    keys = before.queue_keys
    with valkey.client() as client:
        (left,) = client.zrange(keys.queue, 0, -1)
        worker = opened(**JSON, SCHEDULER_PERSIST=True)
        worker.enqueue_request(Request(URL + "now"))
        assert urls(worker) == [URL + "now"]
        assert holders_of(client, key, left) == {keys.dead_letters}
        assert worker.stats.get_value("bloomfilter/dead_letters") == 1
        assert "is a pickle of another serializer, which this one never reads" in caplog.text
    assert urls(opened()) == [URL + "before"]


def test_request_that_cannot_be_json(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """A request that cannot be serialized is warned of and counted, and is crawled by its own process."""
    scheduler = opened(**JSON)
    item: dict[str, Any] = {"item": {"price": 1j}}
    assert scheduler.enqueue_request(Request(URL + "bad", meta=item))
    assert scheduler.enqueue_request(Request(URL + "good"))
    assert sorted(urls(scheduler)) == [URL + "bad", URL + "good"]
    assert scheduler.stats.get_value("scheduler/unserializable") == 1
    (told,) = [record.getMessage() for record in caplog.records if "/bad>" in record.getMessage()]
    assert "/bad> cannot be serialized: ValueError: meta['item']['price']: a complex cannot" in told
