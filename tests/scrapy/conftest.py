"""Crawlers in the tests' own process, without an engine that would poll again."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import BloomScheduler
from tests.support.in_process import ShopSpider, crawl_settings, start
from tests.support.kinds import Place
from tests.support.servers import Server


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Assert that no heartbeat thread leaks: it would add round trips to a later test."""
    yield
    assert [thread.name for thread in threading.enumerate() if "heartbeat" in thread.name] == []


@pytest.fixture
def server(valkey: Server) -> Server:
    """Valkey alone: the other folders compare the scripts and commands on each kind of server."""
    return valkey


@pytest.fixture
def place(request: pytest.FixtureRequest, valkey: Server) -> Place:
    """Valkey, or the kind of server that a test chooses by the name in its URL."""
    kind: str | None = getattr(request, "param", None)
    if kind is None:
        return Place(valkey.url, valkey.client)
    of_kind: Callable[[str], Place] = request.getfixturevalue("places")
    return of_kind(kind)


@pytest.fixture
def opened(place: Place, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Opens schedulers of one crawl with real crawlers, in a directory of this test's own."""
    monkeypatch.chdir(tmp_path)
    settings = crawl_settings(place.url, key)
    schedulers = []

    def open_one(
        scheduler_class: type[Scheduler] = BloomScheduler,
        *,
        spider_name: str = "shop",
        spidercls: type[Spider] = ShopSpider,
        **further: object,
    ) -> Any:
        crawler = start({**settings, **further}, spider_name, spidercls)
        scheduler = scheduler_class.from_crawler(crawler)
        schedulers.append(scheduler)
        scheduler.open(crawler.spider)
        return scheduler

    yield open_one
    # A single attempt: a test may have taken the server away.
    monkeypatch.setattr("scrapy_bloom.scheduler.LAST_TRY_SECONDS", 0)
    for scheduler in schedulers:
        if getattr(scheduler, "df", None):  # its start was not refused
            scheduler.close("finished")
