"""A server returns without its latest writes, as a promoted replica may: no page is missed.

A server with filter and queue loses the same time span of both: requests that the filter forgets are fetched again.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from devtools.spiders.links import LinksSpider
from tests.support.clusters import running_cluster
from tests.support.pages import tree
from tests.support.scenario import LEASE, MIDDLE, OURS, PAGES, Kind, Scene, assert_ended_well, scene, tell
from tests.support.servers import Server, running

pytestmark = pytest.mark.crawl

# When the server's data are saved, and when it returns with them.
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
    """Kill a server, and start it again with its saved data."""
    server.kill()
    server.start()


def crawl_with_rollback(server: Server, url: str, key: str, directory: Path, **settings: Any) -> Scene:
    """A crawl during which the queue is rolled back, with all other data of its server."""
    with server.client() as client, scene(tree(PAGES), directory, url, key, delay=0.05) as played:
        played.moments.when(SAVED, lambda _: client.save())
        played.moments.when(LOST, lambda _: roll_back(server))
        assert_ended_well(played.crawl({**COMMON, **settings}))
    return played


def test_server(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A single server writes all keys in one stream: if its tail is lost, no page is."""
    with running("valkey") as server:
        played = crawl_with_rollback(server, server.url, key, tmp_path)
    tell(capsys, f"rollback of a server: missed {len(played.missed)} of {PAGES}, {played.twice} twice")
    assert played.missed == set()
    assert played.twice > 0


def in_half(half: int, template: str) -> str:
    """Return a key in this half of the slots, made of a template with a place for a number."""
    names = (template.format(number) for number in range(100))
    return next(name for name in names if half_of(name % {"spider": LinksSpider.name}) == half)


def test_cluster(nodes: list[Server], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a cluster the default key keeps filter and queue on one node."""
    half = 1 - half_of(f"{LinksSpider.name}:dupefilter")
    settings = {"SCHEDULER_QUEUE_KEY": in_half(half, key + ":%(spider)s:{}"), "SCHEDULER_DUPEFILTER_KEY": ""}
    played = crawl_with_rollback(nodes[half], nodes[half].url, key, tmp_path, **CLUSTER, **settings)
    tell(capsys, f"rollback of a node: missed {len(played.missed)} of {PAGES}, {played.twice} twice")
    assert played.missed == set()
    assert played.twice > 0
