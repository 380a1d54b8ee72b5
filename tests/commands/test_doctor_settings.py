"""`scrapy bloom doctor` on settings: each mistake is a finding, and the other checks run."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from scrapy_bloom import BloomFilter
from tests.support import command
from tests.support.examining import OURS, SPIDERS, examine, wrong
from tests.support.servers import Server, running

ADDON = {"ADDONS": {"scrapy_bloom.Addon": 500}}
SCRAPYS = "scrapy.core.scheduler.Scheduler"
MANY = 50_000

Mistake = tuple[str, dict[str, Any], str, str, str]


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A well-configured server."""
    with running("valkey", "--appendonly", "yes") as server:
        yield server


@pytest.fixture
def mine(own: Server) -> Iterator[Any]:
    with own.client(decode_responses=True) as client:
        yield client


# A spider, settings, and the finding that names the mistake.
MISTAKES: dict[str, Mistake] = {
    "no add-on": ("shop", {}, "dupefilter", "loss", "which does not use the filter"),
    "Scrapy's scheduler": ("shop", {**ADDON, "SCHEDULER": SCRAPYS}, "scheduler", "advice", "workers share nothing"),
    "Scrapy's scheduler of a spider": ("local", ADDON, "scheduler", "advice", "workers share nothing"),
    "scrapy-redis's filter": (
        "shop",
        {**ADDON, "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"},
        "dupefilter",
        "loss",
        "which does not use the filter",
    ),
    "Scrapy's filter": (
        "shop",
        {**ADDON, "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"},
        "dupefilter",
        "loss",
        "which does not use the filter",
    ),
    "a filter by custom_settings": ("foreign", ADDON, "dupefilter", "loss", "which does not use the filter"),
    "a filter by update_settings": ("late", ADDON, "dupefilter", "loss", "which does not use the filter"),
    "our scheduler, another filter": (
        "shop",
        {**OURS, "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter"},
        "settings",
        "loss",
        "no crawl would start: DUPEFILTER_CLASS = ",
    ),
    "no such filter": (
        "shop",
        {**OURS, "DUPEFILTER_CLASS": "scrapy_bloom.Nothing"},
        "dupefilter",
        "loss",
        "cannot be imported",
    ),
    "no such scheduler": ("shop", {**OURS, "SCHEDULER": "nothing.X"}, "scheduler", "loss", "cannot be imported"),
    "a value that is refused": (
        "shop",
        {**ADDON, "BLOOMFILTER_CAPACITY": 0},
        "settings",
        "loss",
        "no crawl would start: BLOOMFILTER_CAPACITY = 0: must be",
    ),
    "a queue that is a list": (
        "shop",
        {**OURS, "SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.FifoQueue"},
        "settings",
        "loss",
        "no crawl would start: SCHEDULER_QUEUE_CLASS = ",
    ),
    "one key for both": (
        "shop",
        {**OURS, "SCHEDULER_QUEUE_KEY": "a", "SCHEDULER_DUPEFILTER_KEY": "a"},
        "settings",
        "loss",
        "no crawl would start: SCHEDULER_QUEUE_KEY = ",
    ),
    "a queue key that cannot be read": (
        "shop",
        {**ADDON, "SCHEDULER_QUEUE_KEY": "%(spdr)s:requests"},
        "settings",
        "loss",
        "no crawl would start: SCHEDULER_QUEUE_KEY = '%(spdr)s:requests': may have %(spider)s",
    ),
    "a filter's key that cannot be read": (
        "shop",
        {**OURS, "SCHEDULER": SCRAPYS, "SCHEDULER_DUPEFILTER_KEY": "%(spdr)s"},
        "settings",
        "loss",
        "no crawl would start: SCHEDULER_DUPEFILTER_KEY = '%(spdr)s': may have %(spider)s",
    ),
    "a start key that cannot be read": (
        "fed",
        {**OURS, "REDIS_START_URLS_KEY": "%(spider)s:start_urls"},
        "settings",
        "loss",
        "no crawl would start: REDIS_START_URLS_KEY = '%(spider)s:start_urls': may have %(name)s",
    ),
    "RedisSpider of scrapy-redis": ("popping", OURS, "spider", "loss", "pops its start URLs"),
    "flush": ("shop", {**OURS, "SCHEDULER_FLUSH_ON_START": True}, "flush", "loss", "each starting worker deletes"),
    "flush of a kept crawl": (
        "shop",
        {**OURS, "SCHEDULER_FLUSH_ON_START": True, "SCHEDULER_PERSIST": True},
        "flush",
        "loss",
        "SCHEDULER_PERSIST = True",
    ),
    "flush of one process": (
        "shop",
        {**OURS, "SCHEDULER": SCRAPYS, "SCHEDULER_FLUSH_ON_START": True},
        "flush",
        "advice",
        "the crawl deletes the filter at its start",
    ),
    "a short lease": ("shop", {**OURS, "BLOOMFILTER_LEASE": 5}, "lease", "advice", "BLOOMFILTER_LEASE = 5"),
    "a long lease": ("shop", {**OURS, "BLOOMFILTER_LEASE": 3601}, "lease", "advice", "BLOOMFILTER_LEASE = 3601"),
    "no patience": (
        "shop",
        {**OURS, "BLOOMFILTER_RETRY_TIMEOUT": 0},
        "timeouts",
        "advice",
        "BLOOMFILTER_RETRY_TIMEOUT = 0",
    ),
    "too much patience": (
        "shop",
        {**OURS, "BLOOMFILTER_RETRY_TIMEOUT": 601},
        "timeouts",
        "advice",
        "BLOOMFILTER_RETRY_TIMEOUT = 601",
    ),
    "a short timeout": (
        "shop",
        {**OURS, "REDIS_PARAMS": {"socket_timeout": 0.05}},
        "timeouts",
        "advice",
        "socket_timeout = 0.05",
    ),
    "no timeout": (
        "shop",
        {**OURS, "REDIS_PARAMS": {"socket_timeout": None}},
        "timeouts",
        "advice",
        "socket_timeout = None",
    ),
    "a long timeout": (
        "shop",
        {**OURS, "REDIS_PARAMS": {"socket_timeout": 31}},
        "timeouts",
        "advice",
        "socket_timeout = 31",
    ),
    "a timeout beyond the lease": (
        "shop",
        {**OURS, "REDIS_PARAMS": {"socket_timeout": 12}, "BLOOMFILTER_LEASE": 12},
        "timeouts",
        "advice",
        "socket_timeout = 12: ",
    ),
    "an error rate that costs pages": (
        "shop",
        {**OURS, "BLOOMFILTER_ERROR_RATE": 0.5},
        "error rate",
        "advice",
        "of 1,000,000 are missed, expected",
    ),
    "a queue that another spider has": ("lending", OURS, "queue", "advice", "(borrowing)"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str, own: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake is named at its level; server and permissions are examined all the same."""
    spider, settings, check, level, text = MISTAKES[mistake]
    code, found = examine(own.url, capsys, spider, **settings)
    assert found[check][0] == level, found
    assert text in found[check][1]
    assert code == ("loss" in wrong(found).values())
    if level == "advice":
        # It causes no further finding.
        assert wrong(found).keys() - {check} <= {"scheduler"}
    assert {"versions", "eviction", "persistence", "filter", "permissions"} <= found.keys()


# Values exactly at a limit, which are no mistakes.
HARMLESS: dict[str, dict[str, Any]] = {
    "lease": {"BLOOMFILTER_LEASE": 10},
    "long lease": {"BLOOMFILTER_LEASE": 3600},
    "patience": {"BLOOMFILTER_RETRY_TIMEOUT": 600},
    "timeouts": {"REDIS_PARAMS": {"socket_timeout": 30}},
    "short timeout": {"REDIS_PARAMS": {"socket_timeout": 0.5}},
    "error rate": {"BLOOMFILTER_ERROR_RATE": 1e-5},
    "no flush": {"SCHEDULER_FLUSH_ON_START": False, "SCHEDULER_PERSIST": True},
    "by the add-on": ADDON,
}


@pytest.mark.parametrize("case", HARMLESS)
def test_harmless_settings(case: str, own: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A value at a limit is as good as the default."""
    code, found = examine(own.url, capsys, "shop", **{**OURS, **HARMLESS[case]})
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
    settings["SCHEDULER_SERIALIZER"] = "scrapy_bloom.serializers.json"
    code, found = examine(own.url, capsys, "shop", **settings)
    assert (code, found["ttl"][0], found["capacity"][0]) == (0, "advice", "ok")
    assert "100 pages a second" in found["ttl"][1]
    assert examine(own.url, capsys, "shop", **{**settings, "BLOOMFILTER_TTL": 1000})[1]["ttl"][0] == "ok"
    small = {**settings, "BLOOMFILTER_CAPACITY": MANY - 1, "BLOOMFILTER_TTL": 0}
    code, found = examine(own.url, capsys, "shop", **small)
    assert (code, found.get("ttl"), found["capacity"][0]) == (0, None, "advice")
    assert examine(own.url, capsys, "shop", **{**small, "BLOOMFILTER_CAPACITY": MANY})[1]["capacity"][0] == "ok"
    mine.delete(key)


def test_a_stored_filter_of_the_default_capacity(own: Server, mine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The error rate of the stored filter counts, if there is one."""
    bloom = BloomFilter(mine, "stored:dupefilter", error_rate=1e-3)
    bloom.add("a")
    place = ("--key", "stored:dupefilter")
    assert examine(own.url, capsys, *place)[1]["error rate"][0] == "advice"
    bloom.clear()
    assert examine(own.url, capsys, *place)[1]["error rate"][0] == "ok"
