"""A server that comes back without what was written last, as a replica that is promoted may: nothing is missed.

Where one server has filter and queue, it loses of both what belongs together: what the filter forgets is fetched again.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from devtools.spiders.links import LinksSpider
from scrapy_bloom.storage.filter_keys import shard_key
from tests.support.clusters import running_cluster
from tests.support.pages import tree
from tests.support.scenario import LEASE, MIDDLE, OURS, PAGES, Kind, Scene, assert_ended_well, scene, tell
from tests.support.servers import Server, running

pytestmark = pytest.mark.crawl

# When the server's data are saved, and when it comes back with them.
SAVED = 15
LOST = MIDDLE
COMMON: Kind = {**OURS, **LEASE, "CONCURRENT_REQUESTS": 4, "BLOOMFILTER_ERROR_RATE": 1e-12}
CLUSTER: Kind = {"REDIS_PARAMS": json.dumps({"redis_cls": "redis.RedisCluster"})}
# The slots of each of two nodes.
HALF = 8_192


@pytest.fixture
def nodes() -> Iterator[list[Server]]:
    """A cluster of two nodes."""
    with running_cluster(2) as nodes:
        yield nodes


def half_of(key: str) -> int:
    """Return which of the two nodes has a key."""
    return int(key_slot(key.encode())) // HALF


def roll_back(server: Server) -> None:
    """Kill a server, and start it again with what it has saved."""
    server.kill()
    server.start()


def crawl_with_rollback(server: Server, url: str, key: str, directory: Path, **settings: Any) -> Scene:
    """A crawl whose queue is rolled back in the middle, with all that its server has."""
    with server.client() as client, scene(tree(PAGES), directory, url, key, delay=0.05) as played:
        played.moments.when(SAVED, lambda _: client.save())
        played.moments.when(LOST, lambda _: roll_back(server))
        assert_ended_well(played.crawl({**COMMON, **settings}))
    return played


def test_server(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One server has all keys in one stream of writes: whatever end of it is lost, every page is fetched."""
    with running("valkey") as server:
        played = crawl_with_rollback(server, server.url, key, tmp_path)
    tell(capsys, f"rollback of a server: missed {len(played.missed)} of {PAGES}, {played.twice} twice")
    assert played.missed == set()
    assert played.twice > 0


def in_half(half: int, template: str) -> str:
    """Return a key, made of a template with a place for a number, that is in this half of the slots."""
    names = (template.format(number) for number in range(100))
    return next(name for name in names if half_of(name % {"spider": LinksSpider.name}) == half)


def test_cluster(nodes: list[Server], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So has a node of a cluster by the default key of the filter, also where that of a server would be elsewhere."""
    half = 1 - half_of(shard_key(f"{LinksSpider.name}:dupefilter", 0, 0))
    settings = {"SCHEDULER_QUEUE_KEY": in_half(half, key + ":%(spider)s:{}"), "SCHEDULER_DUPEFILTER_KEY": ""}
    played = crawl_with_rollback(nodes[half], nodes[half].url, key, tmp_path, **CLUSTER, **settings)
    tell(capsys, f"rollback of a node: missed {len(played.missed)} of {PAGES}, {played.twice} twice")
    assert played.missed == set()
    assert played.twice > 0


@pytest.mark.long
def test_cluster_with_filter_elsewhere(
    nodes: list[Server], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control: another node keeps in the filter what the queue has lost, and its pages are missed."""
    half = half_of(f"{key}:queue")
    elsewhere = in_half(1 - half, f"{{{{{key}:{{}}}}}}:filter")
    settings = {"SCHEDULER_DUPEFILTER_KEY": elsewhere}
    played = crawl_with_rollback(nodes[half], nodes[half].url, key, tmp_path, **CLUSTER, **settings)
    tell(capsys, f"rollback of the queue's node alone: missed {len(played.missed)} of {PAGES}, {played.twice} twice")
    assert played.missed
