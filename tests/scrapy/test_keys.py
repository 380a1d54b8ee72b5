"""The keys of a crawl: common keys are refused before the first write, and other slots of a cluster."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from scrapy import Request
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import BloomRFPDupeFilter, BloomScheduler
from scrapy_bloom.errors import ConfigError, RefusedError
from scrapy_bloom.transport.client import disconnect
from tests.support import crawling
from tests.support.clusters import running_cluster
from tests.support.dupefilters import keys_of
from tests.support.in_process import start
from tests.support.servers import Server

every_scheduler = pytest.mark.parametrize("scheduler_class", [Scheduler, BloomScheduler])
Open = Callable[..., Any]


@contextlib.contextmanager
def opening(
    scheduler_class: type[Scheduler] = BloomScheduler, *, spider: str = "shop", **settings: Any
) -> Iterator[Any]:
    """An opened scheduler, which finishes at the end of the block."""
    common = {"DUPEFILTER_CLASS": crawling.BLOOM, "BLOOMFILTER_CAPACITY": 1000, "BLOOMFILTER_ERROR_RATE": 1e-12}
    crawler = start({**common, **settings}, spider)
    scheduler = scheduler_class.from_crawler(crawler)
    try:
        scheduler.open(crawler.spider)
        yield scheduler
    finally:
        if getattr(scheduler, "df", None):
            scheduler.close("finished")
        disconnect(scheduler.server)


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


def named(server: Server, queue: str, name: Any) -> dict[str, Any]:
    """The settings of a crawl with these names."""
    return {"REDIS_URL": server.url, "SCHEDULER_QUEUE_KEY": queue, "SCHEDULER_DUPEFILTER_KEY": name}


@every_scheduler
@pytest.mark.parametrize("names", COMMON.values(), ids=COMMON)
def test_common_keys_are_refused(
    names: tuple[str, str], scheduler_class: type[Scheduler], valkey: Server, key: str
) -> None:
    """The error names both settings with their values; no key is written or deleted."""
    queue, name = (key + part for part in names)
    with pytest.raises(ConfigError) as raised, opening(scheduler_class, **named(valkey, queue, name)):
        pass
    assert f"SCHEDULER_QUEUE_KEY = {queue!r}" in str(raised.value)
    assert f"SCHEDULER_DUPEFILTER_KEY = {name % {'spider': 'shop'}!r}" in str(raised.value)
    with valkey.client() as client:
        assert keys_of(client, key) == []


@every_scheduler
@pytest.mark.parametrize("names", APART.values(), ids=APART)
def test_other_names_are_not(
    names: tuple[str, str], scheduler_class: type[Scheduler], valkey: Server, key: str
) -> None:
    """A name that merely shares a prefix with the other is accepted; bytes are like their text."""
    queue, name = (key + part for part in names)
    with valkey.client() as client:
        with opening(scheduler_class, **named(valkey, queue, name.encode())):
            assert name in keys_of(client, key)
        assert keys_of(client, key) == []


def test_close_after_a_refused_start(client: redis.Redis, server: Server, key: str) -> None:
    """Closing a scheduler whose start was refused raises no further error and deletes no key."""
    client.sadd(key, "an earlier crawl's")
    client.zadd(f"{key}:queue", {"a request": 1})
    with pytest.raises(Exception, match="holds a SET"), opening(**named(server, f"{key}:queue", key)):
        pass
    assert keys_of(client, key) == sorted([key, f"{key}:queue"])


def test_worker_that_could_not_join_is_not_left(valkey: Server, key: str) -> None:
    """A worker whose join was refused is not registered: a later crawl would wait for it."""
    with valkey.client() as client:
        client.set(f"{{{key}}}:dead-letter", "no sorted set")
        with pytest.raises(RefusedError), opening(**named(valkey, key, f"{key}:filter")):
            pass
        assert not client.exists(f"{{{key}}}:crawl")


class OwnRequestSeen(BloomRFPDupeFilter):
    """A dupefilter with an own `request_seen`."""

    def request_seen(self, request: Request) -> bool:  # noqa: ARG002  # as Scrapy calls it
        return False


def test_request_seen_of_a_subclass_is_refused(valkey: Server, key: str) -> None:
    """An overridden `request_seen` is refused: BloomScheduler would never call it."""
    name = f"{OwnRequestSeen.__module__}.{OwnRequestSeen.__qualname__}"
    settings = {**named(valkey, key, f"{key}:filter"), "DUPEFILTER_CLASS": name}
    with pytest.raises(ConfigError, match="overrides request_seen"), opening(**settings):
        pass
    with opening(Scheduler, **settings):
        pass


# The slots of a cluster.


@pytest.fixture(scope="module")
def node() -> Iterator[Server]:
    """A node of a cluster of two."""
    with running_cluster(2) as nodes:
        yield nodes[0]


@pytest.fixture
def on_cluster(node: Server, key: str) -> Open:
    """Opens schedulers on a cluster for a spider whose name is the test's key."""
    settings: dict[str, Any] = {"REDIS_URL": node.url, "REDIS_PARAMS": {"redis_cls": "redis.RedisCluster"}}
    return lambda **others: opening(spider=key, **settings, **others)


