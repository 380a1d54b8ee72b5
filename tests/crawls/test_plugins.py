"""Crawls with the add-on of another plugin beside ours."""

from pathlib import Path

import pytest

from devtools.crawl_process import Crawl
from tests.support.outcomes import assert_cleared
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


def test_zyte_api(valkey: Server, key: str, tmp_path: Path) -> None:
    """Requests that scrapy-zyte-api sends to its API crawl every page."""
    with scene(PAGES, tmp_path, valkey.url, key) as played, fetching(played.site) as address:
        crawl(played, "scrapy_zyte_api.Addon", ZYTE_API_URL=address, ZYTE_API_KEY="a")
    assert {agent for agent, _ in played.site.fetched} == {"api"}
