"""Crawlers in the process of the tests, which have no engine that would ask again."""

import math

import pytest


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of a scheduler takes as long as it needs: on a busy machine it would stop in the middle."""
    monkeypatch.setattr("scrapy_bloom.delivery.dispatcher._MOST_SECONDS", math.inf)
