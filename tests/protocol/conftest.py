"""All searches of the protocol are counted, and the log is quiet meanwhile."""

import logging
import sys
from collections.abc import Iterator

import pytest

from tests.support.schedule_search import Search


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """A search meets every fault thousands of times; their logging is tested elsewhere."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True, scope="module")
def counted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Print the number of a module's searches, and of the states that they visited."""
    searches, states = Search.searches, Search.states
    yield
    if Search.searches == searches:
        return
    capturing = request.config.pluginmanager.getplugin("capturemanager")
    assert capturing is not None
    with capturing.global_and_fixture_disabled():
        line = f"{Search.searches - searches:,} searches, {Search.states - states:,} states"
        print(f"\n{request.module.__name__}: {line}", file=sys.stderr)
