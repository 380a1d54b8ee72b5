"""Crawls in several partitions: complete, as in one, on a server or a cluster, and stored with their number."""

import re
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from devtools.crawl_process import Crawl
from scrapy_bloom.queue.keys import partition_keys
from scrapy_bloom.transport.connect import tagged
from tests.crawls.test_failed_pages import KEEPS
from tests.crawls.test_items import WAITING, stored, storing_in
from tests.support.clusters import running_cluster
from tests.support.outcomes import assert_ended_well, complaints_in
from tests.support.pages import linked, star, tree
from tests.support.scenario import MIDDLE, OURS, PAGES, Kind, keys_of, scene
from tests.support.servers import Server

PARTED: Kind = {**OURS, "BLOOMFILTER_PARTITIONS": 3}
# One connection for three partitions, too.
DECODING: Kind = {"REDIS_PARAMS": '{"decode_responses": true, "max_connections": 1}'}


def test_every_page_once(server: Server, key: str, tmp_path: Path) -> None:
    """Two workers fetch each page once, store its item, count each repeat, and leave no key."""
    small: Kind = {"BLOOMFILTER_CAPACITY": 30, **DECODING}
    with server.client() as client, scene(linked(PAGES), tmp_path, server.url, key, delay=0) as played:
        played.site.on["/"] = lambda _: played.opened("left", "right")
        crawls = played.crawl_by("left", "right", kind=storing_in(played, key, PARTED, WAITING, small))
        # Both workers start with the first page.
        assert played.fetched == dict.fromkeys(played.site.links, 1)
        assert sorted(stored(client, key)) == sorted(played.site.links)
        assert keys_of(client, key) == {f"{key}:items"}
        repeats = played.site.repeats + 1
    assert_ended_well(*crawls)
    assert [complaints_in(ended.log) for ended in crawls] == [[], []]
    assert sum(ended.stats["bloomfilter/added"] for ended in crawls) == PAGES
    assert sum(ended.stats["dupefilter/filtered"] for ended in crawls) == repeats
    assert [ended.stats["bloomfilter/count"] for ended in crawls] == [PAGES, PAGES]


def test_master_killed(key: str, tmp_path: Path) -> None:
    """Each of three masters has two of six partitions; one dies, and comes back with its data.

    Two workers fetch each page once, log the partitions that are away once, and leave no key.
    """
    settings, at, found = {**OURS, "BLOOMFILTER_PARTITIONS": 6}, f"{{{key}}}", list[int]()
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(3, "--appendonly", "yes", "--appendfsync", "always"))
        played = stack.enter_context(scene(linked(PAGES), tmp_path, cluster.url, at))
        clients = [stack.enter_context(node.client()) for node in cluster]
        owners = [cluster.owner_of(queue) for queue, _ in partition_keys(f"{at}:queue", at, 6)]
        played.site.on["/"] = lambda _: played.opened("left", "right")
        played.moments.when(
            MIDDLE - 1, lambda _: found.extend(sum(1 for _ in client.scan_iter("*:crawl")) for client in clients)
        )
        with played.outage(cluster[1], 2):
            crawls = played.crawl_by("left", "right", kind=settings)
        assert played.fetched == dict.fromkeys(played.site.links, 1)
        assert [client.dbsize() for client in clients] == [0, 0, 0]
    assert_ended_well(*crawls)
    assert found == [2, 2, 2]
    for ended in crawls:
        unreachable, back = complaints_in(ended.log)
        (named,) = re.findall(r"Redis is unreachable \(partitions? ([\d, ]+): ", unreachable)
        assert {owners[int(number)] for number in named.split(", ")} == {cluster[1]}
        assert "Redis is back" in back


@pytest.mark.parametrize("index", [0, 2])
def test_lost_while_no_worker_runs(index: int, valkey: Server, key: str, tmp_path: Path) -> None:
    """The next worker reports the loss of any partition. That of the first one ends the crawl, which begins anew."""
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        worker = played.start("stopped", PARTED, SCHEDULER_PERSIST=True)
        played.moments.when(MIDDLE, lambda _: worker.process.send_signal(signal.SIGINT))
        worker.wait()
        own = partition_keys(f"{key}:queue", key, 3)[index]
        beginnings = tuple(f"{tagged(each)}:" for each in own)
        client.delete(*(name for name in keys_of(client, key) if name in own or name.startswith(beginnings)))
        ended = played.crawl(PARTED, "resumed")
        assert bool(played.missed) == bool(index)
        assert keys_of(client, key) == set()
    assert "are gone" in ended.log


def test_stopped_and_resumed(valkey: Server, key: str, tmp_path: Path) -> None:
    """A stopped crawl goes on with its number of partitions alone; the next run fetches failed pages, or all."""
    settings: Kind = {**PARTED, **KEEPS}
    with valkey.client() as client, scene(star(PAGES), tmp_path, valkey.url, key) as played:
        pages = dict.fromkeys(played.site.links, 1)
        asked: dict[str, Counter[str]] = {}

        def crawl(name: str, **changed: object) -> Crawl:
            before = len(played.site.paths)
            ended = played.crawl(settings, name, **changed)
            asked[name] = Counter(played.site.paths[before:])
            return ended

        worker = played.start("stopped", settings)
        played.moments.when(MIDDLE, lambda _: worker.process.send_signal(signal.SIGINT))
        worker.wait()
        asked["stopped"] = Counter(played.site.paths)
        waiting = sum(client.zcard(queue) for queue, _ in partition_keys(f"{key}:queue", key, 3))
        refused = crawl("refused", BLOOMFILTER_PARTITIONS=2)
        failed = dict.fromkeys(sorted(pages.keys() - asked["stopped"].keys())[::5], 1)
        played.site.answers = dict.fromkeys(failed, 503)
        resumed = crawl("resumed", RETRY_TIMES=0)
        played.site.answers = {}
        again = crawl("again")
        fresh = crawl("fresh", SCHEDULER_FLUSH_ON_START=True, SCHEDULER_PERSIST=False)
        assert keys_of(client, key) == set()
    assert refused.exit_code == 1
    assert refused.log.splitlines()[-1] == (
        f"scrapy_bloom: BLOOMFILTER_PARTITIONS = 2: the crawl in the queue '{key}:queue' has 3; set that "
        "number, also to delete the crawl by `scrapy bloom clear SPIDER --with-queue --yes`"
    )
    assert f"Resuming crawl ({waiting} requests scheduled)" in resumed.log
    assert f"Queued {len(failed)} failed requests of earlier runs again" in again.log
    assert asked["stopped"] + asked["resumed"] == pages
    assert asked["again"] == failed
    assert asked["fresh"] == pages
    assert asked["refused"] == {}
    assert_ended_well(resumed, again, fresh)
