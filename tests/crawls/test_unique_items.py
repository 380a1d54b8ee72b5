"""Crawls whose items repeat: each is stored, and once, unless a worker dies or Redis loses data.

The number of a page modulo ten is the key of its item.
"""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import CUTS, Place, proxying
from tests.support.outcomes import assert_ended_well, complaints_in
from tests.support.pages import star, tree
from tests.support.scenario import (
    FILTER_ALONE,
    LEASE,
    MIDDLE,
    OURS,
    PAGES,
    SCRAPY,
    SLOWER_THAN_SCRAPY,
    Kind,
    Scene,
    asyncio_first,
    keys_of,
    scene,
)
from tests.support.servers import Server
from tests.support.spiders import numbered
from tests.support.waiting import until

NUMBERS = 10
EARLIER, LATER, ANOTHER = (f"{numbered.__name__}.{kind}" for kind in ("Earlier", "Later", "Another"))
UNIQUE = "scrapy_bloom.UniqueItemsPipeline"
ADDON: Kind = {"ADDONS": '{"scrapy_bloom.Addon": 500}', "DUPEFILTER_CLASS": None}
# Scrapy alone, with the pipeline.
ALONE: Kind = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}
# One page after another, in the order of their links.
ONE_BY_ONE: Kind = {"CONCURRENT_REQUESTS": 1}


class Items:
    """The settings of crawls with items, and the stored ones."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "stored.jsonl"

    def settings(self, *kinds: Kind) -> Kind:
        """Return the settings of a crawl, with a pipeline before and one behind."""
        found: Kind = {
            "ITEM_PIPELINES": json.dumps({EARLIER: 1, UNIQUE: 2, LATER: 3}),
            "BLOOMFILTER_ITEM_KEY": "key",
            "NUMBERS": NUMBERS,
            "STORED": self.file,
        }
        for kind in kinds:
            found |= kind
        return found

    @property
    def stored(self) -> Counter[int]:
        """How often each number is stored."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return Counter(json.loads(line)["number"] for line in lines)


@pytest.fixture
def items(tmp_path: Path) -> Items:
    return Items(tmp_path)


@pytest.fixture
def played(request: pytest.FixtureRequest, key: str, tmp_path: Path) -> Iterator[Scene]:
    """Crawls of a site with a page for each of 40 items."""
    url = request.getfixturevalue("valkey").url
    with scene(star(40), tmp_path, url, key, delay=0) as played:
        played.spider = numbered.__file__
        yield played


# Claims that outlast each test.
FOREVER: Kind = {"BLOOMFILTER_LEASE": 86_400}
# The pages whose items have the same key. Which one comes first depends on the scheduler.
FIVES = "/page/5,/page/15,/page/25,/page/35"
EACH_ONCE = dict.fromkeys(range(NUMBERS), 1)


@pytest.mark.parametrize(
    "kind",
    [OURS, FILTER_ALONE, SCRAPY, ALONE, ADDON],
    ids=["scrapy-bloom", "scrapy-redis", "scrapy", "alone", "addon"],
)
def test_each_item_once(kind: Kind, played: Scene, items: Items, valkey: Server, key: str) -> None:
    """An item is stored once, in two runs that both fetch all pages, and a repeat is no warning.

    The filter alone stays, though both runs start over.
    """
    settings = items.settings(kind, {"SCHEDULER_FLUSH_ON_START": True, "LOG_LEVEL": "INFO"})
    first, second = played.crawl(settings, "first"), played.crawl(settings, "second")
    assert items.stored == EACH_ONCE
    assert_ended_well(first, second)
    reasons = "item_dropped_reasons_count/RepeatedItem"
    assert [ended.stats[reasons] for ended in (first, second)] == [30, 40]
    assert [ended.stats.get("item_scraped_count") for ended in (first, second)] == [10, None]
    assert "Dropped" not in first.log
    with valkey.client() as client:
        assert f"{key}:items:dupefilter" in keys_of(client, key)


def test_two_workers(valkey: Server, key: str, items: Items, tmp_path: Path) -> None:
    """Of the equal items of two workers one is stored."""
    with scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = numbered.__file__
        ended = played.crawl_by("left", "right", kind=items.settings(OURS, {"NUMBERS": 40}))
        assert items.stored == dict.fromkeys(range(40), 1)
    assert_ended_well(*ended)


