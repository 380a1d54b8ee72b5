"""Reach into Scrapy's engine where it has no public API, and bridge differences between versions."""

import math
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Set
from copy import copy
from functools import partial
from typing import Any

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest
from scrapy.pipelines import ItemPipelineManager
from scrapy.spidermiddlewares.httperror import HttpError
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from scrapy.utils.trackref import live_refs
from twisted.python.failure import Failure

from scrapy_bloom.command import report_at_exit
from scrapy_bloom.errors import BloomError, ConfigError
from scrapy_bloom.runtime import RUNTIME, Runtime
from scrapy_bloom.text import get_logger
from scrapy_bloom.transport.failures import FAULTS, describe

logger = get_logger(__name__)

# The close reason of a crawl that cannot go on.
UNUSABLE = "bloomfilter_error"

# The differences between the supported versions of Scrapy, each with a name.
# Scrapy 2.19 and newer: fingerprints depend on these meta keys, besides method, URL and body.
FINGERPRINTED_META = ("verbatim_url",)
# Scrapy 2.14 and newer: the engine's coroutine method that ends a crawl; 2.13 has `close_spider` only.
_CLOSE_SPIDER_ASYNC = "close_spider_async"
# Scrapy 2.14 and newer: the coroutine method by which item pipelines process an item; 2.13 has `process_item` only.
_PROCESS_ITEM_ASYNC = "process_item_async"
# The place of the slot among the arguments of the downloader's `_process_queue`: 2.13 passes the spider before it.
_SLOT = -1
# Scrapy 2.19 and newer: the error of `Crawler.engine` before the engine exists; older versions return None.
_NO_ENGINE_ERROR = RuntimeError

# Scrapy's error text for a callback that the spider lacks.
_NO_METHOD = re.compile(r"Method '(\w+)' not found in")


def end_crawl(crawler: Crawler, error: Exception, runtime: Runtime = RUNTIME) -> None:
    """Log an error, and tell the engine to end the crawl, without waiting."""
    if isinstance(error, (BloomError, *FAULTS)):
        logger.error("The crawl ends early: %s", describe(error))
    else:
        logger.error("The crawl ends by a fault of scrapy-bloom; please report it", exc_info=error)
    report_at_exit(describe(error))
    engine = _engine(crawler)
    close_async = getattr(engine, _CLOSE_SPIDER_ASYNC, None)
    if close_async is not None:
        deferred_from_coro(close_async(reason=UNUSABLE))
    elif engine is not None:
        # Scrapy 2.13 closes an idle spider at once, and the calling engine code still uses the spider's slot.
        runtime.call_later(0, lambda: _slot(crawler) and engine.close_spider(crawler.spider, UNUSABLE))


def missing_callback(error: Exception) -> str | None:
    """Return the name of the callback that an error calls missing, or None for any other error."""
    found = _NO_METHOD.match(str(error)) if type(error) is ValueError else None
    return found and found[1]


def follow_failures(crawler: Crawler, statuses: Set[int], note: Callable[[Request], object]) -> None:
    """Call `note` with each request whose page failed, perhaps more than once, before the engine is done with it.

    A page failed if its download did, if its response was refused with one of `statuses`, or if its callback or, at one
    of its items, a pipeline raised. An IgnoreRequest or a DropItem is no failure. Scrapy has signals for callbacks and
    items alone; the others are noted before the errback.
    """
    scraper = getattr(_engine(crawler), "scraper", None)
    if scraper is None:  # a crawler that does not crawl
        return
    call_spider = scraper.call_spider_async

    async def note_and_call(result: Any, request: Request) -> Any:
        if isinstance(result, Failure) and _has_failed(result.value, statuses):
            note(request)
        return await call_spider(result, request)

    def note_error(response: Any) -> None:
        # That of start() has no response, and that of an errback a Failure.
        if (request := getattr(response, "request", None)) is not None:
            note(request)

    scraper.call_spider_async = note_and_call
    for failure in (signals.spider_error, signals.item_error):
        crawler.signals.connect(note_error, failure, weak=False)


def _has_failed(error: BaseException | None, statuses: Set[int]) -> bool:
    if isinstance(error, HttpError):
        return error.response.status in statuses
    return not isinstance(error, IgnoreRequest)


