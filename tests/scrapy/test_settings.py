"""The settings: names, defaults, priorities, and refusal of unknown names."""

import dataclasses

import pytest
from scrapy.settings import SETTINGS_PRIORITIES, Settings

from scrapy_bloom.errors import ConfigError
from scrapy_bloom.settings import SETTINGS, BloomSettings
from tests.support.bloom_settings import (
    BATCH_SIZE,
    CACHE_SIZE,
    CAPACITY,
    ERROR_RATE,
    EXPANSION,
    LEASE,
    MAX_DELIVERIES,
    RETRY_TIMEOUT,
    TTL,
    field_of,
    read,
)

DEFAULTS = {
    CAPACITY: 1_000_000,
    ERROR_RATE: 1e-6,
    EXPANSION: 2,
    TTL: None,
    CACHE_SIZE: 65_536,
    RETRY_TIMEOUT: 30.0,
    BATCH_SIZE: 100,
    LEASE: 60.0,
    MAX_DELIVERIES: 5,
}


def test_defaults() -> None:
    """The default values."""
    defaults = {field_of(setting): value for setting, value in DEFAULTS.items()}
    of_failed_pages = {"retry_failed": False, "retry_statuses": {*range(500, 600), 408, 429}}
    assert dataclasses.asdict(read({})) == {**defaults, "always": (), **of_failed_pages}
    assert read({}) == BloomSettings()


def test_names() -> None:
    """There are these settings and no others."""
    assert set(SETTINGS) == set(DEFAULTS)


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [
        pytest.param("BLOOMFILTER_CAPACTY", CAPACITY, id="capacity"),
        pytest.param("BLOOMFILTER_ERRORRATE", ERROR_RATE, id="error-rate"),
        pytest.param("BLOOMFILTER_ERROR", ERROR_RATE, id="error"),
        pytest.param("BLOOMFILTER_EXPAND", EXPANSION, id="expansion"),
        pytest.param("BLOOMFILTER_TTL_SECONDS", TTL, id="ttl"),
        pytest.param("BLOOMFILTER_CACHE", CACHE_SIZE, id="cache"),
        pytest.param("BLOOMFILTER_RETRY_TIME", RETRY_TIMEOUT, id="retry"),
        pytest.param("BLOOMFILTER_BATCH", BATCH_SIZE, id="batch"),
        pytest.param("BLOOMFILTER_LEASE_SECONDS", LEASE, id="lease"),
        pytest.param("BLOOMFILTER_DELIVERIES", MAX_DELIVERIES, id="max-deliveries"),
    ],
)
def test_unknown_name(unknown: str, nearest: str) -> None:
    """A misspelt setting is refused, and the error lists the nearest name first."""
    with pytest.raises(ConfigError) as refusal:
        read({unknown: 5})
    _, given, rest = str(refusal.value).partition(f"{unknown} = 5")
    assert given
    assert min((name for name in SETTINGS if name in rest), key=rest.index) == nearest


@pytest.mark.parametrize("setting", ["BLOOMFILTER_BIT", "BLOOMFILTER_HASH_NUMBER"])
def test_settings_of_the_forks(setting: str) -> None:
    """A setting of scrapy-redis-bloomfilter is refused with its replacement alone."""
    with pytest.raises(ConfigError) as refusal:
        read({setting: 30})
    assert f"{setting} = 30" in str(refusal.value)
    assert {name for name in SETTINGS if name in str(refusal.value)} == {CAPACITY, ERROR_RATE}


@pytest.mark.parametrize("name", ["BLOOM_FILTER_CAPACITY", "MY_BLOOMFILTER_BIT", "REDIS_URL"])
def test_settings_of_others(name: str) -> None:
    """Settings without the prefix are ignored."""
    assert read({name: "x"}) == BloomSettings()


def test_priorities() -> None:
    """The setting of the highest priority counts, in any order."""
    settings = Settings({CAPACITY: 3}, priority="project")
    settings.set(CAPACITY, "5e1", priority="cmdline")
    settings.set(CAPACITY, 4, priority="spider")
    assert BloomSettings.from_settings(settings).capacity == 50


@pytest.mark.parametrize("priority", SETTINGS_PRIORITIES)
def test_every_priority(priority: str) -> None:
    """A setting counts, and is checked, wherever it was set."""
    settings = Settings()
    settings.set(CAPACITY, 3, priority=priority)
    assert BloomSettings.from_settings(settings).capacity == 3
    settings.set("BLOOMFILTER_CAPACTY", 3, priority=priority)
    with pytest.raises(ConfigError):
        BloomSettings.from_settings(settings)
