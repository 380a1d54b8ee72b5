"""Each public method and attribute of scrapy-redis in a user's subclass: it has its effect, or is refused by name."""

import json
import logging
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import Request, Spider
from scrapy.dupefilters import BaseDupeFilter
from scrapy.exceptions import DontCloseSpider
from scrapy.statscollectors import MemoryStatsCollector
from scrapy_redis.queue import PriorityQueue
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import BloomRFPDupeFilter, BloomScheduler, ConfigError, RedisPipeline, RedisSpider, serializer
from tests.support import overrides
from tests.support.documentation import table
from tests.support.dupefilters import page
from tests.support.in_process import start
from tests.support.outcomes import assert_ended_well
from tests.support.overrides import ALONE, ATTRIBUTES, CALLED, METHODS, OF_OLD_SCRAPY, OURS, REFUSED, THEIRS, UNUSED
from tests.support.scenario import scene
from tests.support.servers import Server
from tests.support.spiders import overriding, overriding_more

Opened = Callable[..., Any]

SETTINGS = {"dupefilter": "DUPEFILTER_CLASS", "queue": "SCHEDULER_QUEUE_CLASS"}
every_scheduler = pytest.mark.parametrize("scheduler_class", [Scheduler, BloomScheduler])


def public(names: Iterator[str]) -> set[str]:
    """The public names, and the special methods that scrapy-redis defines."""
    return {name for name in names if not name.startswith("_") or name in ("__init__", "__len__")}


def instances(server: Server, key: str) -> dict[str, Any]:
    """An instance of each class of scrapy-redis, as it has it in a crawl."""
    crawler = start({"REDIS_URL": server.url, "REDIS_START_URLS_KEY": key}, spidercls=THEIRS["spider"])
    client = crawler.spider.server
    return {
        "dupefilter": THEIRS["dupefilter"](client, key),
        "scheduler": THEIRS["scheduler"](client),
        "queue": THEIRS["queue"](client, crawler.spider, key),
        "spider": crawler.spider,
        "pipeline": THEIRS["pipeline"](client, key),
    }


@pytest.mark.parametrize("part", METHODS)
def test_table_is_complete(part: str, valkey: Server, key: str) -> None:
    """All public methods and attributes of scrapy-redis's class are in the table, also those of its next version."""
    instance = instances(valkey, key)[part]
    of_scrapy = (
        public(chain.from_iterable(map(vars, (object, Spider, start({}).spider)))) if part == "spider" else set()
    )
    found = public(chain(vars(instance), *(vars(kind) for kind in THEIRS[part].__mro__ if kind not in Spider.__mro__)))
    known = {*METHODS[part], *ATTRIBUTES[part], *OF_OLD_SCRAPY}
    if part == "dupefilter":
        found |= public(iter(vars(BaseDupeFilter)))
    assert found - known - of_scrapy == set()


def test_page() -> None:
    """The page says the same of each."""
    rows = table("docs/settings.md", "Overrides")
    shown = {row[0].split()[-1]: [set(re.findall(r"`(\w+)`", cell)) for cell in row[1:]] for row in rows}
    fates: dict[str, list[set[str]]] = {}
    for part in METHODS:
        of_part = {**{name: fate for name, (fate, _) in METHODS[part].items()}, **ATTRIBUTES[part]}
        columns = (CALLED, ALONE), (REFUSED,), (UNUSED,)
        fates[part] = [{name for name, fate in of_part.items() if fate in column} for column in columns]
    fates["spider"][2] |= OF_OLD_SCRAPY
    assert shown == fates


# Methods.

CRAWLS: dict[str, dict[str, object]] = {
    "scrapy-bloom": {
        "SCHEDULER": f"{overrides.__name__}.OurScheduler",
        "SCHEDULER_QUEUE_CLASS": f"{overrides.__name__}.OurQueue",
        "DUPEFILTER_CLASS": f"{overrides.__name__}.OurDupeFilter",
    },
    "scrapy-redis": {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": f"{overrides.__name__}.TheirDupeFilter",
    },
}


