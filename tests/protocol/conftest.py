"""The log is quiet in all searches of the protocol."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """A search meets every fault thousands of times; their logging is tested elsewhere."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
