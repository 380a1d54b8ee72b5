"""Numbers for readers, and repeated warnings: one at once, then one a minute with the number of the others."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from scrapy_bloom.text import LimitedWarnings, as_error_rate, as_expected_pages, as_number, as_size, plural
from tests.support.callers import Clock


def table(numbers: tuple[float, ...], texts: str) -> dict[float, str]:
    return dict(zip(numbers, texts.split(", "), strict=True))


# Never "0.0 MB", and never 1,000 of a unit where there is a larger one.
SIZES = table((0, 1, 64, 999, 1000, 3_594), "0 bytes, 1 byte, 64 bytes, 999 bytes, 1.0 KB, 3.6 KB")
SIZES |= table((999_940, 999_960, 3_900_000, 999_960_000, 34_000_000_000), "999.9 KB, 1.0 MB, 3.9 MB, 1.0 GB, 34.0 GB")
PAGES = dict.fromkeys((0.0, 6.2e-48, 0.0049), "fewer than 0.01 pages")
PAGES |= table((0.0051, 1.276, 9.994, 9.996), "about 0.01 pages, about 1.28 pages, about 9.99 pages, about 10 pages")
RATES = table((0.0, 6.5e-55, 9.99e-16, 1e-15, 1.234e-7, 0.5), "0, <1e-15, <1e-15, 1e-15, 1.2e-7, 0.5")
NUMBERS = table((1e-6, 2.5e-12, 0.001, 0, 30.0, 86_400, 1e8, 1e100), "1e-6, 2.5e-12, 0.001, 0, 30, 86400, 1e8, 1e100")
FORMATS: list[tuple[Callable[[Any], str], dict[float, str]]] = [
    *((as_size, SIZES), (as_expected_pages, PAGES), (as_error_rate, RATES), (as_number, NUMBERS)),
    (lambda number: as_number(number, 2), table((6.4321e-7, 0.0123), "6.4e-7, 0.012")),
    (lambda number: plural(number, "layer"), table((0, 1, 2, 1234), "0 layers, 1 layer, 2 layers, 1,234 layers")),
]


@pytest.mark.parametrize(("shown", "texts"), FORMATS)
def test_numbers(shown: Callable[[Any], str], texts: dict[Any, str]) -> None:
    """A number is shown as readers need it."""
    assert {number: shown(number) for number in texts} == texts


def test_a_number_reads_back() -> None:
    """A number that users may type is shown as they type it."""
    assert list(map(float, NUMBERS.values())) == list(NUMBERS)


logger = logging.getLogger("tests.limited")


def test_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """The first warning is logged at once, and the first after a minute counts those in between."""
    clock = Clock()
    warnings = LimitedWarnings(logger, clock.monotonic)
    for _ in range(150):
        warnings.warn("The filter at %r is gone", "key")
        clock.now += 1
    assert caplog.messages == [
        "The filter at 'key' is gone",
        "The filter at 'key' is gone (60x since the last such line)",
        "The filter at 'key' is gone (60x since the last such line)",
    ]
    warnings.flush()
    assert caplog.messages[3:] == ["The filter at 'key' is gone (29x since the last such line)"]
    warnings.flush()
    clock.now += 60
    warnings.warn("The filter at %r is gone", "key")
    assert caplog.messages[4:] == ["The filter at 'key' is gone"]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_others_are_not_kept_back(caplog: pytest.LogCaptureFixture) -> None:
    """Each text has its own minute, regardless of its arguments."""
    clock = Clock()
    warnings = LimitedWarnings(logger, clock.monotonic)
    warnings.warn("Lost %d of %d", 1, 9)
    warnings.warn("Gone")
    warnings.warn("Lost %d of %d", 2, 9)
    assert caplog.messages == ["Lost 1 of 9", "Gone"]
    warnings.flush()
    assert caplog.messages[2:] == ["Lost 2 of 9 (1x since the last such line)"]
