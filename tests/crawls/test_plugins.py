"""Crawls with the add-on of another plugin beside ours, and with a scheduler of the project."""

from pathlib import Path

import pytest

from devtools.crawl_process import Crawl
from tests.support.outcomes import assert_cleared, assert_complete, complaints_in
from tests.support.pages import tree
from tests.support.scenario import Scene, scene
from tests.support.servers import Server
from tests.support.spiders import page_objects
from tests.support.zyte_api import fetching

pytestmark = pytest.mark.crawl

PAGES = tree(40)


def crawl(played: Scene, addon: str, **settings: object) -> Crawl:
    """Crawl to the end; each page is fetched once, and each request goes through the queue, as MessagePack."""
    addons = f'{{"{addon}": 300, "scrapy_bloom.Addon": 500}}'
    settings = {"ADDONS": addons, "SCHEDULER_SERIALIZER": "scrapy_bloom.serializer", **settings}
    crawled = played.crawl(settings)
    assert_cleared(played, crawled)
    assert played.twice == 0
    assert crawled.stats["scheduler/dequeued/redis"] == len(PAGES)
    return crawled


def test_poet(valkey: Server, key: str, tmp_path: Path) -> None:
    """Callbacks with page objects of scrapy-poet crawl every page."""
    with scene(PAGES, tmp_path, valkey.url, key) as played:
        played.spider = page_objects.__file__
        crawled = crawl(played, "scrapy_poet.Addon")
    assert crawled.stats["poet/injector/page_objects.LinksPage"] == len(PAGES)


@pytest.mark.parametrize("name", ["CopiedScheduler", "OldScheduler", "OwnScheduler"])
def test_scheduler_of_the_project(name: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """The log says whether a scheduler uses the filter: a copy of scrapy-redis's does, one with a SET does not."""
    scheduler = f"tests.support.vendored.{name}"
    with valkey.client() as client, scene(PAGES, tmp_path, valkey.url, key) as played:
        crawled = played.crawl(
            {"ADDONS": '{"scrapy_bloom.Addon": 500}', "SCHEDULER": scheduler, "SCHEDULER_PERSIST": True}
        )
        is_ours = client.type(key) == b"hash"
    assert_complete(played, crawled)
    assert is_ours == (name == "CopiedScheduler")
    assert ("scrapy-bloom filters this crawl: " in crawled.log) == is_ours
    assert (f"filters nothing in this crawl: SCHEDULER = '{scheduler}' does not build" in crawled.log) != is_ours
    assert "a queue of its own" not in crawled.log
    assert (complaints_in(crawled.log) == []) == is_ours


def test_zyte_api(valkey: Server, key: str, tmp_path: Path) -> None:
    """Requests that scrapy-zyte-api sends to its API crawl every page."""
    with scene(PAGES, tmp_path, valkey.url, key) as played, fetching(played.site) as address:
        crawl(played, "scrapy_zyte_api.Addon", ZYTE_API_URL=address, ZYTE_API_KEY="a")
    assert {agent for agent, _ in played.site.fetched} == {"api"}
