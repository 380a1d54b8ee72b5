"""The errors of this package can be sent to another process."""

import pickle

import pytest

from scrapy_bloom import UnavailableError
from scrapy_bloom.errors import StoppedError


@pytest.mark.parametrize("kind", [UnavailableError, StoppedError])
def test_unavailable_error_is_pickled(kind: type[UnavailableError]) -> None:
    """An error comes back with its text and its cause."""
    error = kind(3.0, "ConnectionError: refused")
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    assert (str(again), again.cause, again.timeout) == (str(error), error.cause, 3.0)
