"""A filter's log: a growth is logged once, and a new generation is no growth."""

import logging
from collections.abc import Callable

import pytest

from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.storage.stores import MemoryStore


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Callable[[int], list[str]]:
    """Return a function that lists the log lines of a level."""
    caplog.set_level(logging.DEBUG)
    return lambda level: [record.getMessage() for record in caplog.records if record.levelno == level]


def test_generations_are_told_to_those_who_debug(messages: Callable[[int], list[str]]) -> None:
    """A filter with a TTL logs its generations at DEBUG only, one line for each."""
    now = [1000.0]
    parameters = FilterParameters(capacity=1000, error_rate=1e-6, ttl=100)
    bloom = BaseBloomFilter(MemoryStore(lambda: now[0]), "k", parameters, monotonic=lambda: now[0])
    for number in range(30):
        bloom.add(f"item {number}")
        now[0] += 20
    assert messages(logging.INFO) == messages(logging.WARNING) == []
    told = messages(logging.DEBUG)
    assert len(told) == 29
    assert all("'k' began another generation" in line for line in told)


def test_growth_within_a_generation_is_growth(messages: Callable[[int], list[str]]) -> None:
    """A generation beyond its share grows, and logs the size of the next layer."""
    parameters = FilterParameters(capacity=1000, error_rate=1e-6, ttl=100)
    bloom = BaseBloomFilter(MemoryStore(lambda: 1000.0), "k", parameters, monotonic=lambda: 1000.0)
    bloom.add_many([f"item {number}" for number in range(300)])
    (line,) = messages(logging.INFO)
    assert "'k' grew" in line
    assert line.endswith(" KB")
    assert messages(logging.DEBUG) == []
