"""The costs of a real site's links, in counts that are the same on every machine.

Round trips, commands and bytes: higher numbers make crawls slower everywhere; when a change lowers them, lower them
here.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import redis
from scrapy import Request, Spider

from devtools.round_trips import counting
from scrapy_bloom import BloomRFPDupeFilter, BloomScheduler
from scrapy_bloom._runtime import RUNTIME
from tests.support import crawling
from tests.support.in_process import start
from tests.support.real_links import pages
from tests.support.servers import Server

COMMANDS = ("evalsha", "getrange", "setrange")

Give = Callable[[Sequence[Request]], None]


class Cost(NamedTuple):
    """Round trips, bytes sent, and calls of each command."""

    trips: int
    bytes: int
    commands: dict[str, int]


@pytest.fixture
def crawler_settings(server: Server, key: str) -> dict[str, Any]:
    """Settings of a crawl of this test."""
    return {
        "REDIS_URL": server.url,
        "DUPEFILTER_CLASS": crawling.BLOOM,
        "SCHEDULER_DUPEFILTER_KEY": key,
        "SCHEDULER_QUEUE_KEY": f"{key}:queue",
        # Beyond the time of any test: no heartbeat comes in between.
        "BLOOMFILTER_LEASE": 3600,
    }


@pytest.fixture
def spider(crawler_settings: dict[str, Any]) -> Spider:
    """The spider of a crawl."""
    spider = start(crawler_settings).spider
    assert spider is not None
    return spider


@pytest.fixture
def scheduler(spider: Spider, monkeypatch: pytest.MonkeyPatch) -> Iterator[BloomScheduler]:
    """An open scheduler, whose clock stands: no pause ends."""
    monkeypatch.setattr(RUNTIME, "monotonic", lambda: 0.0)
    scheduler = BloomScheduler.from_crawler(spider.crawler)
    scheduler.open(spider)
    scheduler.enqueue_request(Request("http://shop.test/first"))
    scheduler.has_pending_requests()
    yield scheduler
    scheduler.close("finished")


def cost(client: redis.Redis, site: str, give: Give) -> Cost:
    """Pass all pages of a site to `give`, one after another, and return the cost."""
    client.config_resetstat()
    with counting() as sent:
        for links in pages(site):
            give([Request(link) for link in links])
    found = client.info("commandstats")
    return Cost(sent.trips, sent.bytes, {name: found[f"cmdstat_{name}"]["calls"] for name in COMMANDS})


def test_dupefilter(client: redis.Redis, spider: Spider) -> None:
    """Under scrapy-redis's Scheduler a new request is one script, a repeat is free."""
    dupefilter = BloomRFPDupeFilter.from_spider(spider)
    dupefilter.filter.add("the first")  # creates the filter, a cost once in its life

    def give(requests: Sequence[Request]) -> None:
        for request in requests:
            dupefilter.request_seen(request)

    trips, size, commands = cost(client, "postgresql", give)
    assert (trips, commands) == (1169, dict.fromkeys(COMMANDS, 1169))
    assert size <= 1169 * 370


# Of each site the round trips, and the new requests.
SITES = {"python": (39, 530), "postgresql": (85, 1169)}


@pytest.mark.parametrize("site", SITES)
def test_scheduler(site: str, client: redis.Redis, scheduler: BloomScheduler) -> None:
    """BloomScheduler checks, queues, takes and acknowledges requests in batches of one script each."""

    def give(requests: Sequence[Request]) -> None:
        for request in requests:
            scheduler.enqueue_request(request)
        scheduler.next_request()

    found, (trips, new) = cost(client, site, give), SITES[site]
    assert (found.trips, found.commands) == (trips, {"evalsha": trips, "getrange": new, "setrange": new})
    # The digest, and the serialized request twice: offered and acknowledged.
    assert found.bytes <= 640 * new
