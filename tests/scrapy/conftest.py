"""Crawlers in the tests' own process, without an engine that would poll again."""

import math
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a scheduler's call take as long as it needs: on a busy machine it would stop half-way."""
    monkeypatch.setattr("scrapy_bloom.delivery._REACTOR_SECONDS", math.inf)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Assert that no heartbeat thread leaks: it would add round trips to a later test."""
    yield
    assert [thread.name for thread in threading.enumerate() if "heartbeat" in thread.name] == []
