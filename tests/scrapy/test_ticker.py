"""The periodic call of a scheduler."""

import asyncio
from collections.abc import Callable

import pytest

from scrapy_bloom import engine
from tests.support.in_process import run
from tests.support.waiting import LIMIT


def ticking(seconds: float, call: Callable[[], bool | None], over: Callable[[], object]) -> None:
    """Let a ticker call a function until another one is true; no call that was due at the stop is made."""

    async def tick() -> None:
        ticker = engine.Ticker(seconds, call)
        ticker.start()
        ticker._tick()
        while not over():
            await asyncio.sleep(0)
        ticker.stop()
        ticker._tick()

    run(asyncio.wait_for(tick(), LIMIT))


def test_an_error_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a call is logged, and the calls continue."""
    calls: list[int] = []

    def call() -> None:
        if len(calls) == 3:  # on a busy machine both timers were due before `over` was asked
            return
        calls.append(len(calls))
        if len(calls) < 3:
            raise RuntimeError("not now")

    ticking(0.001, call, lambda: len(calls) == 3)
    assert calls == [0, 1, 2]
    assert sum("not now" in str(record.exc_info) for record in caplog.records) == 2


def test_more_to_do_is_done_at_once() -> None:
    """A call that reports more work is repeated at once until there is none."""
    calls = [False, True, True]
    ticking(3600, calls.pop, lambda: not calls)
