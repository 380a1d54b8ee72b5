"""The connections of a crawl: their ends, warnings about their server, and each kind of server that a URL can name."""

import logging
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from scrapy import Request
from scrapy.settings import Settings
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import BloomRFPDupeFilter, BloomScheduler, RefusedError, WrongTypeError
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.report import warn_about_memory
from tests.support import kinds
from tests.support.in_process import crawl_settings, end, start
from tests.support.kinds import Place
from tests.support.servers import EACH_KIND, Server, running
from tests.support.waiting import until

Opened = Callable[..., Any]


def named(key: str, **params: object) -> dict[str, Any]:
    """The settings of a crawl whose connections have its name."""
    return {"REDIS_PARAMS": {"client_name": key.replace(":", "-"), **params}, "BLOOMFILTER_LEASE": 0.1}


def close(scheduler: Any) -> None:
    """End a crawl as the engine does."""
    scheduler.close("shutdown")
    end(scheduler.spider.crawler, "shutdown")


@pytest.fixture
def watching(valkey: Server) -> Iterator[redis.Redis]:
    """A client that lists all connections."""
    with valkey.client() as client:
        yield client


def number_of(client: redis.Redis, key: str) -> int:
    """Count the connections of a crawl."""
    return sum(each["name"] == key.replace(":", "-") for each in client.client_list())


def test_end_of_a_crawl(opened: Opened, watching: redis.Redis, key: str) -> None:
    """The connections of queue, heartbeats and filter are all closed."""
    scheduler = opened(**named(key))
    assert scheduler.enqueue_request(Request("https://example.com/"))
    assert scheduler.next_request() is not None
    until(lambda: number_of(watching, key) >= 2)
    close(scheduler)
    until(lambda: number_of(watching, key) == 0)
    # They stay open until here: the garbage collector has closed none.
    assert scheduler.df.server is not scheduler.server


def test_refused_start(valkey: Server, watching: redis.Redis, key: str) -> None:
    """A dupefilter that refuses to start closes its connections."""
    watching.sadd(f"{{{key}}}:shop", "a fingerprint")
    with pytest.raises(WrongTypeError) as refusal:
        BloomRFPDupeFilter.from_crawler(start({**crawl_settings(valkey.url, key), **named(key)}))
    until(lambda: number_of(watching, key) == 0)
    # The traceback has kept them until here.
    assert refusal.tb is not None


def test_end_under_another_scheduler(opened: Opened, watching: redis.Redis, key: str) -> None:
    """The filter's connections are closed; those of scrapy-redis's scheduler are its own."""
    scheduler = opened(Scheduler, **named(key))
    assert scheduler.enqueue_request(Request("https://example.com/"))
    # One of them is held for the checks alone.
    assert number_of(watching, key) == 3
    close(scheduler)
    until(lambda: number_of(watching, key) == 1)


# Warnings about the server's memory.


LIMIT = 64 * 1024 * 1024
PARAMETERS, HUGE = FilterParameters(10_000_000, 1e-6), FilterParameters(1_000_000_000, 1e-6)
EVICTING = ["allkeys-lru", "allkeys-lfu", "allkeys-random"]
KEEPING = ["noeviction", "volatile-lru", "volatile-ttl"]


@pytest.fixture(scope="module", params=EACH_KIND)
def limited(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server whose memory is limited."""
    with running(request.param, "--maxmemory", str(LIMIT)) as server:
        yield server


def advised(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings, with numbers as plain digits."""
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [re.sub(r"(?<=\d)[,_](?=\d)", "", message) for message in caplog.messages]


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 2}], ids=str)
def test_filter_and_maxmemory(
    limited: Server, key: str, options: dict[str, bool | int], caplog: pytest.LogCaptureFixture
) -> None:
    """A filter larger than `maxmemory` is warned about once, with both sizes; one that is as large is not."""
    size = PARAMETERS.sizes()[0].memory_bytes
    with limited.client(**options) as client:
        for limit in (size, size - 1):
            client.config_set("maxmemory", limit)
            warn_about_memory(client, key, PARAMETERS)
        client.config_set("maxmemory", LIMIT)
    (warning,) = advised(caplog)
    assert all(part in warning for part in (repr(key), "maxmemory", str(size), str(size - 1)))