class GivenBackError(IgnoreRequest):
    """Ends a request in the downloader that another worker is to crawl; its errback is not called."""


def give_back(crawler: Crawler, takes: Callable[[Request], bool]) -> None:
    """End the requests that wait in the downloader for their turn, if `takes` returns True for them."""
    slots = getattr(getattr(_engine(crawler), "downloader", None), "slots", {})
    for slot in [*slots.values()]:
        for waiting in [*slot.queue]:
            request, result = waiting
            # The end of one may let Scrapy send another one.
            if waiting in slot.queue and takes(request):
                slot.queue.remove(waiting)
                request.errback = None
                result.errback(GivenBackError())


def pace_downloads(
    crawler: Crawler, may_send: Callable[[Any, str, Callable[[], object]], bool]
) -> Callable[[], object]:
    """Have each slot of the downloader that has a delay send a request only if `may_send` returns True.

    Args:
        crawler: the crawl.
        may_send: called with a slot that has a request and room for its transfer, with its name, and with a function
            by which the downloader looks at the slot again.

    Returns:
        A function that leaves the slots to Scrapy's own delays again.

    Raises:
        ConfigError: the downloader has no slots.
    """
    if _engine(crawler) is None:  # a crawler that does not crawl
        return bool
    downloader = _engine(crawler).downloader
    process = getattr(downloader, "_process_queue", None)
    if process is None or not hasattr(downloader, "slots"):
        raise ConfigError(
            f"BLOOMFILTER_SHARED_DELAY = True: DOWNLOADER = {crawler.settings['DOWNLOADER']!r} has no slots, whose "
            "requests could wait for their moment; remove DOWNLOADER, derive its class from "
            "'scrapy.core.downloader.Downloader', or set BLOOMFILTER_SHARED_DELAY = False"
        )
    if hasattr(downloader, "_is_paced"):  # a second dupefilter of the crawl
        return bool

    def process_at_its_moment(*arguments: Any) -> None:
        slot = arguments[_SLOT]
        if not slot.delay:
            process(*arguments)
        elif slot.queue and slot.free_transfer_slots() > 0:
            name = str(slot.queue[0][0].meta[downloader.DOWNLOAD_SLOT])
            if may_send(slot, name, lambda: downloader._process_queue(*arguments)):
                slot.lastseen = -math.inf  # not so long ago that Scrapy waits
                # One alone: with much jitter Scrapy takes some delays for none, and sends all.
                others = [slot.queue.pop() for _ in range(len(slot.queue) - 1)]
                process(*arguments)
                slot.queue.extendleft(others)
                process_at_its_moment(*arguments)

    downloader._process_queue, downloader._is_paced = process_at_its_moment, True
    return partial(setattr, downloader, "_process_queue", process)


class EngineWakeup:
    """Makes the engine ask for the next request before its 5-second heartbeat."""

    def __init__(self, crawler: Crawler, runtime: Runtime = RUNTIME) -> None:
        self._crawler = crawler
        self._runtime = runtime
        self._is_set = False

    def set(self, seconds: float) -> None:
        """Schedule one wakeup in `seconds`, unless a wakeup is scheduled already."""
        if not self._is_set:
            self._is_set = self._runtime.call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._is_set = False
        slot = _slot(self._crawler)
        if slot is not None and slot.closing is None:
            slot.nextcall.schedule()


