"""The order of requests of equal priority: by the minute of their arrival, and hosts take turns within it."""

from collections.abc import Iterable
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy_redis.queue import FifoQueue, LifoQueue, PriorityQueue

from scrapy_bloom.codec import RequestCodec
from scrapy_bloom.queue.keys import QueueKeys

# Divisible by 60.
NOON = 1_800_000_000.0


def in_order(requests: Iterable[tuple[float, str, int]], queue: Any = PriorityQueue) -> list[str]:
    """Return the hosts or pages of requests that came at such a second, with such a priority, in the queue's order."""
    now = NOON
    codec = RequestCodec(queue(None, Spider("test"), "test"), QueueKeys("test"), lambda: None, lambda: now)
    scores = []
    for second, path, priority in requests:
        now = NOON + second
        scores.append((codec.encode(Request(f"https://{path}", priority=priority), None).score, path))
    return [path for _, path in sorted(scores)]


def test_hosts_take_turns() -> None:
    found = [(second, f"{host}.test/{second}", 0) for host in "abc" for second in range(20)]
    order = [path[0] for path in in_order(found)]
    assert all(set(order[turn : turn + 3]) == set("abc") for turn in range(0, 60, 3))


def test_an_earlier_minute_comes_first() -> None:
    found = [(second, "a.test/early", 0) for second in range(50)] + [(60, "b.test/late", 0)]
    assert in_order(found)[-1] == "b.test/late"


def test_a_higher_priority_comes_first() -> None:
    assert in_order([(0, "a.test/", 0), (600, "a.test/urgent", 1)])[0] == "a.test/urgent"


@pytest.mark.parametrize(("queue", "expected"), [(FifoQueue, ["a", "b", "c"]), (LifoQueue, ["c", "b", "a"])])
def test_a_queue_in_the_order_of_arrival(queue: Any, expected: list[str]) -> None:
    assert in_order([(0, "a", 0), (1, "b", 9), (2, "c", 0)], queue) == expected
