"""Parameters of tests, some of which are slow."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def long_unless(is_quick: Callable[[Any], object], values: Iterable[Any]) -> list[Any]:
    """Return the values as parameters; only `make test-all` runs the slow ones."""
    return [value if is_quick(value) else pytest.param(value, marks=pytest.mark.long) for value in values]
