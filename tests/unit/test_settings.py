"""The settings: names, defaults, priorities, and the values that have no number."""

import dataclasses
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy.settings import SETTINGS_PRIORITIES, Settings

from scrapy_bloom.errors import BloomError, ConfigError
from scrapy_bloom.settings import OPTIONS, BloomSettings, path_of

SETTINGS = [option.setting for option in OPTIONS]
CAPACITY = "BLOOMFILTER_CAPACITY"
OF_FAILED_PAGES = {*range(500, 600), 408, 429}
# The defaults, and other values as text.
VALUES: dict[str, tuple[Any, str, Any]] = {
    "capacity": (1_000_000, "5e3", 5000),
    "error_rate": (1e-6, "0.01", 0.01),
    "expansion": (2, "0", 0),
    "ttl": (None, "60", 60.0),
    "cache_size": (65_536, "7", 7),
    "retry_timeout": (30.0, "8", 8.0),
    "batch_size": (100, "9", 9),
    "lease": (60.0, "10", 10.0),
    "max_deliveries": (5, "11", 11),
    "partitions": (1, "16", 16),
    "always": ((), "a", (re.compile("a"),)),
    "retry_failed": (False, "True", True),
    "retry_statuses": (OF_FAILED_PAGES, "4XX,999", {*range(400, 500), 999}),
    "item_key": (None, "shop, number", ("shop", "number")),
    "shared_delay": (False, "True", True),
}


def read(settings: dict[str, Any]) -> BloomSettings:
    """Read settings."""
    return BloomSettings.from_settings(Settings(settings))


def test_values() -> None:
    """Each setting has its default, and is read independently."""
    assert read({}) == BloomSettings()
    assert dataclasses.asdict(read({})) == {name: default for name, (default, _, _) in VALUES.items()}
    given = {f"BLOOMFILTER_{name.upper()}": text for name, (_, text, _) in VALUES.items()}
    assert dataclasses.asdict(read(given)) == {name: value for name, (_, _, value) in VALUES.items()}


