"""The periodic call of a scheduler."""

import asyncio

import pytest

from scrapy_bloom import engine
from tests.support.in_process import run
from tests.support.waiting import LIMIT

HOUR = 3600.0


def test_an_error_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a call is logged, and the calls continue."""
    calls: list[int] = []

    async def ticking() -> None:
        over = asyncio.Event()

        def call() -> None:
            calls.append(len(calls))
            if len(calls) < 3:
                raise RuntimeError("not now")
            over.set()

        ticker = engine.Ticker(0.001, call)
        ticker.start()
        await asyncio.wait_for(over.wait(), LIMIT)
        ticker.stop()
        # A call that was due at the stop is not made.
        ticker._tick()

    run(ticking())
    assert calls == [0, 1, 2]
    assert sum("not now" in str(record.exc_info) for record in caplog.records) == 2


def test_more_to_do_is_done_at_once() -> None:
    """A call that reports more work is repeated at once until there is none."""
    calls = [False, True, True]

    async def ticking() -> None:
        over = asyncio.Event()

        def call() -> bool:
            has_more = calls.pop()
            if not has_more:
                over.set()
            return has_more

        ticker = engine.Ticker(HOUR, call)
        ticker.start()
        ticker._tick()
        await asyncio.wait_for(over.wait(), LIMIT)
        ticker.stop()

    run(ticking())
    assert calls == []
