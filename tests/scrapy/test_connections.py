"""All connections of a crawl's parts are closed at its end."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from scrapy import Request
from scrapy_redis.scheduler import Scheduler

from devtools.waiting import until
from scrapy_bloom import BloomRFPDupeFilter, WrongTypeError
from scrapy_bloom.queue.values import Call
from tests.support.clusters import running_cluster
from tests.support.in_process import crawl_settings, end, start
from tests.support.servers import Server

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


def test_end_with_a_single_connection(
    opened: Opened, watching: redis.Redis, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reactor and the heartbeats do not wait for each other: each has a client of its own."""
    scheduler = opened(**named(key, max_connections=1))
    replies: list[Any] = []
    queue = scheduler._heartbeat._queue
    send = queue.send

    def note(worker: str, call: Call) -> Any:
        replies.append(send(worker, call))
        return replies[-1]

    monkeypatch.setattr(queue, "send", note)
    until(lambda: len(replies) > 1)
    for number in range(300):
        assert scheduler.enqueue_request(Request(f"https://example.com/{number}"))
    assert scheduler.next_request() is not None
    assert number_of(watching, key) == 2
    close(scheduler)
    until(lambda: number_of(watching, key) == 0)


def test_end_over_a_cluster(opened: Opened, key: str) -> None:
    """The connections to a cluster's nodes are closed, even if REDIS_URL named the cluster."""
    with running_cluster(1) as nodes, nodes[0].client() as watching:
        scheduler = opened(REDIS_URL=nodes[0].url, **named(key, redis_cls="redis.RedisCluster"))
        until(lambda: number_of(watching, key) >= 2)
        close(scheduler)
        until(lambda: number_of(watching, key) == 0)


def test_refused_start(valkey: Server, watching: redis.Redis, key: str) -> None:
    """A dupefilter that refuses to start closes its connections."""
    watching.sadd(f"{{{key}}}:filter", "a fingerprint")
    with pytest.raises(WrongTypeError) as refusal:
        BloomRFPDupeFilter.from_crawler(start({**crawl_settings(valkey.url, key), **named(key)}))
    until(lambda: number_of(watching, key) == 0)
    # The traceback has kept them until here.
    assert refusal.tb is not None


def test_end_under_another_scheduler(opened: Opened, watching: redis.Redis, key: str) -> None:
    """The filter's connections are closed; those of scrapy-redis's scheduler are its own."""
    scheduler = opened(Scheduler, **named(key))
    assert scheduler.enqueue_request(Request("https://example.com/"))
    assert number_of(watching, key) == 2
    close(scheduler)
    until(lambda: number_of(watching, key) == 1)