def test_killed_with_a_claim(played: Scene, items: Items) -> None:
    """A worker is killed before it has stored an item: its page is fetched again, and the item is stored."""
    settings = items.settings(OURS, LEASE, ONE_BY_ONE, {"SCHEDULER_PERSIST": True, "DEADLY": FIVES})
    assert played.crawl(settings, "killed").exit_code == -signal.SIGKILL
    assert items.stored[5] == 0
    # Without the page itself, the equal items of other pages would be stored.
    heir = played.crawl({**settings, "NUMBERS": 1000}, "heir")
    assert items.stored[5] == 1
    assert_ended_well(heir)


@pytest.mark.parametrize("end", ["STORED", "DROPPED", "FAILED", "killed"])
def test_equal_item_in_progress(end: str, played: Scene, items: Items) -> None:
    """An item waits for an equal one of another worker, and is stored if that one is not."""
    settings = items.settings(ALONE, {"BLOOMFILTER_LEASE": 2} if end == "killed" else FOREVER)
    ends: Kind = {end: FIVES} if end in ("DROPPED", "FAILED") else {}
    worker = played.start("worker", {**settings, **ends, "SLOW": FIVES})
    until(lambda: items.file.with_suffix(".held").exists() and items.stored.total() == NUMBERS - 1)
    other = played.start("other", settings)
    until(lambda: played.log("other").count("was seen") >= 36)
    assert items.stored.total() == NUMBERS - 1
    assert other.process.poll() is None
    if end == "killed":
        worker.process.kill()
    items.file.with_suffix(".freed").touch()
    ended = [other.wait(), worker.wait()]
    assert items.stored == EACH_ONCE
    assert_ended_well(*ended[: 2 if end in ("STORED", "DROPPED") else 1])


@pytest.mark.parametrize("what", ["DROPPED", "FAILED"])
def test_later_pipeline_refuses(what: str, played: Scene, items: Items) -> None:
    """An item that a later pipeline drops, or at which it fails, does not count: a later equal one is stored."""
    ended = played.crawl(items.settings(OURS, ONE_BY_ONE, FOREVER, {what: "/page/5"}))
    assert items.stored == EACH_ONCE
    reasons = "item_dropped_reasons_count"
    assert ended.stats[f"{reasons}/RepeatedItem"] == 29
    assert ended.stats.get(f"{reasons}/DropItem", 0) == (what == "DROPPED")


@pytest.mark.parametrize("place", [*CUTS, Place.STALL, Place.LATE])
def test_lost_replies(place: Place, key: str, items: Items, tmp_path: Path, valkey: Server) -> None:
    """Every third command of the pipeline fails: each item is stored once."""
    with proxying(valkey.port, "EVALSHA") as proxy, scene(star(20), tmp_path, proxy.url, key, delay=0) as played:
        played.spider = numbered.__file__
        worker = played.start("worker", items.settings(ALONE, FOREVER, {"REDIS_PARAMS": '{"socket_timeout": 0.2}'}))
        until(lambda: "Spider opened" in played.log("worker"))
        proxy.fail(*[None, None, place] * 15)
        ended = worker.wait()
        assert proxy.faults > 5
    assert items.stored == EACH_ONCE
    assert_ended_well(ended)


@asyncio_first
def test_redis_killed(reactor: Kind, durable: Server, key: str, items: Items, tmp_path: Path) -> None:
    """Redis is killed and comes back: items wait meanwhile, and each is stored once."""
    with scene(tree(PAGES), tmp_path, durable.url, key) as played:
        played.spider = numbered.__file__
        with played.outage(durable, 2):
            ended = played.crawl(items.settings(OURS, reactor, {"NUMBERS": 100}))
        assert items.stored == dict.fromkeys(range(100), 1)
        assert played.twice == 0
    assert "the item pipeline pauses" in ended.log
    assert_ended_well(ended)


def test_stopped_in_an_outage(durable: Server, key: str, items: Items, tmp_path: Path) -> None:
    """Ctrl-C while items wait: their pages are not acknowledged, and the next crawl stores them."""
    with scene(tree(PAGES), tmp_path, durable.url, key) as played:
        played.spider = numbered.__file__
        settings = items.settings(OURS, LEASE, {"NUMBERS": 1000})
        played.moments.when(MIDDLE, lambda _: durable.kill())
        first = played.start("first", settings)
        until(lambda: "the item pipeline pauses" in played.log("first"))
        first.process.send_signal(signal.SIGINT)
        until(lambda: "this item is not stored" in played.log("first"))
        durable.start()
        assert first.wait().stats["finish_reason"] == "shutdown"
        assert items.stored.total() < PAGES
        played.crawl(settings, "second")
        assert set(items.stored) == set(range(PAGES))


