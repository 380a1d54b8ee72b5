"""The costs of a real site's links, in counts that are the same on every machine.

Round trips, commands and bytes: higher numbers make crawls slower everywhere; when a change lowers them, lower them
here.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import redis
from scrapy import Request

from devtools.round_trips import counting
from scrapy_bloom import BloomScheduler
from scrapy_bloom.runtime import RUNTIME
from tests.support.dupefilters import build
from tests.support.real_links import links
from tests.support.servers import Server

COMMANDS = ("evalsha", "getrange", "setrange")

Give = Callable[[Sequence[Request]], None]


class Cost(NamedTuple):
    """Round trips, bytes sent, and calls of each command."""

    trips: int
    bytes: int
    commands: dict[str, int]


@pytest.fixture
def scheduler(opened: Callable[..., BloomScheduler], monkeypatch: pytest.MonkeyPatch) -> BloomScheduler:
    """An open scheduler of the default size, whose clock stands: no pause ends, and no heartbeat comes in between."""
    monkeypatch.setattr(RUNTIME, "monotonic", lambda: 0.0)
    scheduler = opened(BLOOMFILTER_LEASE=3600, BLOOMFILTER_CAPACITY=1_000_000, BLOOMFILTER_ERROR_RATE=1e-6)
    scheduler.enqueue_request(Request("http://shop.test/first"))
    scheduler.has_pending_requests()
    return scheduler


def cost(client: redis.Redis, give: Give) -> Cost:
    """Pass all pages of the site to `give`, one after another, and return the cost."""
    client.config_resetstat()
    with counting() as sent:
        for urls in links().values():
            give([Request(url) for url in urls])
    found = client.info("commandstats")
    return Cost(sent.trips, sent.bytes, {name: found[f"cmdstat_{name}"]["calls"] for name in COMMANDS})


def test_dupefilter(client: redis.Redis, server: Server, key: str) -> None:
    """Under scrapy-redis's Scheduler a new request is one script, a repeat is free."""
    dupefilter = build(server, key, BLOOMFILTER_CAPACITY=1_000_000)
    dupefilter.filter.add("the first")  # creates the filter, a cost once in its life

    def give(requests: Sequence[Request]) -> None:
        for request in requests:
            dupefilter.request_seen(request)

    trips, size, commands = cost(client, give)
    assert (trips, commands) == (1169, dict.fromkeys(COMMANDS, 1169))
    assert size <= 1169 * 370


def test_scheduler(client: redis.Redis, scheduler: BloomScheduler) -> None:
    """BloomScheduler checks, queues, takes and acknowledges requests in batches of one script each."""

    def give(requests: Sequence[Request]) -> None:
        for request in requests:
            scheduler.enqueue_request(request)
        scheduler.next_request()

    trips, size, commands = cost(client, give)
    assert (trips, commands) == (83, {"evalsha": 83, "getrange": 1169, "setrange": 1169})
    # The item in the filter, and the serialized request twice: offered with its score, and acknowledged.
    assert size <= 660 * 1169
