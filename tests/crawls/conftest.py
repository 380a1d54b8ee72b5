"""Each test here crawls, and may have a server of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import Server, running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.crawl)


@pytest.fixture
def own() -> Iterator[Server]:
    """A server of this test's own, to be changed, emptied or killed."""
    with running("valkey") as server:
        yield server
