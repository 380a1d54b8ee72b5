"""The table of options: each reads every allowed number, and refuses others."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from scrapy_bloom.errors import ConfigError
from scrapy_bloom.settings import OPTIONS, Option

# The documented ranges, stated independently. The least and the largest values are among them.
ALLOWED: dict[str, Callable[[float], bool]] = {
    "capacity": lambda number: number >= 1 and float(number).is_integer(),
    "error_rate": lambda number: 1e-15 <= number < 1,
    "expansion": lambda number: number >= 0 and float(number).is_integer(),
    "ttl": lambda number: number == 0 or 1 <= number <= 1e9,
    "cache_size": lambda number: number >= 0 and float(number).is_integer(),
    "retry_timeout": lambda number: number >= 0,
    "batch_size": lambda number: 1 <= number <= 1000 and float(number).is_integer(),
    "lease": lambda number: 0 < number <= 86_400,
    "max_deliveries": lambda number: number == 0 or (number >= 2 and float(number).is_integer()),
    "partitions": lambda number: 1 <= number <= 1024 and float(number).is_integer(),
}
BY_NAME = {option.name: option for option in OPTIONS}
INTEGERS = {"capacity", "expansion", "cache_size", "batch_size", "max_deliveries", "partitions"}
# Options without a value at 0.
FOR_NONE = {"ttl"}
# The limits, and their neighbours.
EDGES = [
    edge
    for limit in (0.0, 1e-15, 0.1, 1.0, 2.0, 1000.0, 1001.0, 1024.0, 86_400.0, 1e9)
    for edge in (limit, math.nextafter(limit, -1), math.nextafter(limit, math.inf), -limit)
]

names = st.sampled_from(sorted(ALLOWED))
numbers = (
    st.sampled_from(EDGES)
    | st.integers(-10, 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-5, 10**9).map(float)
)


def spelled(number: float) -> list[Any]:
    """Return a number in every spelling."""
    texts = [repr(number), f" {number!r} ", f"{number:_}" if isinstance(number, int) else f"{number:.17g}"]
    return [number, *texts, *([float(number)] if isinstance(number, int) else [])]


def test_every_option_is_looked_at() -> None:
    """No option is missing here."""
    assert set(ALLOWED) == set(BY_NAME)
    assert {option.name for option in OPTIONS if option.is_integer} == INTEGERS


@given(name=names, number=numbers)
@example("capacity", 1).via("least")
@example("error_rate", 1e-15).via("least")
@example("error_rate", 1).via("limit")
@example("ttl", 1).via("least")
@example("ttl", 0).via("forever")
@example("lease", 5e-324).via("least")
@example("lease", 86_400).via("most")
@example("lease", 1e12).via("more than a thread can wait")
def test_exactly_what_is_allowed_is_read(name: str, number: float) -> None:
    """A number is read the same in every spelling, or refused in every spelling."""
    option = BY_NAME[name]
    for value in spelled(number):
        if not ALLOWED[name](number):
            refuses(option, value)
            continue
        read = option.read(value)
        if number == 0 and name in FOR_NONE:
            assert read is None
            continue
        assert read == number
        assert isinstance(read, int if name in INTEGERS else float | None)


@given(name=names, value=st.text() | st.binary() | st.booleans() | st.lists(st.integers()) | st.none())
@example("capacity", True).via("no number, though Python calls it an int")
@example("retry_timeout", "nan").via("not finite")
@example("retry_timeout", math.inf).via("not finite")
@example("lease", 10**400).via("no float")
def test_what_is_no_number_is_refused(name: str, value: object) -> None:
    """Any other value is refused, None too unless it is the option's default."""
    assume(not isinstance(value, str) or not is_finite(value))
    assume(not (name in FOR_NONE and value is None))
    refuses(BY_NAME[name], value)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_defaults_are_allowed(option: Option[Any]) -> None:
    """A default reads as itself, and so does its text in the documentation."""
    assert option.read(option.default) == option.default
    assert option.read(option.default_text.replace(",", "_")) == option.default


def refuses(option: Option[Any], value: object) -> None:
    """Assert that the error has the argument and the setting, the value as given, the range, and the purpose."""
    with pytest.raises(ConfigError) as refusal:
        option.read(value)
    label, meaning = f"{option.name} (BLOOMFILTER_{option.name.upper()})", option.meaning.partition(";")[0]
    assert str(refusal.value) == f"{label} = {value!r}: must {option.allowed}; set the {meaning}"


def is_finite(text: str) -> bool:
    """Return whether a text is that of a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
