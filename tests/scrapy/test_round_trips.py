"""The costs of a real site's links, in counts that are the same on every machine.

Round trips, commands and bytes: higher numbers make crawls slower everywhere; when a change lowers them, lower them
here.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import redis
from scrapy import Request, Spider

from devtools.round_trips import counting
from devtools.waiting import until
from scrapy_bloom import BloomRFPDupeFilter, BloomScheduler
from tests.support import crawling
from tests.support.in_process import start
from tests.support.real_links import pages
from tests.support.servers import Server

COMMANDS = ("bitfield", "eval", "zadd")

Give = Callable[[Sequence[Request]], None]


class Cost(NamedTuple):
    """Round trips, bytes sent, and calls of each command."""

    trips: int
    bytes: int
    commands: dict[str, int]


@pytest.fixture(autouse=True)
def on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exclude the effects of a slow machine on credit and checks."""
    for seconds in ("credit._FAST_SECONDS", "credit._IDLE_SECONDS", "layer_stack._STALE_SECONDS"):
        monkeypatch.setattr(f"scrapy_bloom.filter.{seconds}", math.inf)


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
def scheduler(spider: Spider) -> Iterator[BloomScheduler]:
    """An open scheduler."""
    scheduler = BloomScheduler.from_crawler(spider.crawler)
    scheduler.open(spider)
    begin(scheduler.df)
    # The first heartbeat, which is the only one within the lease.
    until(lambda: scheduler._heartbeats._failure_detector._last_check is not None)
    yield scheduler
    scheduler.close("finished")


def begin(dupefilter: BloomRFPDupeFilter) -> None:
    """Create the filter with its first addition, a cost once in its life."""
    dupefilter.filter.add("the first")


def cost(client: redis.Redis, site: str, give: Give) -> Cost:
    """Pass all pages of a site to `give`, one after another, and return the cost."""
    client.config_resetstat()
    with counting() as sent:
        for links in pages(site):
            give([Request(link) for link in links])
    found = client.info("commandstats")
    commands = {name: found.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in COMMANDS}
    commands["eval"] += found.get("cmdstat_evalsha", {"calls": 0})["calls"]
    return Cost(sent.trips, sent.bytes, commands)


def test_dupefilter(client: redis.Redis, spider: Spider) -> None:
    """Under scrapy-redis's Scheduler a new request is one command, a repeat is free."""
    dupefilter = BloomRFPDupeFilter.from_spider(spider)
    begin(dupefilter)

    def give(requests: Sequence[Request]) -> None:
        for request in requests:
            dupefilter.request_seen(request)

    trips, size, commands = cost(client, "postgresql", give)
    assert (trips, commands) == (1169, {"bitfield": 1169, "eval": 2, "zadd": 0})
    assert size <= 1169 * 660


# A page costs at most a fifth of a round trip, including taking its requests. A new request is one BITFIELD, and each
# script serves many requests.
SITES = {
    "python": (89, {"bitfield": 530, "eval": 77, "zadd": 93}),
    "postgresql": (188, {"bitfield": 1169, "eval": 170, "zadd": 190}),
}


@pytest.mark.parametrize("site", SITES)
def test_scheduler(site: str, client: redis.Redis, scheduler: BloomScheduler) -> None:
    """BloomScheduler checks, queues and takes requests in batches."""
    trips, commands = SITES[site]

    def give(requests: Sequence[Request]) -> None:
        for request in requests:
            scheduler.enqueue_request(request)
        scheduler.next_request()

    found = cost(client, site, give)
    assert (found.trips, found.commands) == (trips, commands)
    # The check, and the serialized request three times: pending, pushed and leased.
    assert found.bytes <= 2400 * commands["bitfield"]
