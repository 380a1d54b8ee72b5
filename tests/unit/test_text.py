"""Numbers for readers."""

import pytest

from scrapy_bloom._format import as_error_rate, as_expected_pages, as_number, as_size, plural


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (64, "64 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 KB"),
        (3_594, "3.6 KB"),
        (999_940, "999.9 KB"),
        (999_960, "1.0 MB"),
        (3_900_000, "3.9 MB"),
        (999_960_000, "1.0 GB"),
        (34_000_000_000, "34.0 GB"),
        (2_000_000_000_000, "2,000.0 GB"),
    ],
)
def test_size(number: int, text: str) -> None:
    """A size has a fitting unit: never "0.0 MB", and never 1,000 where there is a larger unit."""
    assert as_size(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "fewer than 0.01 pages"),
        (6.2e-48, "fewer than 0.01 pages"),
        (0.0049, "fewer than 0.01 pages"),
        (0.0051, "about 0.01 pages"),
        (1.276, "about 1.28 pages"),
        (9.994, "about 9.99 pages"),
        (9.996, "about 10 pages"),
        (12_345.6, "about 12,346 pages"),
    ],
)
def test_expected_pages(number: float, text: str) -> None:
    """The number of possibly missed pages has a useful precision."""
    assert as_expected_pages(number) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 layers"), (1, "1 layer"), (2, "2 layers"), (12_345, "12,345 layers")]
)
def test_plural(count: int, text: str) -> None:
    """Only 1 is singular, and thousands are separated."""
    assert plural(count, "layer") == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e-6, "1e-6"),
        (2.5e-12, "2.5e-12"),
        (0.001, "0.001"),
        (0, "0"),
        (30.0, "30"),
        (86_400, "86400"),
        (1e8, "1e8"),
        (1e100, "1e100"),
    ],
)
def test_number(number: float, text: str) -> None:
    """A number is shown as users type it, and reads back as itself."""
    assert as_number(number) == text
    assert float(text) == number


def test_digits() -> None:
    """An estimate is shown with as many digits as it deserves."""
    assert [as_number(number, 2) for number in (6.4321e-7, 0.0123, 0.5)] == ["6.4e-7", "0.012", "0.5"]


def test_error_rates() -> None:
    """An error rate has two digits, and an estimate that means nothing has none."""
    rates = (0.0, 6.5e-55, 9.99e-16, 1e-15, 1.234e-7, 0.5)
    assert [as_error_rate(rate) for rate in rates] == ["0", "<1e-15", "<1e-15", "1e-15", "1.2e-7", "0.5"]