def follow_start(
    crawler: Crawler,
    note: Callable[[Any], object],
    has_room: Callable[[], bool],
    seconds: float,
    runtime: Runtime = RUNTIME,
) -> None:
    """Call `note` with each request or item of the spider's start(), just before the engine gets it.

    Pause start() while `has_room` is False; check again every `seconds`. The engine reads start() as fast as it can,
    and a scheduler has no way to slow it down.
    """
    engine = _engine(crawler)

    async def followed(start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for item_or_request in start:
            note(item_or_request)
            yield item_or_request
            while not has_room():
                await runtime.pause(seconds)

    if engine is not None and engine._start is not None:
        engine._start = followed(engine._start)


class Ticker:
    """Makes a call every few seconds while the reactor runs; errors are logged.

    A call that returns True has more to do. It is repeated after a pause as long as the call took.
    """

    def __init__(self, seconds: float, call: Callable[[], bool | None], runtime: Runtime = RUNTIME) -> None:
        self._runtime = runtime
        self._seconds = seconds
        self._call = call
        self._is_running = False

    def start(self) -> None:
        """Start the calls, if there is a reactor."""
        self._is_running = True
        self._wait(self._seconds)

    def stop(self) -> None:
        """Stop the calls."""
        self._is_running = False

    def _wait(self, seconds: float) -> None:
        self._runtime.call_later(seconds, self._tick)

    def _tick(self) -> None:
        if not self._is_running:
            return
        has_more, begin = None, self._runtime.monotonic()
        try:
            has_more = self._call()
        except Exception:  # the next call may succeed
            logger.exception("A call that is made every %g s failed", self._seconds)
        self._wait(min(self._runtime.monotonic() - begin, self._seconds) if has_more else self._seconds)


def crawlers() -> list[Crawler]:
    """Return the crawlers of this process whose engine is being started, or if there are none, those that crawl.

    Found by their spiders, of which Scrapy's trackref knows all: nothing leads to the CrawlerRunner of a script.
    """
    spiders = [spider for kind, live in [*live_refs.items()] if issubclass(kind, Spider) for spider in [*live]]
    found = [crawler for spider in spiders if (crawler := getattr(spider, "crawler", None)) and crawler.crawling]
    return [each for each in found if not getattr(_engine(each), "running", False)] or found


def is_closing(crawler: Crawler) -> bool:
    """Return whether the crawl is ending: the engine waits for the requests in progress."""
    return getattr(_slot(crawler), "closing", None) is not None


def in_progress(crawler: Crawler) -> Collection[Request]:
    """Return the requests that the engine has taken and not finished."""
    return getattr(_slot(crawler), "inprogress", ())


def scheduler_of(crawler: Crawler) -> Any:
    """Return the crawl's scheduler, or None before it exists."""
    return getattr(_slot(crawler), "scheduler", None)


def crawl(crawler: Crawler, request: Request) -> None:
    """Have the engine schedule a request, as one that a spider has yielded."""
    _engine(crawler).crawl(request)


def item_pipelines(crawler: Crawler) -> Collection[Any]:
    """Return the crawl's item pipelines, or none before they exist, or if an ITEM_PROCESSOR keeps them elsewhere."""
    scraper = getattr(_engine(crawler), "scraper", None)
    return getattr(getattr(scraper, "itemproc", None), "middlewares", ())


def take_pipelines_behind(crawler: Crawler, pipeline: Any) -> Callable[[Any], Awaitable[Any]]:
    """Take the item pipelines behind one from the engine; return the function by which these process an item.

    Signals do not tell what becomes of an item: theirs is another object if a pipeline replaces the item.

    Raises:
        ConfigError: ITEM_PROCESSOR calls the pipelines in its own way.
    """
    manager: Any = _engine(crawler).scraper.itemproc
    if not isinstance(manager, ItemPipelineManager):
        kind = type(manager)
        raise ConfigError(
            f"ITEM_PROCESSOR = '{kind.__module__}.{kind.__qualname__}': {type(pipeline).__qualname__} needs Scrapy's "
            f"ItemPipelineManager or a subclass; remove the setting, or the pipeline"
        )
    until = manager.middlewares[: manager.middlewares.index(pipeline) + 1]
    number, methods = sum(hasattr(each, "process_item") for each in until), [*manager.methods["process_item"]]
    rest: Any = copy(manager)
    rest.methods = {**manager.methods, "process_item": deque(methods[number:])}
    manager.methods["process_item"] = deque(methods[:number])
    process = getattr(rest, _PROCESS_ITEM_ASYNC, None)
    return process or (lambda item: maybe_deferred_to_future(rest.process_item(item, crawler.spider)))


def _engine(crawler: Crawler) -> Any:
    try:
        return crawler.engine
    except _NO_ENGINE_ERROR:
        return None


def _slot(crawler: Crawler) -> Any:
    return getattr(_engine(crawler), "_slot", None)
