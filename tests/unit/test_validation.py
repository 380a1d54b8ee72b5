"""The values of each setting, in every type, and the text of refusals."""

import dataclasses
import math

import pytest

from scrapy_bloom.errors import BloomError, ConfigError
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
    pytest.param(BATCH_SIZE, 1000, 1000, id="batch-largest"),
    pytest.param(LEASE, 5, 5.0, id="lease-int"),
    pytest.param(MAX_DELIVERIES, "0", 0, id="max-deliveries-no-bound"),
    pytest.param(MAX_DELIVERIES, 2.0, 2, id="max-deliveries-float"),
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
    pytest.param(BATCH_SIZE, 0, "from 1 to 1,000", id="batch-zero"),
    pytest.param(BATCH_SIZE, 1.5, "whole", id="batch-fraction"),
    pytest.param(BATCH_SIZE, 1001, "from 1 to 1,000", id="batch-large"),
    pytest.param(BATCH_SIZE, "5e3", "from 1 to 1,000", id="batch-larger"),
    pytest.param(LEASE, 0, "above 0", id="lease-zero"),
    pytest.param(MAX_DELIVERIES, 1, "at least 2", id="max-deliveries-one"),
    pytest.param(MAX_DELIVERIES, "many", "at least 2", id="max-deliveries-text"),
    pytest.param(LEASE, -1, "above 0", id="lease-negative"),
    pytest.param(LEASE, "1e12", "at most 86,400", id="lease-of-ages"),
]


@pytest.mark.parametrize(("setting", "value", "expected"), READ)
def test_read(setting: str, value: object, expected: float | None) -> None:
    """A number is the same as an int, a float or text; other settings are unaffected."""
    config = dataclasses.asdict(read({setting: value}))
    assert config == {**dataclasses.asdict(BloomSettings()), field_of(setting): expected}
    assert type(config[field_of(setting)]) is type(expected)


def test_all_together() -> None:
    """All settings are read independently."""
    given = {CAPACITY: "5e3", ERROR_RATE: "0.01", EXPANSION: "0", TTL: "60", CACHE_SIZE: "7"}
    given |= {RETRY_TIMEOUT: "8", BATCH_SIZE: "9", LEASE: "10", MAX_DELIVERIES: "11"}
    defaults = False, BloomSettings().retry_statuses
    assert dataclasses.astuple(read(given)) == (5000, 0.01, 0, 60.0, 7, 8.0, 9, 10.0, 11, (), *defaults)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("value", NUMBERS)
def test_not_a_number(setting: str, value: object) -> None:
    """A value that is no finite number is refused by every setting; true and false are no numbers."""
    with pytest.raises(ConfigError) as refusal:
        read({setting: value})
    assert f"{setting} = {value!r}" in str(refusal.value)


@pytest.mark.parametrize(("setting", "value", "allowed"), REFUSED)
def test_out_of_range(setting: str, value: object, allowed: str) -> None:
    """A refusal names the setting, the value as it was given, and the allowed range."""
    with pytest.raises(ConfigError) as refusal:
        read({setting: value})
    assert f"{setting} = {value!r}" in str(refusal.value)
    assert allowed in str(refusal.value)


def test_refusal_is_a_value_error() -> None:
    """An `except` for this package's errors, or for ValueError, catches a refusal."""
    assert issubclass(ConfigError, BloomError)
    assert issubclass(ConfigError, ValueError)


@pytest.mark.parametrize(
    ("value", "patterns"),
    [(None, []), ([], []), ("/sitemap", ["/sitemap"]), (["a{1,2}", "b"], ["a{1,2}", "b"]), (("a",), ["a"])],
)
def test_always(value: object, patterns: list[str]) -> None:
    """A list of patterns, or one pattern as text, which may contain commas."""
    assert [pattern.pattern for pattern in read({"BLOOMFILTER_ALWAYS": value}).always] == patterns


@pytest.mark.parametrize("value", ["(", ["a", "*"], [""], 5, [5], [b"a"], {"a": 1}, True])
def test_invalid_pattern(value: object) -> None:
    """An invalid pattern is refused by the setting's name, with the pattern or the value."""
    with pytest.raises(ConfigError, match="BLOOMFILTER_ALWAYS") as refusal:
        read({"BLOOMFILTER_ALWAYS": value})
    assert repr(value[-1] if value == ["a", "*"] else value)[1:-1] in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "statuses"),
    [
        (None, {*range(500, 600), 408, 429}),
        (["5xx", 408, 429], {*range(500, 600), 408, 429}),
        ([], set()),
        ([503], {503}),
        ((503, "404"), {404, 503}),
        ("404, 503", {404, 503}),
        ("4XX,999", {*range(400, 500), 999}),
    ],
)
def test_statuses(value: object, statuses: set[int]) -> None:
    """A list of statuses and of classes, or text with commas."""
    assert read({"BLOOMFILTER_RETRY_STATUSES": value}).retry_statuses == statuses


@pytest.mark.parametrize(
    "value", ["", "5", "5xx;408", 503, [200], [299], [1000], [50], ["2xx"], [503.0], [True], [None], {}]
)
def test_invalid_statuses(value: object) -> None:
    """A status that no refused response has is refused, with the setting and its value."""
    with pytest.raises(ConfigError) as refusal:
        read({"BLOOMFILTER_RETRY_STATUSES": value})
    assert f"BLOOMFILTER_RETRY_STATUSES = {value!r}" in str(refusal.value)
    assert "['5xx', 408, 429]" in str(refusal.value)


@pytest.mark.parametrize(("value", "expected"), [(True, True), ("1", True), ("False", False), (0, False)])
def test_flag(value: object, expected: bool) -> None:
    """BLOOMFILTER_RETRY_FAILED is read as Scrapy reads a boolean."""
    assert read({"BLOOMFILTER_RETRY_FAILED": value}).retry_failed is expected


@pytest.mark.parametrize("value", ["yes", "2x", []])
def test_invalid_flag(value: object) -> None:
    """Another value is refused, with the setting and its value."""
    with pytest.raises(ConfigError) as refusal:
        read({"BLOOMFILTER_RETRY_FAILED": value})
    assert f"BLOOMFILTER_RETRY_FAILED = {value!r}: must be True or False" in str(refusal.value)
