"""The add-on: the settings that it sets, leaves, logs and refuses, all before the engine exists."""

import logging

import pytest
from scrapy import Spider
from scrapy.settings import Settings
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.pipelines import RedisPipeline

from scrapy_bloom import Addon, BloomRFPDupeFilter, BloomScheduler
from tests.support import crawling
from tests.support.in_process import ShopSpider, start
from tests.support.scenario import Kind

ADDONS: Kind = {"ADDONS": {"scrapy_bloom.Addon": 500}}
OURS: Kind = {"DUPEFILTER_CLASS": crawling.BLOOM, "SCHEDULER": "scrapy_bloom.BloomScheduler"}
STOCK_FILTER = "scrapy_redis.dupefilter.RFPDupeFilter"


class ForeignDupeFilter(RFPDupeFilter):  # type: ignore[misc]  # scrapy-redis has no types
    """A dupefilter of the project, without the filter."""


class OwnDupeFilter(BloomRFPDupeFilter):
    """A user's dupefilter."""


class OwnScheduler(BloomScheduler):
    """A user's scheduler."""


class OwnPipeline(RedisPipeline):  # type: ignore[misc]  # scrapy-redis has no types
    """A user's item pipeline."""


class ChoosingSpider(ShopSpider):
    """A spider with its own `custom_settings`."""

    custom_settings = {"SCHEDULER": crawling.REDIS_SCHEDULER}  # noqa: RUF012  # as Scrapy has it


@pytest.fixture(autouse=True)
def levels(caplog: pytest.LogCaptureFixture) -> None:
    """Capture all log levels."""
    caplog.set_level(logging.INFO)


def begun(settings: Kind, spidercls: type[Spider] = ShopSpider) -> Kind:
    """Return the two settings of a real crawler with the add-on, when its settings are complete."""
    complete = start({**ADDONS, **settings}, spidercls=spidercls).settings
    return {name: complete[name] for name in OURS}