@pytest.mark.parametrize("place", [0, 1], ids=CRAWLS)
def test_methods_that_are_called(place: int, valkey: Server, key: str, tmp_path: Path) -> None:
    """A crawl calls the methods that the table says, of all classes at once, and no other."""
    links = {"/": ["/", "/a", "/b"], "/a": ["/", "/b"], "/b": []}
    settings = [*CRAWLS.values()][place] | {
        "ITEM_PIPELINES": json.dumps({f"{overrides.__name__}.Pipeline": 1}),
        "REDIS_ITEMS_KEY": f"{key}:items",
    }
    with valkey.client() as client, scene(links, tmp_path, valkey.url, key) as played:
        client.rpush(f"{key}:start", json.dumps({"url": f"{played.site.url}/"}).encode("utf-16"))
        played.spider = str((overriding, overriding_more)[place].__file__)
        ended = played.crawl(settings)
        assert client.llen(f"{key}:items") == played.fetched.total() == len(links) + 1
    assert_ended_well(ended)
    parts = [part for part in METHODS if place == 0 or part not in ("scheduler", "queue")]
    called = {f"{part}.{name}" for part in parts for name, fates in METHODS[part].items() if fates[place] == CALLED}
    assert {*(tmp_path / "called").read_text().split()} == called


REFUSALS = [(part, name) for part in METHODS for name, (fate, _) in METHODS[part].items() if fate == REFUSED]
KIND = "Overriding"