def test_stopped_beside_an_equal_item(played: Scene, items: Items, valkey: Server, key: str) -> None:
    """Ctrl-C while an item waits for an equal one of a dead worker: the next crawl stores it."""
    settings = items.settings(OURS, ONE_BY_ONE, {"SCHEDULER_PERSIST": True})
    with_claim = items.settings(ALONE, FOREVER, {"DEADLY": FIVES})
    assert played.crawl(with_claim, "killed").exit_code == -signal.SIGKILL
    first = played.start("first", settings)
    until(lambda: played.log("first").count("Crawled (200)") == 40)
    first.process.send_signal(signal.SIGINT)
    assert "this item is not stored" in first.wait().log
    with valkey.client() as client:  # as at the end of the lease
        client.delete(*(each for each in keys_of(client, key) if ":claim:" in each))
    assert_ended_well(played.crawl(settings, "second"))
    assert items.stored[5] == 1


def test_redis_refuses(own: Server, key: str, items: Items, tmp_path: Path) -> None:
    """A Redis that refuses the filter's commands ends the crawl; the next one stores the rest."""
    with own.client() as client, scene(tree(PAGES), tmp_path, own.url, key, delay=SLOWER_THAN_SCRAPY) as played:
        played.spider = numbered.__file__
        settings = items.settings(ALONE, LEASE, {"NUMBERS": 1000})

        def permit(permission: str) -> None:
            client.acl_setuser("default", enabled=True, commands=[f"{permission}evalsha", f"{permission}eval"])

        played.moments.when(MIDDLE, lambda _: permit("-"))
        first = played.crawl(settings, "first")
        permit("+")
        assert first.stats["finish_reason"] == "bloomfilter_error"
        assert first.exit_code == 1
        (ends,) = [line for line in complaints_in(first.log) if "The crawl ends" in line]
        assert "allow EVAL, EVALSHA" in ends
        played.moments.delay = 0
        assert 0 < items.stored.total() < PAGES
        assert_ended_well(played.crawl(settings, "second"))
        # The key of a stored item may have been refused.
        assert set(items.stored) == set(range(PAGES))


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"BLOOMFILTER_ITEM_KEY": None}, "BLOOMFILTER_ITEM_KEY is not set: UniqueItemsPipeline needs the key"),
        ({"ITEM_PROCESSOR": f"{numbered.__name__}.OwnProcessor"}, "OwnProcessor': UniqueItemsPipeline needs"),
        ({"ITEM_PIPELINES": json.dumps({UNIQUE: 1, ANOTHER: 2})}, "UniqueItemsPipeline and Another would wait"),
        ({"ITEM_PIPELINES": json.dumps({ANOTHER: 1, UNIQUE: 2})}, "Another and UniqueItemsPipeline would wait"),
    ],
)
def test_refused_start(setting: Kind, text: str, played: Scene, items: Items) -> None:
    """A crawl without a key is refused, with the setting.

    So is one whose ITEM_PROCESSOR calls pipelines itself, and one with a second such pipeline, also of a subclass.
    """
    refused = played.crawl({**items.settings(OURS), **setting})
    assert refused.exit_code == 1
    assert text in refused.log
    assert played.site.fetched == []


def test_another_key(played: Scene, items: Items, key: str) -> None:
    """A crawl with another key than the stored filter's is refused, with the only way to start over."""
    played.crawl(items.settings(OURS), "first")
    refused = played.crawl(items.settings(OURS, {"BLOOMFILTER_ITEM_KEY": "path"}), "second")
    line = refused.log.rstrip().splitlines()[-1]
    assert "BLOOMFILTER_ITEM_KEY = ('path',)\" here" in line
    assert line.endswith(f"start over by `scrapy bloom clear --key {key}:items:dupefilter --yes`")
    assert "FLUSH" not in line


def test_items_without_a_key(played: Scene, items: Items) -> None:
    """Items without the field pass, and one warning says so."""
    ended = played.crawl(items.settings(OURS, {"BLOOMFILTER_ITEM_KEY": "sku"}))
    assert items.stored == dict.fromkeys(range(NUMBERS), 4)
    told = [line for line in complaints_in(ended.log) if "BLOOMFILTER_ITEM_KEY" in line]
    assert "('sku',): an item of the type dict lacks a value there" in told[0]
    assert "(39x since the last such line)" in told[1]
