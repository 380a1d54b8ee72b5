"""`scrapy bloom doctor` on settings: each mistake is a finding, and the other checks run."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.support import command
from tests.support.examining import OURS, SPIDERS, examine, wrong
from tests.support.servers import Server, running

ADDON = {"ADDONS": {"scrapy_bloom.Addon": 500}}
SCRAPYS = "scrapy.core.scheduler.Scheduler"
STOCK, LOCAL = "scrapy_redis.dupefilter.RFPDupeFilter", "scrapy.dupefilters.RFPDupeFilter"
STOCK_ITEMS = "scrapy_redis.pipelines.RedisPipeline"
FLUSH: dict[str, Any] = {"SCHEDULER_FLUSH_ON_START": True}
MANY = 50_000


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A well-configured server."""
    with running("valkey", "--appendonly", "yes") as server:
        yield server


@pytest.fixture
def mine(own: Server) -> Iterator[Any]:
    with own.client(decode_responses=True) as client:
        yield client


def timeout(seconds: float | None) -> dict[str, Any]:
    return {"REDIS_PARAMS": {"socket_timeout": seconds}}


class Mistake(NamedTuple):
    """The finding on a spider whose settings are changed: its check, level, and a part of its text."""

    check: str
    level: str
    text: str
    changed: dict[str, Any] = {}  # noqa: RUF012  # never changed
    spider: str = "shop"
    settings: dict[str, Any] = OURS


def refused(text: str, spider: str = "shop", settings: dict[str, Any] = OURS, **changed: Any) -> Mistake:
    """Return a mistake for which no crawl would start."""
    return Mistake("settings", "loss", f"no crawl would start: {text}", changed, spider, settings)


def unused(spider: str = "shop", settings: dict[str, Any] = ADDON, **changed: Any) -> Mistake:
    """Return a mistake by which a crawl does not use the filter."""
    return Mistake("dupefilter", "loss", "which does not use the filter", changed, spider, settings)


def local(spider: str = "shop", settings: dict[str, Any] = OURS, **changed: Any) -> Mistake:
    """Return a mistake by which workers share no queue."""
    return Mistake("scheduler", "advice", "workers share nothing", changed, spider, settings)


