"""One pace for a site over all workers of a crawl: each request is sent at a moment that its slot reserved in Redis.

A slot of the downloader reserves one moment, when it has a request and room for the transfer. So a worker that is
killed, frozen or stopped wastes one moment of a slot at most, and no other worker waits for it any longer. A worker
makes one call at a time, for all slots that need a moment. A moment is spent up to half a delay late: then the gap to
the next request is half a delay at least, as with Scrapy's own jitter. While Redis is silent nothing is sent.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from scrapy import signals
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future

from scrapy_bloom import engine
from scrapy_bloom.runtime import RUNTIME, Runtime
from scrapy_bloom.transport.connect import connect, disconnect
from scrapy_bloom.transport.retry import CircuitBreaker, RedisUnreachableError
from scrapy_bloom.transport.scripts import Script

RESERVED, WASTED = "bloomfilter/moments_reserved", "bloomfilter/moments_wasted"

# How late a moment may be spent: this part of the delay, and so many seconds at least.
_LATE, _MIN_LATE = 0.5, 0.02
# How much the usual round trip grows with each call, so that a distance that has grown becomes the usual one.
_GROWTH = 1.05
# Seconds until the next call while Redis is unreachable.
_PAUSE_SECONDS = 0.6
_MICROSECONDS = 1_000_000


class Moments:
    """The moments of slots in Redis, by a client of its own, which connects at the first call. Blocks.

    Args:
        settings: the crawl's settings.
        key_of: the key of a slot, by its name.
    """

    def __init__(self, settings: BaseSettings, key_of: Callable[[str], str]) -> None:
        self._settings, self._key_of = settings, key_of
        self._client: Any = None
        self._script = Script("pace")

    def reserve(self, slots: Sequence[str], gaps: Sequence[int]) -> Sequence[int]:
        """Reserve a moment of each slot, with a gap behind it; return how long to wait for it, in microseconds."""
        if self._client is None:
            self._client = connect(self._settings)
        waits: Sequence[int] = self._script.call(self._client, [*map(self._key_of, slots)], gaps)
        return waits

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            disconnect(self._client)


class Pacer:
    """Lets the downloader of a worker send each request at its moment.

    Args:
        crawler: the crawl.
        moments: reserves moments.
        count: adds a number to a stat.
        runtime: the clock, timers and threads.
    """

    def __init__(
        self,
        crawler: Crawler,
        moments: Moments,
        count: Callable[[str, int], object],
        runtime: Runtime = RUNTIME,
    ) -> None:
        self._crawler, self._source, self._count, self._runtime = crawler, moments, count, runtime
        self._breaker = CircuitBreaker(runtime, "the downloader")
        # By slot: its moment, and its name with a function that has the downloader look at the slot.
        self._moments: dict[Any, float] = {}
        self._needy: dict[Any, tuple[str, Callable[[], object]]] = {}
        self._is_asking = False
        self._asking: Any = None
        self._usual = math.inf  # seconds of a round trip

    def start(self) -> None:
        """Pace the downloader from now on.

        Raises:
            ConfigError: it has no slots.
        """
        self._release = engine.pace_downloads(self._crawler, self.may_send)
        self._crawler.signals.connect(self._close, signals.spider_closed)

    def may_send(self, slot: Any, name: str, look: Callable[[], object]) -> bool:
        """Return whether a slot, which has a request and room for it, may send that now.

        Args:
            slot: the slot of the downloader.
            name: its name.
            look: called when it is due, to ask again.
        """
        if slot in self._moments:
            late = self._runtime.monotonic() - self._moments[slot]
            if late < 0:
                return False
            del self._moments[slot]
            if late <= max(_LATE * slot.delay, _MIN_LATE):
                return True
            self._count(WASTED, 1)
        self._needy[slot] = name, look
        if not self._is_asking:
            self._is_asking = True
            self._asking = deferred_from_coro(self._ask())
        return False

    async def _ask(self) -> None:
        """Reserve moments until no slot needs one."""
        while self._needy:
            await self._runtime.pause(0)  # until Scrapy has begun the transfers that it has decided on
            needy = {slot: each for slot, each in self._needy.items() if self._needs(slot)}
            self._needy = {}
            try:
                if needy:
                    await self._reserve(needy)
            except Exception as error:
                self._needy = {**needy, **self._needy}
                is_silent = isinstance(error, RedisUnreachableError)
                if is_silent and not engine.is_closing(self._crawler):
                    await self._runtime.pause(_PAUSE_SECONDS)
                    continue
                self._let_go()
                if not is_silent:
                    engine.end_crawl(self._crawler, error, self._runtime)
        self._is_asking = False

    def _needs(self, slot: Any) -> bool:
        return slot not in self._moments and slot.queue and slot.free_transfer_slots() > 0

    async def _reserve(self, needy: dict[Any, tuple[str, Callable[[], object]]]) -> None:
        gaps = [int(slot.download_delay() * _MICROSECONDS) for slot in needy]
        names = [name for name, _ in needy.values()]
        waits, sent, took = await self._runtime.in_thread(partial(self._call, names, gaps))
        # The usual one: a slow reply does not make its moments later.
        self._usual = min(took, self._usual * _GROWTH)
        self._count(RESERVED, len(needy))
        for (slot, (_, look)), wait in zip(needy.items(), waits, strict=True):
            self._moments[slot] = sent + self._usual + wait / _MICROSECONDS
            self._look_at(slot, self._moments[slot], look)

    def _call(self, names: list[str], gaps: list[int]) -> tuple[Sequence[int], float, float]:
        sent = self._runtime.monotonic()
        waits = self._breaker.call(partial(self._source.reserve, names, gaps))
        return waits, sent, self._runtime.monotonic() - sent

    def _look_at(self, slot: Any, moment: float, look: Callable[[], object]) -> None:
        """Have the downloader look at a slot at its moment; a timer may be early."""
        if self._moments.get(slot) != moment:
            return
        left = moment - self._runtime.monotonic()
        if left > 0:
            self._runtime.call_later(left, partial(self._look_at, slot, moment, look))
        else:
            look()

    def _let_go(self) -> None:
        """Leave the rest of an ending crawl to Scrapy's own delays: without Redis it would wait for ever."""
        self._release()
        for _, look in self._needy.values():
            look()
        self._needy = {}

    async def _close(self) -> None:
        """Close the connection after the call that is under way."""
        if self._asking is not None:
            await maybe_deferred_to_future(self._asking)
        self._source.close()
