"""The pace of a filter between two snapshots: exact numbers, with layers created and deleted."""

from dataclasses import replace

import pytest

from scrapy_bloom.cli.report import FilterReport, Pace, build_report, pace_between
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.storage.stores import MemoryStore, run_steps

# Of three layers, for 100, 200 and 400 items.
STORE = MemoryStore()
BaseBloomFilter(STORE, "k", FilterParameters(capacity=100)).add_many([f"{number}" for number in range(400)])
FOUND = run_steps(build_report("k"), STORE.execute)
Holds = dict[int, int]


def look(now: float, holds: Holds) -> FilterReport:
    """A snapshot of the filter at this time: these layers, with so many items each."""
    assert FOUND is not None
    stored, info = FOUND.stored, FOUND.info
    layers = tuple(layer for layer in stored.layers if layer.index in holds)
    described = tuple(
        replace(of_layer, estimated_count=holds[layer.index])
        for layer, of_layer in zip(stored.layers, info.by_layer, strict=True)
        if layer.index in holds
    )
    return FilterReport(replace(stored, layers=layers, now=now), replace(info, by_layer=described))


CASES: dict[str, tuple[Holds, Holds, float, float | None]] = {
    "one layer": ({0: 10}, {0: 60}, 2.0, 20.0),
    "a layer more": ({0: 60}, {0: 100, 1: 50}, 3.6, 150 / 3.6),
    "a layer that has gone": ({0: 100, 1: 20}, {1: 70}, 2.0, 65.0),
    "nothing new": ({0: 10}, {0: 10}, 0.0, None),
    "an estimate that fell": ({0: 10}, {0: 9}, 0.0, None),
    "a layer that is too full": ({2: 400}, {2: 425}, 1.0, 0.0),
}


@pytest.mark.parametrize("case", CASES)
def test_pace(case: str) -> None:
    """New requests a second by the server's clock, and the time until the newest layer is full."""
    before, after, per_second, seconds_left = CASES[case]
    found = pace_between(look(1000.0, before), look(1025.0, after))
    assert found == Pace(25.0, per_second, seconds_left)


def test_no_time_has_passed() -> None:
    """Two snapshots of the same time give no pace."""
    assert pace_between(look(1000.0, {0: 1}), look(1000.0, {0: 2})) is None