@pytest.mark.parametrize(
    ("module", "file", "expected"),
    [
        ("shop.spiders.news", "/shop/spiders/news.py", "shop.spiders.news.News.Inner"),
        ("__main__", "/shop/spiders/news.py", "news.News.Inner"),
        ("__mp_main__", "news.py", "news.News.Inner"),
        ("__main__", None, "News.Inner"),
    ],
)
def test_paths(module: str, file: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of a program, of a process in its pool, and of a notebook has the path that other processes know."""
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(__file__=file))
    kind = type("Inner", (), {"__module__": module, "__qualname__": "News.Inner"})
    assert path_of(kind) == expected


@pytest.mark.parametrize("setting", SETTINGS)
def test_refused(setting: str) -> None:
    """A refusal names the setting and the value; `test_options` has all values. It is a ValueError, too."""
    with pytest.raises(BloomError, match=rf"\({setting}\) = True: must ") as refusal:
        read({setting: True})
    assert isinstance(refusal.value, ConfigError)
    assert isinstance(refusal.value, ValueError)


@pytest.mark.parametrize("setting", SETTINGS)
def test_unknown_name(setting: str) -> None:
    """A misspelt setting is refused, and the error suggests the right name."""
    unknown = setting[:-2] + setting[-1]
    with pytest.raises(ConfigError, match=f"{unknown} = 5: there is no such setting; did you mean {setting}[?]"):
        read({unknown: 5})


@pytest.mark.parametrize(
    ("setting", "value", "ours"),
    [
        *((f"BLOOMFILTER_{name}", 30, "BLOOMFILTER_ERROR_RATE") for name in ("BIT", "HASH_NUMBER", "BLOCK_NUM")),
        *((f"BLOOMFILTER_{name}_LIST", 30, "BLOOMFILTER_CAPACITY") for name in ("BIT", "HASH_NUMBER", "BLOCK_NUM")),
        ("SCHEDULER_DUPEFILTER_EXPIRE_TIME", 86_400, "BLOOMFILTER_TTL"),
        ("REDIS_SENTINEL_NODES", [("host", 26379)], "REDIS_URL = 'redis+sentinel://"),
        ("REDIS_CLUSTER_NODES", [{"host": "node"}], "REDIS_URL = 'redis+cluster://"),
        ("REDIS_SENTINEL_PARAMS", {"service_name": "crawl"}, "REDIS_URL = 'redis+sentinel://"),
        *((f"REDIS_CLUSTER_{name}", "node", "REDIS_URL = 'redis+cluster://") for name in ("HOST", "PORT", "PARAMS")),
        ("REDIS_CLUSTER_URL", "redis://node:7001", "REDIS_URL = 'redis+cluster://"),
        ("SCHEDULER_DUPEFILTER_CAPACITY", 30, "BLOOMFILTER_CAPACITY"),
        ("REDIS_BLOOM_CAPACITY", 30, "BLOOMFILTER_CAPACITY"),
        ("REDIS_SENTINELS", [("host", 26379)], "REDIS_URL = 'redis+sentinel://"),
        ("REDIS_STARTUP_NODES", [{"host": "node"}], "REDIS_URL = 'redis+cluster://"),
        ("REDIS_MASTER_NODES", [{"host": "node"}], "REDIS_URL = 'redis+cluster://"),
    ],
)
def test_settings_of_the_forks(setting: str, value: object, ours: str) -> None:
    """A setting of scrapy-redis's forks, which nothing would read, is refused with what to set instead."""
    with pytest.raises(ConfigError, match=f"^{setting}: is a setting of another package") as refusal:
        read({setting: value})
    assert ours in str(refusal.value)
    assert read({setting: None}) == BloomSettings()


def test_settings_of_others() -> None:
    """Settings without the prefix are ignored."""
    assert read(dict.fromkeys(("BLOOM_FILTER_CAPACITY", "MY_BLOOMFILTER_BIT", "REDIS_URL"), "x")) == BloomSettings()


@pytest.mark.parametrize("priority", SETTINGS_PRIORITIES)
def test_priorities(priority: str) -> None:
    """A setting counts, and is checked, wherever it was set; that of the highest priority wins."""
    settings = Settings()
    settings.set(CAPACITY, 3, priority=priority)
    assert BloomSettings.from_settings(settings).capacity == 3
    settings.set(CAPACITY, 4, priority="default")
    settings.set(CAPACITY, "5e1", priority="cmdline")
    assert BloomSettings.from_settings(settings).capacity == 50
    settings.set("BLOOMFILTER_CAPACTY", 3, priority=priority)
    with pytest.raises(ConfigError):
        BloomSettings.from_settings(settings)


@pytest.mark.parametrize(
    ("value", "patterns"),
    [(None, []), ([], []), ("/sitemap", ["/sitemap"]), (["a{1,2}", "b"], ["a{1,2}", "b"]), (("a",), ["a"])],
)
def test_always(value: object, patterns: list[str]) -> None:
    """A list of patterns, or one pattern as text, which may contain commas."""
    assert [pattern.pattern for pattern in read({"BLOOMFILTER_ALWAYS": value}).always] == patterns


@pytest.mark.parametrize(
    ("value", "statuses"),
    [
        (None, OF_FAILED_PAGES),
        (["5xx", 408, 429], OF_FAILED_PAGES),
        ([], set()),
        ((503, "404"), {404, 503}),
        ("404, 503", {404, 503}),
    ],
)
def test_statuses(value: object, statuses: set[int]) -> None:
    """A list of statuses and of classes, or text with commas."""
    assert read({"BLOOMFILTER_RETRY_STATUSES": value}).retry_statuses == statuses


# Refused values, and the allowed ones in the error.
INVALID: dict[str, tuple[list[object], str]] = {
    "ALWAYS": (["(", "['/a', '/b']", ["*"], [""], 5, [5], [b"a"], {"a": 1}, True], "regular expression"),
    "RETRY_STATUSES": (
        ["", "5", "5xx;408", 503, [200], [299], [1000], [50], ["2xx"], [503.0], [True], [None], {}],
        "['5xx', 408, 429]",
    ),
    **dict.fromkeys(("RETRY_FAILED", "SHARED_DELAY"), (["yes", "2x", []], "must be True or False")),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid(name: str) -> None:
    """An invalid value is refused with the setting, the value or its faulty pattern, and the allowed values."""
    values, allowed = INVALID[name]
    for value in values:
        with pytest.raises(ConfigError, match=f"^BLOOMFILTER_{name}") as refusal:
            read({f"BLOOMFILTER_{name}": value})
        assert repr(value[0] if value == ["*"] else value) in str(refusal.value)
        assert allowed in str(refusal.value)


def test_flag() -> None:
    """BLOOMFILTER_RETRY_FAILED is read as Scrapy reads a boolean."""
    given = {True: True, "1": True, "False": False, 0: False}
    assert {value: read({"BLOOMFILTER_RETRY_FAILED": value}).retry_failed for value in given} == given


@pytest.mark.parametrize("settings", [{"BLOOMFILTER_PARTITIONS": 2}, {"BLOOMFILTER_RETRY_FAILED": True}])
def test_settings_of_bloom_scheduler(settings: dict[str, Any]) -> None:
    """The settings that need BloomScheduler are refused under another scheduler; their defaults are not."""
    ((name, value),) = settings.items()
    with pytest.raises(ConfigError, match=f"{name} = {value}: only BloomScheduler obeys this setting"):
        read(settings).refuse_queue_options()
    read({}).refuse_queue_options()
