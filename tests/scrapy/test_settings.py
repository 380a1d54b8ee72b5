"""The settings: what each may be, how it is read whatever it comes as, and what a refusal says."""

import dataclasses
import math
from typing import Any

import pytest
from scrapy.settings import SETTINGS_PRIORITIES, Settings

from scrapy_bloom.config import SETTINGS, BloomConfig
from scrapy_bloom.errors import BloomError, ConfigError

CAPACITY = "BLOOMFILTER_CAPACITY"
ERROR_RATE = "BLOOMFILTER_ERROR_RATE"
EXPANSION = "BLOOMFILTER_EXPANSION"
TTL = "BLOOMFILTER_TTL"
CACHE_SIZE = "BLOOMFILTER_CACHE_SIZE"
RETRY_TIMEOUT = "BLOOMFILTER_RETRY_TIMEOUT"
BATCH_SIZE = "BLOOMFILTER_BATCH_SIZE"
LEASE = "BLOOMFILTER_LEASE"

DEFAULTS = {
    CAPACITY: 1_000_000,
    ERROR_RATE: 1e-6,
    EXPANSION: 2,
    TTL: None,
    CACHE_SIZE: 65_536,
    RETRY_TIMEOUT: 30.0,
    BATCH_SIZE: 100,
    LEASE: 60.0,
}

READ = [
    pytest.param(CAPACITY, 100_000_000, 100_000_000, id="capacity-int"),
    pytest.param(CAPACITY, 1e8, 100_000_000, id="capacity-float"),
    pytest.param(CAPACITY, "1e8", 100_000_000, id="capacity-text-exponent"),
    pytest.param(CAPACITY, "100_000_000", 100_000_000, id="capacity-text-underscores"),
    pytest.param(CAPACITY, "100000000", 100_000_000, id="capacity-text"),
    pytest.param(CAPACITY, "1.5e3", 1500, id="capacity-text-whole-with-a-point"),
    pytest.param(CAPACITY, 1, 1, id="capacity-least"),
    pytest.param(ERROR_RATE, 1e-3, 1e-3, id="error-rate-float"),
    pytest.param(ERROR_RATE, "1e-3", 1e-3, id="error-rate-text-exponent"),
    pytest.param(ERROR_RATE, "0.001", 1e-3, id="error-rate-text"),
    pytest.param(ERROR_RATE, 0.999, 0.999, id="error-rate-high"),
    pytest.param(EXPANSION, 4, 4, id="expansion-int"),
    pytest.param(EXPANSION, "4", 4, id="expansion-text"),
    pytest.param(EXPANSION, 0, 0, id="expansion-none"),
    pytest.param(TTL, 3600, 3600.0, id="ttl-int"),
    pytest.param(TTL, 0.5, 0.5, id="ttl-fraction"),
    pytest.param(TTL, "86_400", 86400.0, id="ttl-text"),
    pytest.param(TTL, None, None, id="ttl-none"),
    pytest.param(TTL, 0, None, id="ttl-zero-is-for-ever"),
    pytest.param(TTL, "0", None, id="ttl-text-zero-is-for-ever"),
    pytest.param(CACHE_SIZE, 10, 10, id="cache-int"),
    pytest.param(CACHE_SIZE, "1e3", 1000, id="cache-text"),
    pytest.param(CACHE_SIZE, 0, 0, id="cache-none"),
    pytest.param(RETRY_TIMEOUT, 5, 5.0, id="retry-int"),
    pytest.param(RETRY_TIMEOUT, "0.5", 0.5, id="retry-text-fraction"),
    pytest.param(RETRY_TIMEOUT, 0, 0.0, id="retry-not-at-all"),
    pytest.param(BATCH_SIZE, "1e2", 100, id="batch-text"),
    pytest.param(BATCH_SIZE, 1, 1, id="batch-least"),
    pytest.param(LEASE, 5, 5.0, id="lease-int"),
    pytest.param(LEASE, "0.5", 0.5, id="lease-text-fraction"),
]

NUMBERS = [
    pytest.param(value, id=f"{type(value).__name__}-{value!r:.12}")
    for value in (True, False, math.nan, math.inf, -math.inf, "nan", "inf", "x", "", "1,000", b"5", [5], 10**400)
]
REFUSED = [
    pytest.param(CAPACITY, 0, "at least 1", id="capacity-zero"),
    pytest.param(CAPACITY, -5, "at least 1", id="capacity-negative"),
    pytest.param(CAPACITY, 1.5, "whole", id="capacity-fraction"),
    pytest.param(CAPACITY, "1.5", "whole", id="capacity-text-fraction"),
    pytest.param(CAPACITY, None, "whole", id="capacity-none"),
    pytest.param(ERROR_RATE, 0, "between 0 and 1", id="error-rate-zero"),
    pytest.param(ERROR_RATE, "0", "between 0 and 1", id="error-rate-text-zero"),
    pytest.param(ERROR_RATE, 1, "between 0 and 1", id="error-rate-one"),
    pytest.param(ERROR_RATE, 1.0, "between 0 and 1", id="error-rate-one-as-float"),
    pytest.param(ERROR_RATE, -0.5, "between 0 and 1", id="error-rate-negative"),
    pytest.param(ERROR_RATE, 2, "between 0 and 1", id="error-rate-above-one"),
    pytest.param(ERROR_RATE, None, "between 0 and 1", id="error-rate-none"),
    pytest.param(EXPANSION, -1, "at least 0", id="expansion-negative"),
    pytest.param(EXPANSION, 1.5, "whole", id="expansion-fraction"),
    pytest.param(TTL, -1, "seconds", id="ttl-negative"),
    pytest.param(CACHE_SIZE, -1, "at least 0", id="cache-negative"),
    pytest.param(CACHE_SIZE, 0.5, "whole", id="cache-fraction"),
    pytest.param(RETRY_TIMEOUT, -1, "seconds", id="retry-negative"),
    pytest.param(RETRY_TIMEOUT, None, "seconds", id="retry-none"),
    pytest.param(BATCH_SIZE, 0, "at least 1", id="batch-zero"),
    pytest.param(BATCH_SIZE, 1.5, "whole", id="batch-fraction"),
    pytest.param(LEASE, 0, "above 0", id="lease-zero"),
    pytest.param(LEASE, -1, "above 0", id="lease-negative"),
]


