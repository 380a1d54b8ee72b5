"""Crawls that store their items in Redis, during which Redis dies, refuses them, or the crawl is stopped.

The items of each page that counts as done are there.
"""

import json
import signal
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from tests.support import pipelines
from tests.support.outcomes import assert_ended_well, complaints_in, tell
from tests.support.pages import star, tree
from tests.support.scenario import (
    LEASE,
    MIDDLE,
    OURS,
    PAGES,
    SLOWER_THAN_SCRAPY,
    Kind,
    Scene,
    asyncio_first,
    keys_of,
    scene,
)
from tests.support.servers import Server
from tests.support.spiders import storing
from tests.support.waiting import until


def piping(path: str) -> Kind:
    """Return the setting that adds an item pipeline."""
    return {"ITEM_PIPELINES": f'{{"{path}": 1}}'}


WAITING = piping("scrapy_bloom.RedisPipeline")
PAUSES = "the item pipeline pauses"


def storing_in(played: Scene, key: str, *kinds: Kind) -> Kind:
    """Return the settings of a crawl that stores an item for each page."""
    played.spider = storing.__file__
    settings: Kind = {"REDIS_ITEMS_KEY": f"{key}:items"}
    for kind in kinds:
        settings |= kind
    return settings


def stored(client: redis.Redis, key: str) -> list[str]:
    """Return the paths of the stored pages."""
    items = map(json.loads, client.lrange(f"{key}:items", 0, -1))
    return [urlsplit(item["url"]).path or "/" for item in items]


@asyncio_first
def test_redis_killed(reactor: Kind, durable: Server, key: str, tmp_path: Path) -> None:
    """Redis is killed and comes back: every item is stored, and each page is acknowledged."""
    with scene(tree(PAGES), tmp_path, durable.url, key) as played, durable.client() as client:
        with played.outage(durable, 2):
            ended = played.crawl(storing_in(played, key, OURS, WAITING, reactor))
        assert set(stored(client, key)) == set(played.site.links)
        assert played.twice == 0
        assert keys_of(client, key) == {f"{key}:items"}
    assert [line for line in complaints_in(ended.log) if PAUSES in line]
    assert_ended_well(ended)


@pytest.mark.parametrize("name", ["StockPipeline", "CopiedPipeline"])
def test_redis_killed_beside_the_stock_pipeline(
    name: str, durable: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control: scrapy-redis's pipeline loses items of pages that count as done, and a warning says so.

    A copy of it in the project loses them as well.
    """
    with scene(tree(PAGES), tmp_path, durable.url, key) as played, durable.client() as client:
        played.moments.when(MIDDLE, lambda _: durable.kill())
        worker = played.start("worker", storing_in(played, key, OURS, piping(f"{pipelines.__name__}.{name}")))
        until(lambda: "Error processing" in played.log("worker"))
        durable.start()
        ended = worker.wait()
        assert f"ITEM_PIPELINES: {pipelines.__name__}.{name} loses the items of an outage" in ended.log
        assert played.missed == set()
        lost = set(played.site.links) - set(stored(client, key))
        assert lost
    tell(capsys, f"Redis killed: scrapy-redis's pipeline lost {len(lost)} of {PAGES} items")


def test_under_another_scheduler(durable: Server, key: str, tmp_path: Path) -> None:
    """Under Scrapy's own scheduler the items wait, too."""
    settings: Kind = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}
    with scene(star(40), tmp_path, durable.url, key) as played, durable.client() as client:
        with played.outage(durable, 1, at=20):
            ended = played.crawl(storing_in(played, key, settings, WAITING))
        assert set(stored(client, key)) == set(played.site.links)
    assert PAUSES in ended.log
    assert_ended_well(ended)


@pytest.mark.parametrize("persists", [pytest.param(True, marks=pytest.mark.long), False])
def test_stopped_in_an_outage(persists: bool, durable: Server, key: str, tmp_path: Path) -> None:
    """Ctrl-C while items wait: their pages are not acknowledged, and the next crawl stores them.

    Redis comes back before the worker leaves, so that it could acknowledge the pages.
    """
    with scene(tree(PAGES), tmp_path, durable.url, key) as played, durable.client() as client:
        settings = storing_in(played, key, OURS, WAITING, LEASE, {"SCHEDULER_PERSIST": persists})
        played.moments.when(MIDDLE, lambda _: durable.kill())
        first = played.start("first", settings)
        until(lambda: PAUSES in played.log("first"))
        first.process.send_signal(signal.SIGINT)
        until(lambda: "this item is not stored" in played.log("first"))
        durable.start()
        ended = first.wait()
        lost = played.fetched.keys() - set(stored(client, key))
        assert lost
        assert "could not leave" not in ended.log
        assert client.zcard(f"{key}:queue") >= len(lost)
        second = played.crawl(settings, "second")
        assert set(stored(client, key)) == set(played.site.links)
    assert ended.stats["finish_reason"] == "shutdown"
    assert second.stats["finish_reason"] == "finished"


def test_redis_refuses_items(own: Server, key: str, tmp_path: Path) -> None:
    """A Redis that refuses the items alone ends the crawl; the next one stores the rest."""
    settings: Kind = {**LEASE, "CONCURRENT_REQUESTS": 4, "SCHEDULER_PERSIST": True}
    with own.client() as client, scene(tree(PAGES), tmp_path, own.url, key, delay=SLOWER_THAN_SCRAPY) as played:

        def permit(permission: str) -> None:
            client.acl_setuser("default", enabled=True, commands=[f"{permission}rpush"], reset=False)

        settings = storing_in(played, key, OURS, WAITING, settings)
        played.moments.when(MIDDLE, lambda _: permit("-"))
        first = played.crawl(settings, "first")
        assert first.stats["finish_reason"] == "bloomfilter_error"
        (ends,) = [line for line in complaints_in(first.log) if "The crawl ends" in line]
        assert f"REDIS_ITEMS_KEY = '{key}:items': Redis refused an item" in ends
        permit("+")
        played.moments.delay = 0
        assert set(stored(client, key)) < set(played.site.links)
        second = played.crawl(settings, "second")
        assert set(stored(client, key)) == set(played.site.links)
    assert_ended_well(second)


FAILED = {"/page/2", "/page/5"}


@pytest.mark.parametrize("keeps", [True, False])
def test_failed_items(keeps: bool, valkey: Server, key: str, tmp_path: Path) -> None:
    """With BLOOMFILTER_RETRY_FAILED the next crawl fetches the pages again whose items failed, and no others.

    By default the pages count as done.
    """
    settings: Kind = {
        "BLOOMFILTER_RETRY_FAILED": keeps,
        "BLOOMFILTER_ALWAYS": r"//[^/]*$",  # the start page
        "SCHEDULER_PERSIST": True,
    }
    with scene(star(13), tmp_path, valkey.url, key) as played:
        settings = storing_in(played, key, OURS, piping(f"{pipelines.__name__}.FailingPipeline"), settings)
        first = played.crawl(settings, "first", FAILS=",".join(FAILED), ITEMS=3)
        before = len(played.site.fetched)
        played.crawl(settings, "second")
        again = {path for _, path in played.site.fetched[before:]}
    assert again - {"/"} == (FAILED if keeps else set())
    # Only pages that count as done lose items.
    assert ("FailingPipeline loses the items of an outage" in first.log) == (not keeps)
    # Three items of a page are one failure.
    assert first.stats.get("bloomfilter/failed", 0) == (len(FAILED) if keeps else 0)
