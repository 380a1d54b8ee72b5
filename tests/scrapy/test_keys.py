"""The keys of a crawl: common keys are refused before the first write, and other slots of a cluster."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from scrapy import Request
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import BloomRFPDupeFilter, BloomScheduler, WrongTypeError
from scrapy_bloom.errors import ConfigError, RefusedError
from tests.support.dupefilters import keys_of
from tests.support.in_process import crawl_settings, start
from tests.support.servers import Server

every_scheduler = pytest.mark.parametrize("scheduler_class", [Scheduler, BloomScheduler])
Opened = Callable[..., Any]

# The names of queue and filter, below the test's key.
COMMON = {
    "the same": ("", ""),
    "through the spider's name": (":shop", ":%(spider)s"),
    "the filter at the queue's crawl": (":{a}", ":{a}:crawl"),
    "the filter at the queue's failed requests": (":{a}", ":{a}:failed"),
    "the filter at a worker's leases": (":{a}", ":{a}:leases:host-1-abc"),
    "the queue at a shard": (":{a}:0f:0:0", ":{a}"),
    "the queue at a record of a caller": (":{a}:call:0f", ":{a}"),
}
APART = {
    "the filter below the queue": ("", ":dupefilter"),
    "the queue below the filter": (":requests", ""),
}


def named(queue: str, name: Any) -> dict[str, Any]:
    """The settings of a crawl with these names."""
    return {"SCHEDULER_QUEUE_KEY": queue, "SCHEDULER_DUPEFILTER_KEY": name}


@every_scheduler
@pytest.mark.parametrize("names", COMMON.values(), ids=COMMON)
def test_common_keys_are_refused(
    names: tuple[str, str], scheduler_class: type[Scheduler], opened: Opened, valkey: Server, key: str
) -> None:
    """The error names both settings with their values; no key is written or deleted."""
    queue, name = (key + part for part in names)
    with pytest.raises(ConfigError) as raised:
        opened(scheduler_class, **named(queue, name))
    assert f"SCHEDULER_QUEUE_KEY = {queue!r}" in str(raised.value)
    assert f"SCHEDULER_DUPEFILTER_KEY = {name % {'spider': 'shop'}!r}" in str(raised.value)
    with valkey.client() as client:
        assert keys_of(client, key) == []


@every_scheduler
@pytest.mark.parametrize("names", APART.values(), ids=APART)
def test_other_names_are_not(
    names: tuple[str, str], scheduler_class: type[Scheduler], opened: Opened, valkey: Server, key: str
) -> None:
    """A name that merely shares a prefix with the other is accepted; bytes are like their text."""
    queue, name = (key + part for part in names)
    # With an attribute of the spider, so that the end of the crawl deletes the filter.
    scheduler = opened(scheduler_class, spider_name=name, **named(queue, b"%(spider)s"))
    with valkey.client() as client:
        assert name in keys_of(client, key)
        scheduler.close("finished")
        assert keys_of(client, key) == []


def test_close_after_a_refused_start(client: redis.Redis, server: Server, key: str) -> None:
    """Closing a scheduler whose start was refused raises no further error and deletes no key."""
    client.sadd(key, "an earlier crawl's")
    client.zadd(f"{key}:queue", {"a request": 1})
    crawler = start({**crawl_settings(server.url, key), **named(f"{key}:queue", key)})
    scheduler = BloomScheduler.from_crawler(crawler)
    with pytest.raises(WrongTypeError, match="holds a SET"):
        scheduler.open(crawler.spider)
    scheduler.close("finished")
    assert keys_of(client, key) == sorted([key, f"{key}:queue"])


def test_worker_that_could_not_join_is_not_left(opened: Opened, valkey: Server, key: str) -> None:
    """A worker whose join was refused is not registered: a later crawl would wait for it."""
    with valkey.client() as client:
        client.set(f"{{{key}}}:dead-letter", "no sorted set")
        with pytest.raises(RefusedError):
            opened(**named(key, f"{key}:filter"))
        assert not client.exists(f"{{{key}}}:crawl")


class Skipping(BloomRFPDupeFilter):
    """A dupefilter that skips some requests."""

    def request_seen(self, request: Request) -> bool:
        return "login" not in request.url and super().request_seen(request)


class InSet(BloomRFPDupeFilter):
    """A dupefilter that was written for scrapy-redis's SET."""

    def request_seen(self, request: Request) -> bool:
        return bool(self.server.sadd(self.key, request.url) == 0)


def test_request_seen_of_a_subclass(opened: Opened) -> None:
    """BloomScheduler refuses each overridden `request_seen`; under scrapy-redis's scheduler it must use the filter."""
    skipping, in_set = ({"DUPEFILTER_CLASS": f"{__name__}.{kind.__qualname__}"} for kind in (Skipping, InSet))
    for settings in (skipping, in_set):
        with pytest.raises(ConfigError, match="overrides request_seen"):
            opened(**settings)
    with pytest.raises(ConfigError, match="InSet': its own request_seen calls neither"):
        opened(Scheduler, **in_set)
    scheduler = opened(Scheduler, **skipping)
    assert [scheduler.enqueue_request(Request("http://shop.test/1")) for _ in range(2)] == [True, False]


# The slots of a cluster.

on_cluster = pytest.mark.parametrize("place", ["redis+cluster"], indirect=True)


@pytest.fixture
def begun(opened: Opened, key: str) -> Opened:
    """Opens schedulers with the default keys of a spider whose name is the test's key."""
    return partial(opened, spider_name=key, SCHEDULER_QUEUE_KEY=None, SCHEDULER_DUPEFILTER_KEY=None)


@on_cluster
@pytest.mark.parametrize(
    ("queue", "name"),
    [(None, "{%s:requests}:dupefilter"), ("{%(spider)s}:jobs", "{%s}:jobs:dupefilter")],
    ids=["by default", "queue of another name"],
)
def test_filter_in_the_slot_of_its_queue(queue: str | None, name: str, begun: Opened, key: str) -> None:
    """Without a key the filter is in the slot of the queue, with all keys of both."""
    scheduler = begun(SCHEDULER_QUEUE_KEY=queue)
    scheduler.enqueue_request(Request("http://shop.test/"))
    scheduler.has_pending_requests()
    found = keys_of(scheduler.server, key)
    assert (scheduler.df.key, name % key in found, len(found) > 2) == (name % key, True, True)
    assert {key_slot(each.encode()) for each in found} == {key_slot(found[0].encode())}
