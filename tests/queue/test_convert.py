"""A queue of scrapy-redis's FifoQueue or LifoQueue becomes a sorted set, and a list again."""

from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy_redis.queue import FifoQueue, LifoQueue

from scrapy_bloom.codec import order_of
from scrapy_bloom.queue.request_queue import RequestQueue

# Three portions, the last of one request.
NUMBER = 1001


@pytest.fixture(params=[FifoQueue, LifoQueue])
def kind(request: pytest.FixtureRequest) -> type:
    """A queue class of scrapy-redis."""
    return request.param  # type: ignore[no-any-return]  # pytest's


@pytest.fixture
def filled(kind: type, client: Any, key: str) -> Any:
    """A queue of scrapy-redis with requests."""
    queue = kind(client, Spider("shop"), key, serializer=SimpleNamespace(dumps=_url, loads=_request, __name__="urls"))
    for number in range(NUMBER):
        queue.push(Request(f"http://shop.test/{number}"))
    return queue


def _url(request: dict[str, Any]) -> str:
    return str(request["url"])


def _request(url: bytes) -> dict[str, str]:
    return {"url": url.decode()}


def in_order(kind: type) -> list[str]:
    """The URLs of the filled queue as they are popped."""
    urls = [f"http://shop.test/{number}" for number in range(NUMBER)]
    return urls if kind is FifoQueue else urls[::-1]


def popped(queue: Any) -> list[str]:
    return [request.url for request in iter(queue.pop, None)]


@pytest.mark.parametrize("interrupted", [(), (0,), (1,), (2,), (1, 1), (1, 2, 1), (2, 2, 2, 1)])
def test_there_and_back(interrupted: tuple[int, ...], kind: type, filled: Any, client: Any, key: str) -> None:
    """The order of the pops stays, also if conversions in turn were interrupted after some portions; none is lost."""
    queue = RequestQueue(client, key, f"{key}:filter")
    kinds = ["zset", "list"]
    for turn, portions in enumerate(interrupted):
        for _ in range(portions):
            queue.convert(kinds[turn % 2], order_of(kind))
    for to in ("zset", "list", "zset"):
        while queue.convert(to, order_of(kind)):
            pass
        assert client.type(key) == to.encode()
        assert not client.exists(queue.keys.rest)
    found = [member.decode() for member in client.zrange(key, 0, -1)]
    if len(interrupted) < 2:
        assert found == in_order(kind)
    assert sorted(found) == sorted(in_order(kind))
    while queue.convert("list", order_of(kind)):
        pass
    assert popped(filled) == found


@pytest.mark.usefixtures("filled")
def test_new_requests(kind: type, client: Any, key: str) -> None:
    """Requests that come after a conversion go behind the moved ones in a FifoQueue, and before them in a LifoQueue."""
    queue = RequestQueue(client, key, f"{key}:filter")
    while queue.convert("zset", order_of(kind)):
        pass
    client.zadd(key, {"new": 1.8e9 * (1 if kind is FifoQueue else -1)})
    found = [member.decode() for member in client.zrange(key, 0, -1)]
    assert found == ([*in_order(kind), "new"] if kind is FifoQueue else ["new", *in_order(kind)])


def test_start_data_stay(kind: type, client: Any, key: str) -> None:
    """Start data that wait in the queue are no requests, and wait there again after the way there and back."""
    queue = RequestQueue(client, key, f"{key}:filter")
    client.zadd(key, {"start": "-inf", "request": 1})
    while queue.convert("list", order_of(kind)):
        pass
    assert client.lrange(key, 0, -1) == [b"request"]
    while queue.convert("zset", order_of(kind)):
        pass
    assert client.zrange(key, 0, -1) == [b"start", b"request"]
