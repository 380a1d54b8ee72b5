"""Something that a scheduler has done every so often."""

import asyncio

from scrapy_bloom import _engine

HOUR = 3600.0
LIMIT = 60.0


def test_more_to_do_is_done_at_once() -> None:
    """A call that says that there is more comes again without the usual wait, until there is no more."""
    calls = [False, True, True]

    async def ticking() -> None:
        over = asyncio.Event()

        def call() -> bool:
            has_more = calls.pop()
            if not has_more:
                over.set()
            return has_more

        ticker = _engine.Ticker(HOUR, call)
        ticker.start()
        ticker._tick()
        await asyncio.wait_for(over.wait(), LIMIT)
        ticker.stop()

    asyncio.run(ticking())
    assert calls == []