@pytest.fixture
def opened_with(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Opens a BloomScheduler with a subclass in the place of a class."""

    def open_with(part: str, body: dict[str, Any], **settings: Any) -> Any:
        kind = type(KIND, (OURS[part],), {"__module__": __name__, "__qualname__": KIND, **body})
        monkeypatch.setitem(globals(), KIND, kind)
        if part in SETTINGS:
            return opened(**{SETTINGS[part]: f"{__name__}.{KIND}"}, **settings)
        return opened(spidercls=kind, **settings) if part == "spider" else opened(kind, **settings)

    return open_with


@pytest.mark.parametrize(("part", "name"), REFUSALS, ids=map(".".join, REFUSALS))
def test_methods_that_are_refused(part: str, name: str, opened_with: Opened) -> None:
    """BloomScheduler refuses the others at the start, by class and method, and says what to do."""
    stock = getattr(OURS[part], name)

    def own(*arguments: Any) -> Any:
        return stock(*arguments)

    own.__qualname__ = f"{KIND}.{name}"
    with pytest.raises(ConfigError) as refused:
        opened_with(part, {name: own})
    text = str(refused.value)
    assert f"{__name__}.{KIND}" in text
    assert f"overrides {name}, which" in text
    assert "instead" in text or "set SCHEDULER_" in text
    assert text.endswith("or use scrapy-redis's SCHEDULER")


@pytest.mark.parametrize("name", ["request_seen", "clear"])
def test_method_that_an_instance_replaces(name: str, opened_with: Opened) -> None:
    """A dupefilter whose __init__ replaces such a method is refused, too."""

    def begin(self: Any, server: Any, key: str, debug: bool = False) -> None:
        BloomRFPDupeFilter.__init__(self, server, key, debug)
        setattr(self, name, lambda *_: False)

    with pytest.raises(ConfigError, match=f"{KIND}'>?: overrides {name}, which BloomScheduler never calls"):
        opened_with("dupefilter", {"__init__": begin})


def test_own_from_settings(client: redis.Redis, opened_with: Opened) -> None:
    """A scheduler that is built in another way has the project's settings, and refuses those that are not allowed."""

    def build(cls: type[BloomScheduler], settings: Any) -> BloomScheduler:
        names = {"queue_key": "SCHEDULER_QUEUE_KEY", "dupefilter_key": "SCHEDULER_DUPEFILTER_KEY"}
        options = {option: settings[name] for option, name in names.items()}
        return cls(client, dupefilter_cls=settings["DUPEFILTER_CLASS"], **options)

    body = {"from_settings": classmethod(build)}
    assert len(opened_with("scheduler", body, BLOOMFILTER_PARTITIONS=3)._queues) == 3
    with pytest.raises(ConfigError, match="SCHEDULER_SERIALIZER = 'json'"):
        opened_with("scheduler", body, SCHEDULER_SERIALIZER="json")


# Attributes.


def having(part: str, name: str, value: Any) -> dict[str, Any]:
    """The body of a class whose instances have an attribute of another value."""

    def begin(self: Any, *arguments: Any, **options: Any) -> None:
        OURS[part].__init__(self, *arguments, **options)
        setattr(self, name, value)

    return {"__init__": begin}


REFUSED_ATTRIBUTES = [
    (part, name)
    for part in ("dupefilter", "scheduler", "queue")
    for name, fate in ATTRIBUTES[part].items()
    if fate == REFUSED
]


@pytest.mark.parametrize(("part", "name"), REFUSED_ATTRIBUTES, ids=map(".".join, REFUSED_ATTRIBUTES))
def test_attributes_that_are_refused(part: str, name: str, opened_with: Opened, valkey: Server) -> None:
    """BloomScheduler refuses a key, a server or a dupefilter of the class's own, by class and attribute."""
    with redis.Redis.from_url(f"{valkey.url}/1") as client:
        value = client if name == "server" else BloomRFPDupeFilter(client, "own") if name == "df" else "own"
        with pytest.raises(ConfigError, match=rf"{KIND}(\.| has the ){name}") as refused:
            opened_with(part, having(part, name, value))
    assert re.match("(REDIS_URL|SCHEDULER_QUEUE_KEY|SCHEDULER_DUPEFILTER_KEY|DUPEFILTER_CLASS)\\b", str(refused.value))
    assert str(refused.value).endswith("or use scrapy-redis's SCHEDULER")


@pytest.mark.parametrize("name", ["pop_list_queue", "pop_priority_queue", "fetch_data", "count_size"])
def test_functions_of_a_spider(name: str, opened_with: Opened, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A spider's own function that pops or counts start URLs is called; of one that pops, a warning says so."""
    called = []

    def own(*_: Any) -> Any:
        called.append(name)
        return 0 if name == "count_size" else []

    def setup_redis(self: Any, crawler: Any = None) -> None:
        RedisSpider.setup_redis(self, crawler)
        setattr(self, name, own)

    body = {name: own} if name.startswith("pop") else {"setup_redis": setup_redis}
    settings = {"REDIS_START_URLS_KEY": key, "REDIS_START_URLS_AS_ZSET": name == "pop_priority_queue"}
    with pytest.raises(DontCloseSpider):
        opened_with("spider", body, **settings).spider.spider_idle()
    assert called == [name]
    told = [text for text in caplog.messages if "since its fetch_data is its own" in text]
    assert len(told) == (name != "count_size")


class Logging(BloomRFPDupeFilter):
    """Logs in its own way."""

    logger = logging.getLogger("own")
    debugs = says_first = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.debug, self.logdupes = self.debugs, self.says_first


@every_scheduler
def test_log_of_a_dupefilter(
    scheduler_class: type[Scheduler],
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`debug`, `logdupes` and `logger` of the class decide what is logged of repeats, and where."""
    caplog.set_level(logging.DEBUG, "own")
    for debugs, says_first, lines in ((True, True, 3), (True, False, 3), (False, True, 1), (False, False, 0)):
        monkeypatch.setattr(Logging, "debugs", debugs)
        monkeypatch.setattr(Logging, "says_first", says_first)
        scheduler = opened(scheduler_class, DUPEFILTER_CLASS=f"{__name__}.Logging")
        caplog.clear()
        assert [scheduler.enqueue_request(page(1)) for _ in range(4)] == [True, False, False, False]
        assert [record.name for record in caplog.records if "Filtered" in record.getMessage()] == ["own"] * lines
        scheduler.close("shutdown")


class OwnQueue(PriorityQueue):  # type: ignore[misc]  # scrapy-redis has no types
    """A queue with a serializer and a spider of its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.serializer = serializer
        self.spider = type("Other", (Spider,), {"other": lambda *_: None})("other")


class OwnDupeFilter(BloomRFPDupeFilter):
    """Another dupefilter."""


CHOSEN: dict[str, tuple[Any, Callable[[Any], object], object]] = {
    "queue_cls": (f"{__name__}.OwnQueue", lambda scheduler: type(scheduler.queue), OwnQueue),
    "dupefilter_cls": (f"{__name__}.OwnDupeFilter", lambda scheduler: type(scheduler.df), OwnDupeFilter),
    "serializer": (serializer, lambda scheduler: scheduler.queue.serializer, serializer),
    "idle_before_close": (9, lambda scheduler: scheduler.next_request(), None),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_attributes_of_a_scheduler(name: str, opened_with: Opened) -> None:
    """A scheduler's own classes and its serializer are used; to wait for requests is not in its power."""
    value, read, expected = CHOSEN[name]
    assert read(opened_with("scheduler", having("scheduler", name, value))) == expected


@pytest.mark.parametrize("name", ["queue_cls", "dupefilter_cls"])
def test_classes_of_a_scheduler(name: str, opened_with: Opened) -> None:
    """A class that cannot be used is refused there, as in a setting."""
    with pytest.raises(ConfigError, match=r"_CLASS = 'scrapy_redis\.scheduler\.Scheduler': "):
        opened_with("scheduler", having("scheduler", name, "scrapy_redis.scheduler.Scheduler"))


def test_persistence_of_a_scheduler(opened_with: Opened) -> None:
    """`persist` keeps a crawl, and `flush_on_start` deletes it."""
    keeping = opened_with("scheduler", having("scheduler", "persist", True))
    assert keeping.enqueue_request(page(1))
    keeping.close("finished")
    resumed = opened_with("scheduler", having("scheduler", "persist", True))
    assert len(resumed) == 1
    resumed.close("finished")
    flushing = opened_with("scheduler", having("scheduler", "flush_on_start", True))
    assert len(flushing) == 0
    assert flushing.enqueue_request(page(1))


def test_stats_of_a_scheduler(opened_with: Opened) -> None:
    """A scheduler's own `stats` count its requests and repeats."""
    stats = MemoryStatsCollector(start({}))

    def build(cls: type[BloomScheduler], crawler: Any) -> BloomScheduler:
        self = cls.from_settings(crawler.settings)
        self.stats = stats
        return self

    scheduler = opened_with("scheduler", {"from_crawler": classmethod(build)})
    assert [scheduler.enqueue_request(page(1)) for _ in range(2)] == [True, False]
    scheduler.close("shutdown")
    assert [stats.get_value(name) for name in ("scheduler/enqueued/redis", "dupefilter/filtered")] == [1, 1]


def test_failing_enqueue_request(opened_with: Opened) -> None:
    """A command of Redis that fails in a scheduler's own `enqueue_request` ends the crawl, which keeps its requests."""

    def enqueue_request(self: Any, request: Request) -> bool:
        self.server.zadd(self.df.key, {request.url: 1})
        return True

    scheduler = opened_with("scheduler", {"enqueue_request": enqueue_request})
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        scheduler.enqueue_request(page(1))
    assert scheduler._has_ended
    assert scheduler._holds_pages


def test_attributes_of_a_queue(opened: Opened) -> None:
    """A queue's own serializer writes the requests, and its own spider has their callbacks."""
    scheduler = opened(SCHEDULER_QUEUE_CLASS=f"{__name__}.OwnQueue")
    other = scheduler.queue.spider.other
    assert scheduler.enqueue_request(Request("http://shop.test/", callback=other))
    assert scheduler.next_request().callback == other
    (member,) = scheduler._taken.values()
    assert serializer.loads(member)["callback"] == "other"


# A pipeline under any scheduler.


def test_attributes_of_a_pipeline(valkey: Server, key: str) -> None:
    """A pipeline's own server, key and serializer are used."""
    crawler = start({"REDIS_URL": valkey.url})
    pipeline = RedisPipeline.from_crawler(crawler)
    with redis.Redis.from_url(f"{valkey.url}/1") as client:
        pipeline.server, pipeline.key, pipeline.serialize = client, f"{key}:%(spider)s", lambda item: f"<{item}>"
        assert pipeline._process_item("a", crawler.spider) == "a"
        assert client.lrange(f"{key}:shop", 0, -1) == [b"<a>"]
        client.delete(f"{key}:shop")