def read(settings: dict[str, Any]) -> BloomConfig:
    return BloomConfig.from_settings(Settings(settings))


def field_of(setting: str) -> str:
    return setting.removeprefix("BLOOMFILTER_").lower()


def test_defaults() -> None:
    """Without settings: a million requests, one in a million lost, doubling layers, for ever, 65,536 repeats, …"""
    assert dataclasses.asdict(read({})) == {field_of(setting): value for setting, value in DEFAULTS.items()}
    assert read({}) == BloomConfig()


def test_names() -> None:
    """There are these settings and no others."""
    assert set(SETTINGS) == set(DEFAULTS)


@pytest.mark.parametrize(("setting", "value", "expected"), READ)
def test_read(setting: str, value: object, expected: float | None) -> None:
    """A number is the same number as an int, a float or the text of a command line; others keep their defaults."""
    config = dataclasses.asdict(read({setting: value}))
    assert config == {**dataclasses.asdict(BloomConfig()), field_of(setting): expected}
    assert type(config[field_of(setting)]) is type(expected)


def test_all_together() -> None:
    """Settings do not get in each other's way."""
    given = {CAPACITY: "5e3", ERROR_RATE: "0.01", EXPANSION: "0", TTL: "60", CACHE_SIZE: "7", RETRY_TIMEOUT: "8"}
    assert dataclasses.astuple(read({**given, BATCH_SIZE: "9", LEASE: "10"})) == (5000, 0.01, 0, 60.0, 7, 8.0, 9, 10.0)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("value", NUMBERS)
def test_not_a_number(setting: str, value: object) -> None:
    """What is no finite number is refused by every setting; true and false are no numbers."""
    with pytest.raises(ConfigError) as refusal:
        read({setting: value})
    assert f"{setting} = {value!r}" in str(refusal.value)


@pytest.mark.parametrize(("setting", "value", "allowed"), REFUSED)
def test_out_of_range(setting: str, value: object, allowed: str) -> None:
    """A refusal names the setting, the value as it was given, and what is allowed."""
    with pytest.raises(ConfigError) as refusal:
        read({setting: value})
    assert f"{setting} = {value!r}" in str(refusal.value)
    assert allowed in str(refusal.value)


def test_refusal_is_a_value_error() -> None:
    """Who catches this package's errors, or ValueError, catches a refusal."""
    assert issubclass(ConfigError, BloomError)
    assert issubclass(ConfigError, ValueError)


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
    ],
)
def test_unknown_name(unknown: str, nearest: str) -> None:
    """A misspelt setting is refused, not ignored, and the refusal names the one that was meant before all others."""
    with pytest.raises(ConfigError) as refusal:
        read({unknown: 5})
    _, given, rest = str(refusal.value).partition(f"{unknown} = 5")
    assert given
    assert min((name for name in SETTINGS if name in rest), key=rest.index) == nearest


@pytest.mark.parametrize("setting", ["BLOOMFILTER_BIT", "BLOOMFILTER_HASH_NUMBER"])
def test_settings_of_the_forks(setting: str) -> None:
    """A setting of scrapy-redis-bloomfilter is refused with what to set instead, and with nothing else."""
    with pytest.raises(ConfigError) as refusal:
        read({setting: 30})
    assert f"{setting} = 30" in str(refusal.value)
    assert {name for name in SETTINGS if name in str(refusal.value)} == {CAPACITY, ERROR_RATE}


@pytest.mark.parametrize("name", ["BLOOM_FILTER_CAPACITY", "MY_BLOOMFILTER_BIT", "REDIS_URL"])
def test_settings_of_others(name: str) -> None:
    """Settings without the prefix are none of its business."""
    assert read({name: "x"}) == BloomConfig()


def test_priorities() -> None:
    """The setting of the highest priority counts, in whatever order they were set."""
    settings = Settings({CAPACITY: 3}, priority="project")
    settings.set(CAPACITY, "5e1", priority="cmdline")
    settings.set(CAPACITY, 4, priority="spider")
    assert BloomConfig.from_settings(settings).capacity == 50


@pytest.mark.parametrize("priority", SETTINGS_PRIORITIES)
def test_every_priority(priority: str) -> None:
    """A setting counts, and is checked, wherever it was set."""
    settings = Settings()
    settings.set(CAPACITY, 3, priority=priority)
    assert BloomConfig.from_settings(settings).capacity == 3
    settings.set("BLOOMFILTER_CAPACTY", 3, priority=priority)
    with pytest.raises(ConfigError):
        BloomConfig.from_settings(settings)


def test_frozen() -> None:
    """Nothing changes a configuration once it is read."""
    config = read({})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.capacity = 5  # type: ignore[misc]  # the point of the test
