"""Crawls that lose replies: every page is fetched, and stock scrapy-redis shows the loss.

Each page is linked once, so that one lost request is one missed page.
"""

import random
from pathlib import Path

import pytest

from tests.support.faults import CUTS, Place, at_random, proxying
from tests.support.pages import tree
from tests.support.scenario import FILTER_ALONE, OURS, PAGES, STOCK, Kind, assert_complete, assert_ended_well, scene
from tests.support.servers import Server


@pytest.mark.parametrize("kind", [FILTER_ALONE, pytest.param(STOCK, marks=pytest.mark.long)], ids=["ours", "stock"])
def test_replies_lost_to_the_filter_alone(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """Under scrapy-redis's Scheduler no lost reply of the filter loses a page; its own filter misses pages."""
    with proxying(valkey.port, "EVALSHA", "SADD") as proxy, scene(tree(PAGES), tmp_path, proxy.url, key) as played:
        # Never two in a row: scrapy-redis retries once, so the loss stays unnoticed.
        proxy.plan = iter([None, None, None, Place.AFTER, None, None, Place.REPLY] * 10)
        ended = played.crawl(kind)
        assert bool(played.missed) == (kind is STOCK)
        if kind is FILTER_ALONE:
            assert (played.twice, proxy.faults) == (0, 20)
    assert_ended_well(ended)


def test_bad_line(valkey: Server, key: str, tmp_path: Path) -> None:
    """The connection is cut at arbitrary points, heartbeats included: no page is lost."""
    with proxying(valkey.port) as proxy, scene(tree(PAGES), tmp_path, proxy.url, key) as played:
        # Not during the start, which waits in another way.
        parameters = at_random(random.Random(5), CUTS, 8, 3)
        played.moments.when(2, lambda _: setattr(proxy, "plan", parameters))
        ended = played.crawl(OURS)
        assert_complete(played, ended)
        assert proxy.faults == 8
