"""Crawls that lose replies: every page is fetched, and scrapy-redis as it is shows what is lost.

Each page of the sites is linked once, so that one lost request is a page that nobody fetches.
"""

import random
import threading
from pathlib import Path

import pytest

from devtools.crawl_process import Crawl
from tests.support.fault_proxy import CUTS, Place, at_random, proxying
from tests.support.pages import chain, tree
from tests.support.scenario import (
    FILTER_ALONE,
    MIDDLE,
    OURS,
    PAGES,
    STOCK,
    Kind,
    Scene,
    assert_ended_well,
    scene,
)
from tests.support.servers import Server

pytestmark = pytest.mark.crawl


def crawl_with_lost_replies(kind: Kind, valkey: Server, key: str, directory: Path) -> tuple[Crawl, Scene, int]:
    """A crawl with 20 replies to the filter lost; gives how many commands were carried out again."""
    with (
        proxying(valkey.port, "BITFIELD", "SADD") as proxy,
        scene(tree(PAGES), directory, proxy.url, key) as played,
    ):
        # Never two in a row, so that scrapy-redis's one further attempt gets through, and nobody hears of it.
        proxy.plan = iter([None, None, None, Place.AFTER, None, None, Place.REPLY] * 10)
        ended = played.crawl(kind)
        return ended, played, proxy.resent


def test_replies_lost_to_the_filter_alone(valkey: Server, key: str, tmp_path: Path) -> None:
    """The filter under scrapy-redis's Scheduler: no reply that is lost loses a page, and each is counted."""
    ended, played, resent = crawl_with_lost_replies(FILTER_ALONE, valkey, key, tmp_path)
    assert played.missed == set()
    assert played.twice == 0
    assert_ended_well(ended)
    assert ended.stats["bloomfilter/ambiguous"] == resent == 20


@pytest.mark.long
def test_replies_lost_to_scrapy_redis(valkey: Server, key: str, tmp_path: Path) -> None:
    """The control: scrapy-redis ends its crawl well, and has missed pages."""
    ended, played, _ = crawl_with_lost_replies(STOCK, valkey, key, tmp_path)
    assert played.missed
    assert_ended_well(ended)


def test_bad_line(valkey: Server, key: str, tmp_path: Path) -> None:
    """Whatever the scheduler sends may be cut anywhere, the signs of life included: no page is lost."""
    with proxying(valkey.port) as proxy, scene(tree(PAGES), tmp_path, proxy.url, key) as played:
        # Not while it starts, which has another way to wait.
        parameters = at_random(random.Random(5), CUTS, 16, 15)
        played.moments.when(2, lambda _: setattr(proxy, "plan", parameters))
        ended = played.crawl(OURS)
        assert played.missed == set()
        assert proxy.faults == 16
    assert_ended_well(ended)


@pytest.mark.long
def test_clients_killed(valkey: Server, key: str, tmp_path: Path) -> None:
    """All connections are killed every 100 ms for 3 seconds, and no page is lost."""
    killed = 0
    stop = threading.Event()

    def kill() -> None:
        nonlocal killed
        with valkey.client() as client:
            for _ in range(30):
                killed += client.client_kill_filter(_type="normal", skipme=True)
                stop.wait(0.1)

    killer = threading.Thread(target=kill)
    with scene(chain(PAGES), tmp_path, valkey.url, key) as played:
        played.moments.when(MIDDLE, lambda _: killer.start())
        ended = played.crawl(OURS)
        stop.set()
        killer.join()
        assert played.missed == set()
    assert killed >= 5
    assert_ended_well(ended)
