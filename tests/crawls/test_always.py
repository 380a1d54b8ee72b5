"""Crawls with BLOOMFILTER_ALWAYS: each run fetches the pages once, also if they link to themselves."""

from pathlib import Path

import pytest

from tests.support.scenario import FILTER_ALONE, OURS, Kind, assert_ended_well, scene
from tests.support.servers import Server

FRONT, LISTS, PAGES = "/", {"/list/1", "/list/2"}, {"/page/1", "/page/2"}
# A front page that links to itself, and two lists that link to each other.
SITE = {
    FRONT: [FRONT, *LISTS],
    "/list/1": [FRONT, "/list/2", "/page/1"],
    "/list/2": [FRONT, "/list/1", "/page/2"],
    "/page/1": [FRONT, "/list/1"],
    "/page/2": ["/list/2"],
}
ALWAYS: Kind = {
    "BLOOMFILTER_ALWAYS": r"^http://[^/]+/?$|/list/\d$",
    "SCHEDULER_PERSIST": True,
    # Otherwise a crawl that fetches them again and again would run until the limit of the tests.
    "CLOSESPIDER_PAGECOUNT": 40,
}


@pytest.mark.parametrize("kind", [OURS, FILTER_ALONE], ids=["BloomScheduler", "scrapy-redis's"])
def test_pages_that_link_to_each_other(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """Each of two runs fetches them once, and the other pages only in the first one; the second says so."""
    with scene(SITE, tmp_path, valkey.url, key, delay=0) as played:
        first = played.crawl({**kind, **ALWAYS}, "first")
        assert played.fetched == dict.fromkeys(SITE, 1)
        second = played.crawl({**kind, **ALWAYS}, "second")
        assert played.fetched == {**dict.fromkeys({FRONT, *LISTS}, 2), **dict.fromkeys(PAGES, 1)}
    assert_ended_well(first, second)
    assert "nothing new was fetched" not in first.log
    assert "nothing new was fetched" in second.log
