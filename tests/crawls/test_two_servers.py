"""Crawls with the filter on another server than the queue."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.servers import free_port
from devtools.waiting import until
from tests.support.outages import Outage
from tests.support.pages import tree
from tests.support.scenario import FILTER_ALONE, LEASE, MIDDLE, OURS, PAGES, assert_ended_well, keys_of, scene
from tests.support.servers import Server, running

pytestmark = pytest.mark.crawl

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def servers_of_both() -> Iterator[dict[str, Server]]:
    """The server of the queue and that of the filter; both keep all data when they are killed."""
    with running("valkey", *DURABLE) as queue, running("valkey", *DURABLE) as kept:
        yield {"queue": queue, "filter": kept}


def number_of_lines(log: str, part: str) -> int:
    return sum(part in line for line in log.splitlines())


@pytest.mark.parametrize("killed", ["queue", "filter"])
def test_one_killed(killed: str, servers_of_both: dict[str, Server], key: str, tmp_path: Path) -> None:
    """One of them is killed and comes back: the crawl pauses once, names the server, and fetches every page."""
    queue, kept = servers_of_both["queue"], servers_of_both["filter"]
    with scene(tree(PAGES), tmp_path, queue.url, key) as played:
        away = Outage(servers_of_both[killed], 2)
        played.moments.when(MIDDLE, away)
        ended = played.crawl(OURS, BLOOMFILTER_REDIS_URL=kept.url)
        away.join()
        assert played.missed == set()
        assert played.twice == 0
    assert_ended_well(ended)
    subjects = {"queue": "Redis", "filter": "The filter's server"}
    for name, subject in subjects.items():
        times = int(name == killed)
        assert number_of_lines(ended.log, f"{subject} is unreachable (ConnectionError") == times
        assert number_of_lines(ended.log, f"{subject} is back after") == times
    for server in (queue, kept):
        with server.client() as client:
            assert keys_of(client, key) == set()


def test_filter_is_hard_to_reach(valkey: Server, key: str, tmp_path: Path) -> None:
    """A start without the filter's server is refused, and the last line names its setting."""
    with scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        url = f"redis://127.0.0.1:{free_port()}"
        ended = played.crawl(OURS, BLOOMFILTER_REDIS_URL=url, BLOOMFILTER_RETRY_TIMEOUT=0.1)
    assert "check BLOOMFILTER_REDIS_URL, restart Redis" in ended.log.splitlines()[-1]


def test_scheduler_of_scrapy_redis(servers_of_both: dict[str, Server], key: str, tmp_path: Path) -> None:
    """Under scrapy-redis's Scheduler the filter has its own server, too, and the end leaves no key on either."""
    with scene(tree(PAGES), tmp_path, servers_of_both["queue"].url, key, delay=0) as played:
        ended = played.crawl(FILTER_ALONE, BLOOMFILTER_REDIS_URL=servers_of_both["filter"].url)
        assert played.missed == set()
    assert_ended_well(ended)
    for server in servers_of_both.values():
        with server.client() as client:
            assert keys_of(client, key) == set()


def test_flush_and_death(servers_of_both: dict[str, Server], key: str, tmp_path: Path) -> None:
    """A worker is killed, and the next one starts over: the filter is emptied with the queue, every page is fetched."""
    queue, kept = servers_of_both["queue"], servers_of_both["filter"]
    more: dict[str, Any] = {**LEASE, "BLOOMFILTER_REDIS_URL": kept.url, "SCHEDULER_PERSIST": True}
    with scene(tree(PAGES), tmp_path, queue.url, key) as played:
        first = played.start("first", OURS, **more)
        until(lambda: len(first.received) > MIDDLE)
        first.kill()
        before = set(first.received)
        ended = played.crawl(OURS, "second", SCHEDULER_FLUSH_ON_START=True, **more)
        assert {*ended.fetched} >= before
        assert played.missed == set()
        third = played.crawl(OURS, "third", **more)
        assert third.fetched == []
    assert_ended_well(ended)
    with kept.client() as of_filter, queue.client() as of_queue:
        assert of_filter.exists(key)
        assert not of_queue.exists(key)
