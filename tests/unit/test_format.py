"""Numbers for readers, and repeated warnings: one at once, then one a minute with the number of the others."""

import logging

import pytest

from scrapy_bloom.text import LimitedWarnings, as_error_rate, as_expected_pages, as_number, as_size, plural


def test_size() -> None:
    """A size has a fitting unit: never "0.0 MB", and never 1,000 where there is a larger unit."""
    assert [as_size(number) for number in (0, 1, 64, 999)] == ["0 bytes", "1 byte", "64 bytes", "999 bytes"]
    assert [as_size(number) for number in (1000, 3_594, 999_940)] == ["1.0 KB", "3.6 KB", "999.9 KB"]
    numbers = (999_960, 3_900_000, 999_960_000, 34_000_000_000, 2_000_000_000_000)
    assert [as_size(number) for number in numbers] == ["1.0 MB", "3.9 MB", "1.0 GB", "34.0 GB", "2,000.0 GB"]


def test_expected_pages() -> None:
    """The number of possibly missed pages has a useful precision."""
    assert {as_expected_pages(number) for number in (0.0, 6.2e-48, 0.0049)} == {"fewer than 0.01 pages"}
    numbers, texts = (0.0051, 1.276, 9.994, 9.996, 12_345.6), ("0.01", "1.28", "9.99", "10", "12,346")
    assert [as_expected_pages(number) for number in numbers] == [f"about {text} pages" for text in texts]


def test_plural() -> None:
    """Nouns agree with their numbers, whose thousands are separated."""
    texts = ["0 layers", "1 layer", "2 layers", "12,345 layers"]
    assert [plural(number, "layer") for number in (0, 1, 2, 12_345)] == texts


def test_number() -> None:
    """A number is shown as users type it, and reads back as itself."""
    numbers = (1e-6, 2.5e-12, 0.001, 0, 30.0, 86_400, 1e8, 1e100)
    texts = ["1e-6", "2.5e-12", "0.001", "0", "30", "86400", "1e8", "1e100"]
    assert list(map(as_number, numbers)) == texts
    assert tuple(map(float, texts)) == numbers


def test_digits() -> None:
    """An estimate is shown with as many digits as it deserves."""
    assert [as_number(number, 2) for number in (6.4321e-7, 0.0123, 0.5)] == ["6.4e-7", "0.012", "0.5"]


def test_error_rates() -> None:
    """An error rate has two digits, and an estimate that means nothing has none."""
    rates = (0.0, 6.5e-55, 9.99e-16, 1e-15, 1.234e-7, 0.5)
    assert [as_error_rate(rate) for rate in rates] == ["0", "<1e-15", "<1e-15", "1e-15", "1.2e-7", "0.5"]


logger = logging.getLogger("tests.limited")


class Clock:
    """A clock that tests set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """The first warning is logged at once, and the first after a minute counts those in between."""
    clock = Clock()
    warnings = LimitedWarnings(logger, clock)
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
    warnings = LimitedWarnings(logger, clock)
    warnings.warn("Lost %d of %d", 1, 9)
    warnings.warn("Gone")
    warnings.warn("Lost %d of %d", 2, 9)
    assert caplog.messages == ["Lost 1 of 9", "Gone"]
    warnings.flush()
    assert caplog.messages[2:] == ["Lost 2 of 9 (1x since the last such line)"]
