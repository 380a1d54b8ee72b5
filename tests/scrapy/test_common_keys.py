"""A queue and a filter with common keys are refused before the first write."""

import contextlib

import pytest
import redis
from scrapy import Request
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import BloomRFPDupeFilter, BloomScheduler
from scrapy_bloom.errors import ConfigError, RefusedError
from tests.support import crawling
from tests.support.in_process import start
from tests.support.servers import Server

every_scheduler = pytest.mark.parametrize("scheduler_class", [Scheduler, BloomScheduler])

# The names of queue and filter, below the test's key.
COMMON = {
    "the same": ("", ""),
    "through the spider's name": (":shop", ":%(spider)s"),
    "the filter at the queue's workers": (":{a}", ":{a}:workers"),
    "the filter at the queue's dead letters": (":{a}", ":{a}:dead-letter"),
    "the filter at a worker's leases": (":{a}", ":{a}:leases:host-1-abc"),
    "the queue at a shard": (":0:0", ""),
}
APART = {
    "the filter below the queue": ("", ":dupefilter"),
    "the queue below the filter": (":requests", ""),
}


def settings_of(server: Server, key: str, queue: str, name: str) -> dict[str, object]:
    """The settings of a crawl with these names."""
    return {
        "DUPEFILTER_CLASS": crawling.BLOOM,
        "REDIS_URL": server.url,
        "SCHEDULER_QUEUE_KEY": key + queue,
        "SCHEDULER_DUPEFILTER_KEY": key + name,
        "BLOOMFILTER_CAPACITY": 1000,
        "BLOOMFILTER_ERROR_RATE": 1e-12,
    }


def stored(server: Server, key: str) -> list[bytes]:
    """List the keys below a key."""
    with server.client() as client:
        return list(client.scan_iter(match=f"{key}*", count=10_000))


@every_scheduler
@pytest.mark.parametrize("names", COMMON)
def test_common_keys_are_refused(names: str, scheduler_class: type[Scheduler], valkey: Server, key: str) -> None:
    """The error names both settings with their values; no key is written or deleted."""
    crawler = start(settings_of(valkey, key, *COMMON[names]))
    scheduler = scheduler_class.from_crawler(crawler)
    with contextlib.closing(scheduler.server), pytest.raises(ConfigError) as raised:
        scheduler.open(crawler.spider)
    queue, name = (key + part % {"spider": "shop"} for part in COMMON[names])
    assert f"SCHEDULER_QUEUE_KEY = {queue!r}" in str(raised.value)
    assert f"SCHEDULER_DUPEFILTER_KEY = {name!r}" in str(raised.value)
    assert stored(valkey, key) == []


@every_scheduler
@pytest.mark.parametrize("names", APART)
def test_other_names_are_not(names: str, scheduler_class: type[Scheduler], valkey: Server, key: str) -> None:
    """A name that merely shares a prefix with the other is accepted."""
    crawler = start(settings_of(valkey, key, *APART[names]))
    scheduler = scheduler_class.from_crawler(crawler)
    scheduler.open(crawler.spider)
    assert stored(valkey, key)
    scheduler.close("finished")
    assert stored(valkey, key) == []


def test_close_after_a_refused_start(client: redis.Redis, server: Server, key: str) -> None:
    """Closing a scheduler whose start was refused raises no further error and deletes no key."""
    client.sadd(key, "an earlier crawl's")
    client.zadd(f"{key}:queue", {"a request": 1})
    crawler = start({**settings_of(server, key, ":queue", ""), "SCHEDULER_PERSIST": False})
    scheduler = BloomScheduler.from_crawler(crawler)
    with contextlib.closing(scheduler.server):
        with pytest.raises(Exception, match="holds a SET of 1 members"):
            scheduler.open(crawler.spider)
        scheduler.close("shutdown")
    assert sorted(stored(server, key)) == sorted([key.encode(), f"{key}:queue".encode()])


def test_keys_may_be_bytes(valkey: Server, key: str) -> None:
    """A key given as bytes is compared and used like its text."""
    settings = {**settings_of(valkey, key, "", ""), "SCHEDULER_DUPEFILTER_KEY": f"{key}:filter".encode()}
    crawler = start(settings)
    scheduler = Scheduler.from_crawler(crawler)
    with contextlib.closing(scheduler.server):
        scheduler.open(crawler.spider)
        assert stored(valkey, key) == [f"{key}:filter".encode()]
        scheduler.close("finished")
    assert stored(valkey, key) == []


def test_worker_that_could_not_join_is_not_left(valkey: Server, key: str) -> None:
    """A worker whose join was refused is no longer registered: a later crawl would wait for it."""
    settings = {**settings_of(valkey, key, "", ""), "SCHEDULER_DUPEFILTER_KEY": f"{key}:filter"}
    crawler = start(settings)
    with valkey.client() as client:
        client.set(f"{{{key}}}:dead-letter", "no sorted set")
    scheduler = BloomScheduler.from_crawler(crawler)
    with contextlib.closing(scheduler.server):
        with pytest.raises(RefusedError):
            scheduler.open(crawler.spider)
        scheduler.close("finished")
    with valkey.client() as client:
        assert not client.exists(f"{{{key}}}:workers")


class OwnRequestSeen(BloomRFPDupeFilter):
    """A dupefilter with an own `request_seen`."""

    def request_seen(self, request: Request) -> bool:  # noqa: ARG002  # as Scrapy calls it
        return False


def test_request_seen_of_a_subclass_is_refused(valkey: Server, key: str) -> None:
    """An overridden `request_seen` is refused: BloomScheduler would never call it."""
    name = f"{OwnRequestSeen.__module__}.{OwnRequestSeen.__qualname__}"
    crawler = start({**settings_of(valkey, key, "", ":filter"), "DUPEFILTER_CLASS": name})
    with pytest.raises(ConfigError, match="overrides request_seen"):
        BloomScheduler.from_crawler(crawler)
    with contextlib.closing(Scheduler.from_crawler(crawler).server):
        pass