SHARED_FLUSH = "SCHEDULER_FLUSH_ON_START = True and SCHEDULER_DUPEFILTER_KEY"
ITEMS: dict[str, Any] = {"ITEM_PIPELINES": {STOCK_ITEMS: 1}}
KEPT: dict[str, Any] = {**ITEMS, "BLOOMFILTER_RETRY_FAILED": True}
IN_SET = f"{SPIDERS}.InSet"
MISTAKES = {
    "no add-on": unused(settings={}),
    "Scrapy's scheduler": local(SCHEDULER=SCRAPYS),
    "Scrapy's scheduler of a spider": local("local", ADDON),
    "scrapy-redis's filter": unused(DUPEFILTER_CLASS=STOCK),
    "Scrapy's filter": unused(DUPEFILTER_CLASS=LOCAL),
    "a filter by custom_settings": unused("foreign"),
    "a filter by update_settings": unused("late"),
    "another filter": refused("DUPEFILTER_CLASS = ", DUPEFILTER_CLASS=STOCK),
    "no such filter": Mistake("dupefilter", "loss", "cannot be imported", {"DUPEFILTER_CLASS": "scrapy_bloom.Nothing"}),
    "no such scheduler": Mistake("scheduler", "loss", "cannot be imported", {"SCHEDULER": "nothing.X"}),
    "a value that is refused": refused(
        "capacity (BLOOMFILTER_CAPACITY) = 0: must", settings=ADDON, BLOOMFILTER_CAPACITY=0
    ),
    "a queue that is a list": refused("SCHEDULER_QUEUE_CLASS = ", SCHEDULER_QUEUE_CLASS="scrapy_redis.queue.FifoQueue"),
    "one key for both": refused("SCHEDULER_QUEUE_KEY = ", SCHEDULER_QUEUE_KEY="a", SCHEDULER_DUPEFILTER_KEY="a"),
    "a queue key that cannot be read": refused(
        "SCHEDULER_QUEUE_KEY = '%(spdr)s': may have %(spider)s", settings=ADDON, SCHEDULER_QUEUE_KEY="%(spdr)s"
    ),
    "a filter's key that cannot be read": refused(
        "SCHEDULER_DUPEFILTER_KEY = '%(spdr)s': may have %(spider)s",
        SCHEDULER=SCRAPYS,
        SCHEDULER_DUPEFILTER_KEY="%(spdr)s",
    ),
    "a start key that cannot be read": refused(
        "REDIS_START_URLS_KEY = '%(spdr)s': may have %(spider)s", "fed", REDIS_START_URLS_KEY="%(spdr)s"
    ),
    "RedisSpider of scrapy-redis": Mistake("spider", "loss", "pops its start URLs", {}, "popping"),
    "own next_requests": Mistake("spider", "loss", "by its own next_requests, without fetch_data", {}, "hasty"),
    "own request_seen": refused(
        f"DUPEFILTER_CLASS = '{IN_SET}': its own request_seen calls neither",
        DUPEFILTER_CLASS=IN_SET,
        SCHEDULER="scrapy_redis.scheduler.Scheduler",
    ),
    "own request_seen under BloomScheduler": refused("DUPEFILTER_CLASS = ", DUPEFILTER_CLASS=IN_SET),
    "own queue": refused("SCHEDULER_QUEUE_CLASS = ", SCHEDULER_QUEUE_CLASS=f"{SPIDERS}.Hosts"),
    "items by scrapy-redis": Mistake("item pipelines", "loss", f"{STOCK_ITEMS} loses the items", ITEMS),
    "items of pages that are kept": Mistake("item pipelines", "advice", "until the next run, which fetches", KEPT),
    "flush": Mistake("flush", "loss", "each starting worker deletes", FLUSH),
    "flush of a kept crawl": Mistake("flush", "loss", "SCHEDULER_PERSIST = True", {**FLUSH, "SCHEDULER_PERSIST": True}),
    "flush of one process": Mistake(
        "flush", "advice", "the crawl deletes the filter at its start", {**FLUSH, "SCHEDULER": SCRAPYS}
    ),
    "flush of a shared filter": refused(f"{SHARED_FLUSH} = 'all'", **FLUSH, SCHEDULER_DUPEFILTER_KEY="all"),
    "flush of a filter that processes share": refused(
        f"{SHARED_FLUSH} = 'all'", **FLUSH, SCHEDULER_DUPEFILTER_KEY="all", SCHEDULER=SCRAPYS
    ),
    "failed pages under another scheduler": refused(
        "BLOOMFILTER_RETRY_FAILED = True: only BloomScheduler", BLOOMFILTER_RETRY_FAILED=True, SCHEDULER=SCRAPYS
    ),
    "a short lease": Mistake("lease", "advice", "BLOOMFILTER_LEASE = 5", {"BLOOMFILTER_LEASE": 5}),
    "a long lease": Mistake("lease", "advice", "BLOOMFILTER_LEASE = 3601", {"BLOOMFILTER_LEASE": 3601}),
    "no patience": Mistake("timeouts", "advice", "_RETRY_TIMEOUT = 0", {"BLOOMFILTER_RETRY_TIMEOUT": 0}),
    "too much patience": Mistake("timeouts", "advice", "_RETRY_TIMEOUT = 601", {"BLOOMFILTER_RETRY_TIMEOUT": 601}),
    "a short timeout": Mistake("timeouts", "advice", "socket_timeout = 0.05", timeout(0.05)),
    "no timeout": Mistake("timeouts", "advice", "socket_timeout = None", timeout(None)),
    "a long timeout": Mistake("timeouts", "advice", "socket_timeout = 31", timeout(31)),
    "a timeout beyond the lease": Mistake(
        "timeouts", "advice", "socket_timeout = 12: ", {**timeout(12), "BLOOMFILTER_LEASE": 12}
    ),
    "an error rate that costs pages": Mistake(
        "error rate", "advice", "of 1,000,000 are missed, expected", {"BLOOMFILTER_ERROR_RATE": 0.5}
    ),
    "a queue that another spider has": Mistake("queue", "advice", "(borrowing)", {}, "lending"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str, own: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake is named at its level; server and permissions are examined all the same."""
    check, level, text, changed, spider, settings = MISTAKES[name]
    code, found = examine(own.url, capsys, spider, **{**settings, **changed})
    assert found[check][0] == level, found
    assert text in found[check][1]
    assert code == ("loss" in wrong(found).values())
    if level == "advice":
        # It causes no further finding.
        assert wrong(found).keys() - {check} <= {"scheduler"}
    assert {"versions", "eviction", "persistence", "filter", "permissions"} <= found.keys()


PROJECT, LAST = "the project's settings", "(of two assignments the last one counts)"
OURS_AS_ADDON = "add 'scrapy_bloom.Addon': 500 to ADDONS"
# The advice on the dupefilter by the spider and the settings.
REMEDIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "nothing set": ("shop", {}, OURS_AS_ADDON),
    "ADDONS of a new project": (
        "shop",
        {"ADDONS": {}},
        f"{OURS_AS_ADDON}, which is {{}} in {PROJECT} {LAST}",
    ),
    "an add-on that is switched off": (
        "shop",
        {"ADDONS": {"scrapy_bloom.Addon": None}},
        f"{OURS_AS_ADDON}, which is {{'scrapy_bloom.Addon': None}} in {PROJECT} {LAST}",
    ),
    "the old class": ("shop", {**ADDON, "DUPEFILTER_CLASS": STOCK}, f"remove DUPEFILTER_CLASS from {PROJECT}"),
    "custom_settings": ("foreign", ADDON, "remove DUPEFILTER_CLASS from the spider"),
    "both": ("foreign", {}, f"{OURS_AS_ADDON}, and remove DUPEFILTER_CLASS from the spider"),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_the_cause_of_another_dupefilter(name: str, own: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The advice names the place of the setting that keeps this package's dupefilter away."""
    spider, settings, remedy = REMEDIES[name]
    assert examine(own.url, capsys, spider, **settings)[1]["dupefilter"][2] == remedy


@pytest.mark.parametrize(
    ("spider", "settings", "place"), [("shop", {"SCHEDULER": SCRAPYS}, PROJECT), ("local", ADDON, "the spider")]
)
def test_the_place_of_another_scheduler(
    spider: str, settings: dict[str, Any], place: str, own: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """The advice names the place in which the setting has to be changed."""
    remedy = f"set SCHEDULER = 'scrapy_bloom.BloomScheduler', in place of the one in {place}"
    assert examine(own.url, capsys, spider, **settings)[1]["scheduler"][2] == remedy


# Values exactly at a limit, which are no mistakes.
HARMLESS: list[dict[str, Any]] = [
    {"BLOOMFILTER_LEASE": 10, **timeout(0.5)},
    {"BLOOMFILTER_LEASE": 3600, **timeout(30)},
    {"BLOOMFILTER_RETRY_TIMEOUT": 600},
    {"BLOOMFILTER_ERROR_RATE": 1e-5},
    {"SCHEDULER_FLUSH_ON_START": False, "SCHEDULER_PERSIST": True},
    ADDON,
    {**ADDON, "ITEM_PIPELINES": {STOCK_ITEMS: 300}},
    {"ITEM_PIPELINES": {STOCK_ITEMS: None, "scrapy_bloom.RedisPipeline": 300}},
]


@pytest.mark.parametrize("settings", HARMLESS, ids=str)
def test_harmless_settings(settings: dict[str, Any], own: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A value at a limit is as good as the default."""
    code, found = examine(own.url, capsys, "shop", **{**OURS, **settings})
    assert (code, wrong(found)) == (0, {})


def test_an_address_that_cannot_be_used(own: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """An invalid URL, and a refused database or password, are findings."""
    cases = {
        "redis://:secret@[": "REDIS_URL cannot be read",
        f"{own.url}/99": "out of range",
        own.url.replace("//", "//worker:secret@"): "check the user name and the password",
    }
    for url, text in cases.items():
        code = command.call("doctor", "shop", "--json", SPIDER_MODULES=[SPIDERS], REDIS_URL=url, **OURS)
        printed = capsys.readouterr()
        findings = {each["check"]: each for each in json.loads(printed.out)["findings"]}
        assert (code, findings["server"]["level"]) == (1, "loss")
        assert text in findings["server"]["text"] + findings["server"]["advice"]
        assert findings["dupefilter"]["level"] == "ok"
        assert "secret" not in printed.out + printed.err


def test_for_people(own: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A crawl whose filter has no key yet is named by its spider."""
    assert command.call("doctor", "shop", SPIDER_MODULES=[SPIDERS], REDIS_URL=own.url) == 1
    said = capsys.readouterr().out
    assert said.startswith(f"the spider 'shop' on 127.0.0.1:{own.port}, database 0\n")
    assert "LOSS  dupefilter" in said


def test_exit_code(own: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Only losses change the exit code, unless advice is to count."""
    cases: list[tuple[dict[str, Any], int, int]] = [(OURS, 0, 0), ({**OURS, "BLOOMFILTER_LEASE": 5}, 0, 1), ({}, 1, 1)]
    for settings, by_default, by_advice in cases:
        assert examine(own.url, capsys, "shop", **settings)[0] == by_default
        assert examine(own.url, capsys, "shop", "--fail-on", "loss", **settings)[0] == by_default
        assert examine(own.url, capsys, "shop", "--fail-on", "advice", **settings)[0] == by_advice


def test_a_ttl_and_a_capacity_below_what_waits(own: Server, mine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A TTL or capacity too small for the queue is reported with the pace that a worker needs."""
    key = "waiting:requests"
    mine.zadd(key, {f"{number}": 0 for number in range(MANY)})
    settings: dict[str, object] = {**OURS, "SCHEDULER_QUEUE_KEY": key, "BLOOMFILTER_TTL": 500}
    settings["SCHEDULER_SERIALIZER"] = "scrapy_bloom.serializer"
    code, found = examine(own.url, capsys, "shop", **settings)
    assert (code, found["ttl"][0], found["capacity"][0]) == (0, "advice", "ok")
    assert "100 pages a second" in found["ttl"][1]
    assert examine(own.url, capsys, "shop", **{**settings, "BLOOMFILTER_TTL": 1000})[1]["ttl"][0] == "ok"
    small = {**settings, "BLOOMFILTER_CAPACITY": MANY - 1, "BLOOMFILTER_TTL": 0}
    code, found = examine(own.url, capsys, "shop", **small)
    assert (code, found.get("ttl"), found["capacity"][0]) == (0, None, "advice")
    assert examine(own.url, capsys, "shop", **{**small, "BLOOMFILTER_CAPACITY": MANY})[1]["capacity"][0] == "ok"
    mine.delete(key)


@pytest.mark.parametrize("handler", ["scrapy_playwright.handler.ScrapyPlaywrightDownloadHandler", None])
def test_serializer_beside_playwright(handler: str | None, own: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A project with scrapy-playwright learns which requests MessagePack cannot hold; that is no finding."""
    settings = {
        **OURS,
        "SCHEDULER_SERIALIZER": "scrapy_bloom.serializer",
        "DOWNLOAD_HANDLERS": {"https": handler},
    }
    _, found = examine(own.url, capsys, "shop", **settings)
    level, text = found["serializer"][:2]
    assert (level, "PageMethod is not shared" in text) == ("ok", handler is not None)
