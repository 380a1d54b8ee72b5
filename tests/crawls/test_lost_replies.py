"""Crawls that lose replies: every page is fetched, and stock scrapy-redis shows the loss.

Each page is linked once, so that one lost request is one missed page.
"""

import random
import threading
from pathlib import Path

import pytest

from devtools.crawl_process import Crawl
from devtools.proxy.faults import CUTS, Place, at_random, proxying
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
    """A crawl with 20 lost replies of the filter; return their number."""
    with (
        proxying(valkey.port, "EVALSHA", "SADD") as proxy,
        scene(tree(PAGES), directory, proxy.url, key) as played,
    ):
        # Never two in a row: scrapy-redis retries once, so the loss stays unnoticed.
        proxy.plan = iter([None, None, None, Place.AFTER, None, None, Place.REPLY] * 10)
        ended = played.crawl(kind)
        return ended, played, proxy.faults


def test_replies_lost_to_the_filter_alone(valkey: Server, key: str, tmp_path: Path) -> None:
    """Under scrapy-redis's Scheduler no lost reply of the filter loses a page."""
    ended, played, faults = crawl_with_lost_replies(FILTER_ALONE, valkey, key, tmp_path)
    assert played.missed == set()
    assert played.twice == 0
    assert_ended_well(ended)
    assert faults == 20


@pytest.mark.long
def test_replies_lost_to_scrapy_redis(valkey: Server, key: str, tmp_path: Path) -> None:
    """The control: scrapy-redis ends its crawl well, and has missed pages."""
    ended, played, _ = crawl_with_lost_replies(STOCK, valkey, key, tmp_path)
    assert played.missed
    assert_ended_well(ended)


def test_bad_line(valkey: Server, key: str, tmp_path: Path) -> None:
    """The connection is cut at arbitrary points, heartbeats included: no page is lost."""
    with proxying(valkey.port) as proxy, scene(tree(PAGES), tmp_path, proxy.url, key) as played:
        # Not during the start, which waits in another way.
        parameters = at_random(random.Random(5), CUTS, 16, 3)
        played.moments.when(2, lambda _: setattr(proxy, "plan", parameters))
        ended = played.crawl(OURS)
        assert played.missed == set()
        assert proxy.faults == 16
    assert_ended_well(ended)


@pytest.mark.long
def test_clients_killed(valkey: Server, key: str, tmp_path: Path) -> None:
    """All connections are killed every 100 ms for 6 seconds, and no page is lost."""
    killed = 0
    stop = threading.Event()

    def kill() -> None:
        nonlocal killed
        with valkey.client() as client:
            for _ in range(60):
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
