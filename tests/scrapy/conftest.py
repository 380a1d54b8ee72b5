"""Crawlers in the process of the tests, which have no engine that would ask again."""

import math
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from scrapy_bloom import BloomScheduler
from scrapy_bloom.queue.tuning import TUNING


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of a scheduler takes as long as it needs: on a busy machine it would stop in the middle."""
    monkeypatch.setattr(BloomScheduler, "_tuning", replace(TUNING, reactor_seconds=math.inf))


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Each test closes what it opens: heartbeats that go on would count as the round trips of a later test."""
    yield
    assert [thread.name for thread in threading.enumerate() if "heartbeat" in thread.name] == []
