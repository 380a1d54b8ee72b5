"""The settings by name, and the values of settings without a number."""

import dataclasses
import re

import pytest

from scrapy_bloom.errors import BloomError, ConfigError
from scrapy_bloom.settings import SETTINGS, BloomSettings
from tests.support.bloom_settings import read


def test_all_together() -> None:
    """All settings are read independently."""
    given = zip(SETTINGS, ["5e3", "0.01", "0", "60", "7", "8", "9", "10", "11"], strict=True)
    defaults = False, BloomSettings().retry_statuses
    assert dataclasses.astuple(read(dict(given))) == (5000, 0.01, 0, 60.0, 7, 8.0, 9, 10.0, 11, (), *defaults)


@pytest.mark.parametrize("setting", SETTINGS)
def test_refused(setting: str) -> None:
    """A refusal names the setting and the value; `test_options` has all values. It is a ValueError, too."""
    with pytest.raises(BloomError, match=f"{setting} = True: must ") as refusal:
        read({setting: True})
    assert isinstance(refusal.value, ConfigError)
    assert isinstance(refusal.value, ValueError)


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


def test_flag() -> None:
    """BLOOMFILTER_RETRY_FAILED is read as Scrapy reads a boolean; another value is refused."""
    given = {True: True, "1": True, "False": False, 0: False}
    assert {value: read({"BLOOMFILTER_RETRY_FAILED": value}).retry_failed for value in given} == given
    refused: list[object] = ["yes", "2x", []]
    for value in refused:
        with pytest.raises(
            ConfigError, match=re.escape(f"BLOOMFILTER_RETRY_FAILED = {value!r}: must be True or False")
        ):
            read({"BLOOMFILTER_RETRY_FAILED": value})
