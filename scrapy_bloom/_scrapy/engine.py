"""The places where supported versions of Scrapy differ, or where it has no public way."""

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.utils.defer import deferred_from_coro

from scrapy_bloom._runtime import RUNTIME, Runtime

logger = logging.getLogger(__name__)

# What Scrapy's own fingerprints depend on besides method, URL and body, from 2.19 on.
FINGERPRINTED_META = ("verbatim_url",)
CLOSE_SPIDER_IS_ASYNC = "close_spider_async"  # Scrapy 2.14 and newer
# Scrapy's words for a callback that a spider does not have.
_NO_METHOD = re.compile(r"Method '(\w+)' not found in")


def close_spider(crawler: Crawler, spider: Spider, reason: str, runtime: Runtime = RUNTIME) -> None:
    """Ask the engine to end the crawl, from code that cannot wait for it."""
    engine = _engine(crawler)
    if hasattr(engine, CLOSE_SPIDER_IS_ASYNC):
        deferred_from_coro(engine.close_spider_async(reason=reason))
    elif engine is not None:
        # Scrapy 2.13 closes an idle spider at once, and looks at it again where this was called from.
        runtime.call_later(0, lambda: _slot(crawler) and engine.close_spider(spider, reason))


def missing_callback(error: Exception) -> str | None:
    """Return the callback that a spider lacks for a request, by the error of reading that; None of another error."""
    found = _NO_METHOD.match(str(error)) if type(error) is ValueError else None
    return found and found[1]


class EngineWakeup:
    """Has the engine ask for the next request soon, and not only at its heartbeat every 5 seconds."""

    def __init__(self, crawler: Crawler, runtime: Runtime = RUNTIME) -> None:
        self._crawler = crawler
        self._runtime = runtime
        self._is_set = False

    def set(self, seconds: float) -> None:
        """Ring once after some seconds; one that is set already is left as it is."""
        if not self._is_set:
            self._is_set = self._runtime.call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._is_set = False
        slot = _slot(self._crawler)
        if slot is not None and slot.closing is None:
            slot.nextcall.schedule()


def apply_backpressure(
    crawler: Crawler, has_room: Callable[[], bool], seconds: float, runtime: Runtime = RUNTIME
) -> None:
    """Have the engine take no more from the spider's start() while there is no room, which is asked every so often.

    The engine takes what start() gives as fast as it can, and has no way for a scheduler to say that it is too fast.
    """
    engine = _engine(crawler)
    if engine is not None and engine._start is not None:
        engine._start = _held_back(engine._start, has_room, lambda: runtime.pause(seconds))


class Ticker:
    """Calls something every few seconds while the reactor runs; what it raises is logged, and it goes on.

    Where it returns True it has more to do, and is called again when others have had as long as it took.
    """

    def __init__(self, seconds: float, call: Callable[[], bool | None], runtime: Runtime = RUNTIME) -> None:
        self._runtime = runtime
        self._seconds = seconds
        self._call = call
        self._is_running = False

    def start(self) -> None:
        """Begin, where there is a reactor."""
        self._is_running = True
        self._wait(self._seconds)

    def stop(self) -> None:
        """Call it no more."""
        self._is_running = False

    def _wait(self, seconds: float) -> None:
        self._runtime.call_later(seconds, self._tick)

    def _tick(self) -> None:
        if not self._is_running:
            return
        has_more, begin = None, self._runtime.monotonic()
        try:
            has_more = self._call()
        except Exception:  # whatever it was, the next may go well
            logger.exception("Something that is done every %g s failed", self._seconds)
        self._wait(min(self._runtime.monotonic() - begin, self._seconds) if has_more else self._seconds)


def is_closing(crawler: Crawler) -> bool:
    """Return whether the engine waits for what is in progress, to end the crawl."""
    slot = _slot(crawler)
    return slot is not None and slot.closing is not None


def in_progress(crawler: Crawler) -> Collection[Request]:
    """Return the requests that were handed to the engine, and that it is not done with."""
    slot = _slot(crawler)
    return () if slot is None else slot.inprogress


def scheduler_of(crawler: Crawler) -> Any:
    """The scheduler of a crawl, or None before there is one."""
    slot = _slot(crawler)
    return None if slot is None else slot.scheduler


def closing_scheduler(crawler: Crawler) -> Any:
    """The scheduler of a crawl that is being closed, or None while it is not."""
    slot = _slot(crawler)
    return None if slot is None or slot.closing is None else slot.scheduler


async def _held_back(
    start: AsyncIterator[Any], has_room: Callable[[], bool], pause: Callable[[], Awaitable[None]]
) -> AsyncIterator[Any]:
    async for item_or_request in start:
        yield item_or_request
        while not has_room():
            await pause()


def _engine(crawler: Crawler) -> Any:
    try:
        return crawler.engine
    except RuntimeError:  # Scrapy 2.19, where there is none yet; None in older versions
        return None


def _slot(crawler: Crawler) -> Any:
    return getattr(_engine(crawler), "_slot", None)
