"""The simple actions in a cluster, with clients that decode replies."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from scrapy_bloom import BloomFilter
from tests.support import command
from tests.support.clusters import cluster_client, running_cluster
from tests.support.live_worker import LiveWorker
from tests.support.servers import Server


@pytest.fixture(scope="module")
def node() -> Iterator[Server]:
    """A node of a cluster of two."""
    with running_cluster(2) as nodes:
        yield nodes[0]


@pytest.fixture
def cluster(node: Server) -> Iterator[Any]:
    """A client of the cluster."""
    with cluster_client(node) as client:
        yield client


def test_all(cluster: Any, node: Server, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A filter and a queue in one slot are shown, checked, changed and deleted."""
    filter_key = f"{{{key}}}:dupefilter"
    worker = LiveWorker(cluster, key, filter_key)
    worker.push(b"one", b"two")
    cluster.zadd(worker.queue.keys.dead_letters, {"letter": 0})
    url = f"redis+cluster://127.0.0.1:{node.port}"
    place = ("--key", filter_key, "--queue", key, "--redis-url", url, "-s", 'REDIS_PARAMS={"decode_responses": true}')

    def told(action: str, *arguments: str) -> dict[str, Any]:
        assert command.call(action, *arguments, *place, "--json") == 0, capsys.readouterr().err
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    info = told("info")
    assert (info["server"].startswith("the cluster of "), info["count"]) == (True, 2)
    assert (info["queues"][0]["waiting"], info["queues"][0]["dead_letters"]) == (2, 1)
    assert told("requeue")["matching"] == 1
    assert cluster.zcard(key) == 3
    worker.leave()
    assert told("clear", "--with-queue", "--yes")["deleted"]
    assert not [*cluster.scan_iter(f"*{key}*")]


def test_check_and_forget(cluster: Any, node: Server, key: str) -> None:
    """A page is found and forgotten, in any slot of its filter."""
    bloom = BloomFilter(cluster, key, capacity=100, cache_size=0)
    bloom.add("https://example.com/")
    place = ("--key", key, "--redis-url", f"redis+cluster://127.0.0.1:{node.port}")
    assert command.call("check", "https://example.com/", *place) == 0
    assert command.call("forget", "https://example.com/", *place) == 0
    assert command.call("check", "https://example.com/", *place) == 1
    assert bloom.add("https://example.com/")


def test_two_slots(cluster: Any, node: Server, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A queue and a filter in different slots are not deleted together: the key to set is named."""
    cluster.zadd(key, {"request": 0})
    BloomFilter(cluster, f"{key}:elsewhere", capacity=100)
    place = ("--key", f"{key}:elsewhere", "--queue", key, "--redis-url", f"redis+cluster://127.0.0.1:{node.port}")
    assert command.call("clear", *place, "--with-queue", "--yes") == 2
    assert f"set SCHEDULER_DUPEFILTER_KEY = '{{{key}}}:dupefilter'" in capsys.readouterr().err
    assert (cluster.exists(f"{key}:elsewhere"), cluster.zcard(key)) == (1, 1)