def told(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """Return the add-on's log lines of a level."""
    records = [record for record in caplog.records if record.name == "scrapy_bloom.addon"]
    return [record.getMessage() for record in records if record.levelno == level]


def test_nothing_is_set(caplog: pytest.LogCaptureFixture) -> None:
    """Without other settings both classes are ours, and MessagePack is recommended."""
    assert begun({}) == OURS
    what, hint = told(caplog)
    assert what.endswith(": " + ", ".join(f"{name} = {value!r} was set" for name, value in OURS.items()))
    assert "SCHEDULER_SERIALIZER = 'scrapy_bloom.serializer'" in hint
    assert told(caplog, logging.WARNING) == []


@pytest.mark.parametrize("serializer", ["scrapy_bloom.serializer", "scrapy_redis.picklecompat"])
def test_serializer_is_set(serializer: str, caplog: pytest.LogCaptureFixture) -> None:
    """A user who has chosen a serializer gets no recommendation."""
    begun({"SCHEDULER_SERIALIZER": serializer})
    assert len(told(caplog)) == 1


FOUND: dict[str, tuple[Kind, str]] = {
    "scrapy-redis's scheduler": (
        {"SCHEDULER": crawling.REDIS_SCHEDULER},
        "a killed worker loses the requests that it held",
    ),
    "Scrapy's scheduler": ({"SCHEDULER": crawling.OWN_SCHEDULER}, "each process has a queue of its own"),
    "a scheduler of the user's": ({"SCHEDULER": f"{__name__}.OwnScheduler"}, "OwnScheduler' was found"),
    "a filter of the user's": ({"DUPEFILTER_CLASS": f"{__name__}.OwnDupeFilter"}, "OwnDupeFilter' was found, SCHE"),
    "the same": (dict(OURS), "BloomRFPDupeFilter' was found, SCHEDULER = 'scrapy_bloom.BloomScheduler' was found"),
}


@pytest.mark.parametrize("what", FOUND)
def test_settings_that_are_found(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """A user's class stays, and the log explains the consequences if it is not ours."""
    settings, part = FOUND[what]
    assert begun(settings) == {**OURS, **settings}
    line = told(caplog)[0]
    assert part in line
    assert all(f"{value!r} was found" in line for value in settings.values())
    assert (". " in line) == ("'s scheduler" in what)
    assert told(caplog, logging.WARNING) == []
    # Scrapy's own scheduler serializes in its own way.
    assert len(told(caplog)) == (1 if what == "Scrapy's scheduler" else 2)


def test_spider_has_chosen(caplog: pytest.LogCaptureFixture) -> None:
    """A spider's class stays, as a project's does."""
    assert begun({}, ChoosingSpider) == {**OURS, "SCHEDULER": crawling.REDIS_SCHEDULER}
    assert f"SCHEDULER = '{crawling.REDIS_SCHEDULER}' was found" in told(caplog)[0]


@pytest.mark.parametrize("priority", ["command", "addon"])
def test_others_have_chosen(priority: str) -> None:
    """A class set by a Scrapy command or another add-on stays, too."""
    settings = Settings()
    settings.set("SCHEDULER", crawling.REDIS_SCHEDULER, priority)
    Addon.from_crawler(start({})).update_settings(settings)
    assert {name: settings[name] for name in OURS} == {**OURS, "SCHEDULER": crawling.REDIS_SCHEDULER}


def test_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """`scrapy bench`, which has a fixed port, measures Scrapy without Redis."""
    monkeypatch.setattr("scrapy_bloom.addon.running_command", lambda: "bench")
    assert begun({"REDIS_URL": "redis://127.0.0.1:1"})["SCHEDULER"] == crawling.OWN_SCHEDULER


STOCK_PIPELINE, PIPELINE = "scrapy_redis.pipelines.RedisPipeline", "scrapy_bloom.RedisPipeline"
PIPELINES: dict[str, tuple[dict[object, int | None], dict[object, int | None]]] = {
    "by its path": ({"a.Pipeline": 1, STOCK_PIPELINE: 300}, {"a.Pipeline": 1, PIPELINE: 300}),
    "by its class": ({RedisPipeline: 400}, {PIPELINE: 400}),
    "turned off": ({STOCK_PIPELINE: None}, {PIPELINE: None}),
    "a subclass": ({OwnPipeline: 300}, {OwnPipeline: 300}),
    "ours": ({PIPELINE: 300}, {PIPELINE: 300}),
    "none": ({}, {}),
}


@pytest.mark.parametrize("what", PIPELINES)
@pytest.mark.parametrize("scheduler", [OURS["SCHEDULER"], crawling.OWN_SCHEDULER])
def test_item_pipeline(what: str, scheduler: str, caplog: pytest.LogCaptureFixture) -> None:
    """scrapy-redis's pipeline is replaced, with its order, and the log says so; every other one stays."""
    given, expected = PIPELINES[what]
    settings = start({**ADDONS, "SCHEDULER": scheduler, "ITEM_PIPELINES": given}).settings
    assert settings.getdict("ITEM_PIPELINES") == expected
    line = f"ITEM_PIPELINES: '{STOCK_PIPELINE}' was replaced by '{PIPELINE}', whose items wait"
    assert [line in each for each in told(caplog)].count(True) == (given != expected)


def test_item_pipeline_as_text() -> None:
    """The setting may be text, as the command line gives it."""
    settings = Settings()
    settings.set("ITEM_PIPELINES", f'{{"{STOCK_PIPELINE}": 300}}', "cmdline")
    Addon.from_crawler(start({})).update_settings(settings)
    assert settings.getdict("ITEM_PIPELINES") == {PIPELINE: 300}


def test_settings_that_do_not_count(caplog: pytest.LogCaptureFixture) -> None:
    """Settings that this crawl does not use are not checked; the others are set and logged as usual."""
    settings: Kind = {"SCHEDULER": crawling.OWN_SCHEDULER, "SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.FifoQueue"}
    assert begun(settings) == {**OURS, "SCHEDULER": crawling.OWN_SCHEDULER}
    (what,) = told(caplog)
    assert f"DUPEFILTER_CLASS = {crawling.BLOOM!r} was set, SCHEDULER = {crawling.OWN_SCHEDULER!r} was found" in what


def test_filter_of_another(caplog: pytest.LogCaptureFixture) -> None:
    """Beside another package's filter no class is set and no setting checked, and one warning is logged."""
    left = begun({"DUPEFILTER_CLASS": STOCK_FILTER, "BLOOMFILTER_BIT": 30})
    assert left == {"DUPEFILTER_CLASS": STOCK_FILTER, "SCHEDULER": crawling.OWN_SCHEDULER}
    assert told(caplog) == []
    (warning,) = told(caplog, logging.WARNING)
    assert warning.startswith(f"scrapy-bloom filters nothing in this crawl: DUPEFILTER_CLASS = {STOCK_FILTER!r} was")
    assert f"so was SCHEDULER = {crawling.OWN_SCHEDULER!r}. With this scheduler each process has a queue" in warning
    assert "remove DUPEFILTER_CLASS from the project" in warning


def test_filter_of_the_project(caplog: pytest.LogCaptureFixture) -> None:
    """A project's own dupefilter may choose keys, which would change if it were removed."""
    begun({"DUPEFILTER_CLASS": f"{__name__}.ForeignDupeFilter"})
    (warning,) = told(caplog, logging.WARNING)
    assert "derive DUPEFILTER_CLASS from 'scrapy_bloom.BloomRFPDupeFilter'; or if it only chooses keys" in warning


def test_no_filter(caplog: pytest.LogCaptureFixture) -> None:
    """Scrapy's class that drops no request stays, and the scheduler is set, whose workers share the queue."""
    given: Kind = {"DUPEFILTER_CLASS": "scrapy.dupefilters.BaseDupeFilter"}
    assert begun(given) == {**OURS, **given}
    assert told(caplog)[0].startswith("scrapy-bloom drops no request of this crawl: DUPEFILTER_CLASS = ")
    assert told(caplog, logging.WARNING) == []
