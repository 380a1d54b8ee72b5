"""Repeated warnings: one is logged at once, then one a minute with the number of the others."""

import logging

import pytest

from scrapy_bloom._format import LimitedWarnings

logger = logging.getLogger("tests.limited")


class Clock:
    """A clock that tests set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """The first warning is logged at once, and the first after a minute counts those in between."""
    clock = Clock()
    warnings = LimitedWarnings(logger, clock)
    for _ in range(150):
        warnings.warn("The filter at %r is gone", "key")
        clock.now += 1
    assert caplog.messages == [
        "The filter at 'key' is gone",
        "The filter at 'key' is gone (60x since the last such line)",
        "The filter at 'key' is gone (60x since the last such line)",
    ]
    warnings.flush()
    assert caplog.messages[3:] == ["The filter at 'key' is gone (29x since the last such line)"]
    warnings.flush()
    clock.now += 60
    warnings.warn("The filter at %r is gone", "key")
    assert caplog.messages[4:] == ["The filter at 'key' is gone"]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_others_are_not_kept_back(caplog: pytest.LogCaptureFixture) -> None:
    """Each text has its own minute, regardless of its arguments."""
    clock = Clock()
    warnings = LimitedWarnings(logger, clock)
    warnings.warn("Lost %d of %d", 1, 9)
    warnings.warn("Gone")
    warnings.warn("Lost %d of %d", 2, 9)
    assert caplog.messages == ["Lost 1 of 9", "Gone"]
    warnings.flush()
    assert caplog.messages[2:] == ["Lost 2 of 9 (1x since the last such line)"]
