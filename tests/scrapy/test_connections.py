"""All connections of a crawl's parts are closed at its end."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy_redis.scheduler import Scheduler

from devtools.waiting import until
from scrapy_bloom import BloomRFPDupeFilter, BloomScheduler, WrongTypeError
from scrapy_bloom.queue.values import Call
from tests.support.clusters import running_cluster
from tests.support.in_process import crawl_settings, start
from tests.support.servers import Server


def crawler_at(server: Server, key: str, **params: object) -> Crawler:
    """A crawl whose connections have its name."""
    params = {"client_name": key.replace(":", "-"), **params}
    return start({**crawl_settings(server.url, key), "REDIS_PARAMS": params, "BLOOMFILTER_LEASE": 0.1})


def close(scheduler: BloomScheduler) -> None:
    """End a crawl as the engine does."""
    scheduler.close("shutdown")
    spider = scheduler.spider
    spider.crawler.signals.send_catch_log(signals.spider_closed, spider=spider, reason="shutdown")


@pytest.fixture
def crawler(valkey: Server, key: str) -> Crawler:
    """A crawl on one server."""
    return crawler_at(valkey, key)


@pytest.fixture
def watching(valkey: Server) -> Iterator[redis.Redis]:
    """A client that lists all connections."""
    with valkey.client() as client:
        yield client


def number_of(client: redis.Redis, key: str) -> int:
    """Count the connections of a crawl."""
    return sum(each["name"] == key.replace(":", "-") for each in client.client_list())


def spider_of(crawler: Crawler) -> Spider:
    assert crawler.spider is not None
    return crawler.spider


def test_end_of_a_crawl(crawler: Crawler, watching: redis.Redis, key: str) -> None:
    """The connections of queue, heartbeats and filter are all closed."""
    scheduler = BloomScheduler.from_crawler(crawler)
    scheduler.open(spider_of(crawler))
    assert scheduler.enqueue_request(Request("https://example.com/"))
    assert scheduler.next_request() is not None
    until(lambda: number_of(watching, key) >= 2)
    close(scheduler)
    until(lambda: number_of(watching, key) == 0)
    # They stay open until here: the garbage collector has closed none.
    assert scheduler.df.server is not scheduler.server


def test_end_with_a_single_connection(
    valkey: Server, watching: redis.Redis, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reactor and the heartbeats do not wait for each other: each has a client of its own."""
    crawler = crawler_at(valkey, key, max_connections=1)
    scheduler = BloomScheduler.from_crawler(crawler)
    scheduler.open(spider_of(crawler))
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


def test_end_over_a_cluster(key: str) -> None:
    """The connections to a cluster's nodes are closed, even if REDIS_URL named the cluster."""
    with running_cluster(1) as nodes, nodes[0].client() as watching:
        crawler = crawler_at(nodes[0], key, redis_cls="redis.RedisCluster")
        scheduler = BloomScheduler.from_crawler(crawler)
        scheduler.open(spider_of(crawler))
        until(lambda: number_of(watching, key) >= 2)
        close(scheduler)
        until(lambda: number_of(watching, key) == 0)


def test_refused_start(crawler: Crawler, watching: redis.Redis, key: str) -> None:
    """A dupefilter that refuses to start closes its connections."""
    watching.sadd(f"{{{key}}}:filter", "a fingerprint")
    with pytest.raises(WrongTypeError) as refusal:
        BloomRFPDupeFilter.from_crawler(crawler)
    until(lambda: number_of(watching, key) == 0)
    # The traceback has kept them until here.
    assert refusal.tb is not None


def test_end_under_another_scheduler(crawler: Crawler, watching: redis.Redis, key: str) -> None:
    """The filter's connections are closed; those of scrapy-redis's scheduler are its own."""
    scheduler = Scheduler.from_crawler(crawler)
    scheduler.open(spider_of(crawler))
    assert scheduler.enqueue_request(Request("https://example.com/"))
    assert number_of(watching, key) == 2
    close(scheduler)
    until(lambda: number_of(watching, key) == 1)
    scheduler.server.close()