def test_filter_and_machine(client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A filter larger than the machine of its server is warned about, also in partitions, and so before it is made."""
    total = int(client.info("memory")["total_system_memory"])
    many = math.ceil(2 * total / HUGE.sizes()[0].memory_bytes)
    warn_about_memory(client, key, HUGE, many)
    (warning,) = advised(caplog)
    assert all(part in warning for part in (repr(key), "its machine has", str(total), "BLOOMFILTER_CAPACITY"))


def test_warning_before_the_filter_is_made(limited: Server, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """BloomScheduler warns before it allocates the first layer, which the server refuses or the machine cannot hold."""
    crawler = start({**crawl_settings(limited.url, key), "BLOOMFILTER_CAPACITY": 10**8})
    scheduler = BloomScheduler.from_crawler(crawler)
    with pytest.raises(RefusedError, match="raise the server's maxmemory"):
        scheduler.open(crawler.spider)
    scheduler.close("shutdown")
    (warning,) = advised(caplog)
    assert "the server's maxmemory is" in warning


def test_no_limit(client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server without a memory limit evicts no keys under any policy."""
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        warn_about_memory(client, key, PARAMETERS)
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    assert advised(caplog) == []


@pytest.mark.parametrize("policy", [*EVICTING, *KEEPING])
@pytest.mark.parametrize("ttl", [None, 3600])
def test_policy(limited: Server, key: str, policy: str, ttl: int | None, caplog: pytest.LogCaptureFixture) -> None:
    """A crawl's start warns of a policy that may evict any key, by name.

    A filter with a TTL can be evicted under every policy but noeviction, the only one advised.
    """
    settings = {"REDIS_URL": limited.url, "SCHEDULER_DUPEFILTER_KEY": key, "BLOOMFILTER_TTL": ttl}
    with limited.client() as client:
        client.config_set("maxmemory-policy", policy)
        BloomRFPDupeFilter.from_settings(Settings({**settings, "BLOOMFILTER_CAPACITY": 1000}))
    warnings = advised(caplog)
    assert len(warnings) == (policy in EVICTING if ttl is None else policy != "noeviction")
    assert all(policy in each and repr(key) in each for each in warnings)
    assert ttl is None or all("set noeviction:" in each and "volatile-*" not in each for each in warnings)


def test_server_that_denies_info(limited: Server, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server that denies INFO, as managed ones do, causes neither warning nor error."""
    with limited.client() as admin:
        admin.config_set("maxmemory-policy", "allkeys-lru")
        admin.acl_setuser(key, enabled=True, passwords=["+x"], keys="*", commands=["+@all", "-info", "-config"])
    with limited.client(username=key, password="x") as user:  # noqa: S106  # of this test's own user
        with pytest.raises(redis.exceptions.NoPermissionError):
            user.info("memory")
        warn_about_memory(user, key, HUGE, 10_000)
    assert advised(caplog) == []


# Queue and filter over each kind of server.


NUMBER = 30


def keys_at(place: Place, key: str) -> set[str]:
    """The keys of a test on a server, without the number that they begin with."""
    with place.client() as client:
        return {each.decode().partition("}:")[2] for each in client.scan_iter(match=f"*{key}*", count=10_000)}


@pytest.mark.parametrize("place", kinds.KINDS, indirect=True)
def test_kinds(place: Place, opened: Callable[..., BloomScheduler], key: str) -> None:
    """Each request is taken once, and the end leaves no key."""
    scheduler = opened(BLOOMFILTER_CAPACITY=20)
    urls = [f"https://shop.test/{number}" for number in range(NUMBER)]
    for number, url in enumerate(urls):
        for _ in range(1 + number % 2):
            scheduler.enqueue_request(Request(url))
    assert sorted(request.url for request in iter(scheduler.next_request, None)) == sorted(urls)
    assert {"shop", "queue"} <= {each.split(":")[0] for each in keys_at(place, key)}
    scheduler.close("shutdown")
    end(scheduler.spider.crawler, "shutdown")
    assert keys_at(place, key) == set()