@pytest.mark.parametrize(
    ("queue", "name"),
    [(None, "{%s:requests}:dupefilter"), ("{%(spider)s}:jobs", "{%s}:jobs:dupefilter")],
    ids=["by default", "queue of another name"],
)
def test_filter_in_the_slot_of_its_queue(queue: str | None, name: str, on_cluster: Open, key: str) -> None:
    """Without a key the filter is in the slot of the queue, with all keys of both."""
    settings = {} if queue is None else {"SCHEDULER_QUEUE_KEY": queue}
    with on_cluster(**settings) as scheduler:
        scheduler.enqueue_request(Request("http://shop.test/"))
        scheduler.has_pending_requests()
        found = keys_of(scheduler.server, key)
        assert (scheduler.df.key, name % key in found, len(found) > 2) == (name % key, True, True)
        assert {key_slot(each.encode()) for each in found} == {key_slot(found[0].encode())}
        scheduler.next_request()


# The settings, and the beginning and a later part of the error.
ELSEWHERE: dict[str, tuple[dict[str, str], str, str]] = {
    "key that was set": (
        {"SCHEDULER_DUPEFILTER_KEY": "%(spider)s:dupefilter"},
        "SCHEDULER_DUPEFILTER_KEY = '{}:dupefilter'",
        "set SCHEDULER_DUPEFILTER_KEY = '{{{}:requests}}:dupefilter'",
    ),
    "queue of several spiders": (
        {"SCHEDULER_QUEUE_KEY": "requests of all"},
        "SCHEDULER_DUPEFILTER_KEY = '{}:dupefilter'",
        "set SCHEDULER_DUPEFILTER_KEY = '{{requests of all}}:dupefilter'",
    ),
    "queue with an unpaired brace": (
        {"SCHEDULER_QUEUE_KEY": "}%(spider)s"},
        "SCHEDULER_QUEUE_KEY = '}}{}'",
        "use a name without braces",
    ),
}


@pytest.mark.parametrize(("settings", "fault", "advice"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_filter_in_another_slot(settings: dict[str, str], fault: str, advice: str, on_cluster: Open, key: str) -> None:
    """A key outside the queue's slot is refused with the key to set."""
    with pytest.raises(ConfigError) as raised, on_cluster(**settings):
        pass
    assert str(raised.value).startswith(fault.format(key))
    assert advice.format(key) in str(raised.value)


def test_key_that_was_set_to_the_slot(on_cluster: Open, key: str) -> None:
    """A filter that the settings place in the queue's slot is used."""
    with on_cluster(SCHEDULER_DUPEFILTER_KEY="{%(spider)s:requests}:seen") as scheduler:
        assert scheduler.df.key == f"{{{key}:requests}}:seen"
