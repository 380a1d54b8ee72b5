"""A dupefilter and its server: connection, and loss of the filter."""

from collections.abc import Callable
from typing import Any

import pytest
import redis
from scrapy import signals

from scrapy_bloom import BloomFilter, BloomRFPDupeFilter, MismatchError
from tests.support.dupefilters import KEY, WAYS, crawler_of, keys_of, lose, said, seen
from tests.support.in_process import end, start
from tests.support.servers import Server

# The connection.

CONNECTIONS: dict[str, tuple[int, Callable[[Server], dict[str, Any]]]] = {
    "url": (0, lambda server: {"REDIS_URL": server.url}),
    "url-and-db": (5, lambda server: {"REDIS_URL": f"{server.url}/5"}),
    "host-and-port": (0, lambda server: {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": server.port}),
    "port-as-text": (0, lambda server: {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(server.port)}),
    "params": (0, lambda server: {"REDIS_PARAMS": {"host": "127.0.0.1", "port": server.port}}),
    "url-and-params": (3, lambda server: {"REDIS_URL": server.url, "REDIS_PARAMS": {"db": 3}}),
    "db": (4, lambda server: {"REDIS_URL": server.url, "REDIS_DB": 4}),
    "decoded": (0, lambda server: {"REDIS_URL": server.url, "REDIS_DECODE_RESPONSES": True}),
    "resp2": (0, lambda server: {"REDIS_URL": server.url, "REDIS_PARAMS": {"protocol": 2}}),
    "resp3-decoded": (
        0,
        lambda server: {"REDIS_URL": server.url, "REDIS_PARAMS": {"protocol": 3, "decode_responses": True}},
    ),
    "class-by-path": (0, lambda server: {"REDIS_URL": server.url, "REDIS_PARAMS": {"redis_cls": "redis.Redis"}}),
}


@pytest.mark.parametrize(("db", "settings"), CONNECTIONS.values(), ids=CONNECTIONS)
def test_connection(server: Server, key: str, db: int, settings: Callable[[Server], dict[str, Any]]) -> None:
    """The server is found as by scrapy-redis, and a filter's whole life works over each connection."""
    crawler = start({**settings(server), KEY: key, "BLOOMFILTER_CAPACITY": 20})
    first, second = (BloomRFPDupeFilter.from_spider(crawler.spider) for _ in range(2))
    assert not any(seen(first, *range(50)))
    assert all(seen(second, *range(50)))
    with server.client(db=db) as client:
        assert len(keys_of(client, key)) > 2
        second.filter.close()
        first.clear()
        assert keys_of(client, key) == []


# Faults in the middle of a crawl.


def test_a_key_that_was_deleted_while_the_spider_is_idle(valkey: Server, key: str) -> None:
    """Spiders that start over may delete the key: the next check notices it, with all links in the cache."""
    crawler = crawler_of(valkey, **{KEY: key})
    dupefilter = BloomRFPDupeFilter.from_spider(crawler.spider)
    assert seen(dupefilter, 1, 1) == [False, True]
    with valkey.client() as client:
        client.delete(key)
    crawler.signals.send_catch_log(signals.spider_idle, spider=crawler.spider)
    assert seen(dupefilter, 1, 1) == [False, True]
    end(crawler)


def test_each_loss_is_told(valkey: Server, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """The first loss is logged at once; further losses within a minute are counted, and logged at the end."""
    crawler = crawler_of(valkey, **{KEY: key})
    dupefilter = BloomRFPDupeFilter.from_spider(crawler.spider)
    with valkey.client() as client:
        for number in range(3):
            lose(client, key)
            assert seen(dupefilter, number, 10 + number) == [False, False]
            assert len(said(caplog)) == 1
        end(crawler)
        assert not [each for each in keys_of(client, key) if ":call:" in each]
    assert said(caplog)[1:] == [f"{said(caplog)[0]} (2x since the last such line)"]


def test_filter_of_others_in_its_place(server: Server, client: redis.Redis, key: str) -> None:
    """Replaced by a filter of other parameters, it raises if no crawl can be stopped."""
    dupefilter = WAYS["from_settings"](crawler_of(server, **{KEY: key}))
    seen(dupefilter, 1)
    BloomFilter(client, key, capacity=77, flush=True)
    for _ in range(2):
        with pytest.raises(MismatchError, match="77"):
            seen(dupefilter, 2)
