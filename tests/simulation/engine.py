"""The part of Scrapy's engine that schedulers and spiders meet."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from random import Random
from typing import Any

from scrapy import Request, signals
from scrapy.exceptions import CloseSpider, DontCloseSpider
from twisted.python.failure import Failure

from tests.simulation.clock import Sleep
from tests.simulation.plan import Plan
from tests.simulation.site import Site

# Seconds between two polls of an engine without events, as in Scrapy.
_HEARTBEAT_SECONDS = 5.0

CallLater = Callable[[float, Callable[[], object]], None]


class NextCall:
    """A function called once, soon, however often it was scheduled, like Scrapy's CallLaterOnce."""

    def __init__(self, call_later: CallLater, call: Callable[[], object]) -> None:
        self.waiting: list[Callable[[], object]] = []
        self._call_later = call_later
        self._call = call
        self._is_scheduled = False
        self._is_cancelled = False

    def schedule(self, delay: float = 0.0) -> None:
        """Schedule the call."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_later(delay, self._run)

    def cancel(self) -> None:
        """Cancel the call."""
        self._is_cancelled = True

    def _run(self) -> None:
        self._is_scheduled = False
        if self._is_cancelled:
            return
        self._call()
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            self._call_later(0, each)


class Slot:
    """The state of an open spider."""

    def __init__(self, scheduler: Any, nextcall: NextCall) -> None:
        self.scheduler = scheduler
        self.nextcall = nextcall
        self.inprogress: set[Request] = set()
        self.closing: str | None = None


class Watch:
    """The reports of an engine to the simulation; the methods are empty."""

    def began(self, request: Request) -> None:
        """Report a download."""

    def ended(self, request: Request) -> None:
        """Report that a callback is exhausted."""

    def offered(self, request: Request) -> None:
        """Report a start request."""

    def dropped(self, request: Request) -> None:
        """Report a repeat."""

    def called(self, name: str, begin: float) -> None:
        """Report a call of the scheduler that began at a moment."""

    def closed(self, reason: str) -> None:
        """Report the end."""


class _Next:
    """An awaitable that resumes after the next call of the engine."""

    def __await__(self) -> Any:
        yield self


class Engine:
    """Runs a scheduler's requests, `plan.concurrency` at once, and yields links."""

    def __init__(self, plan: Plan, site: Site, chance: Random, call_later: CallLater, watch: Watch) -> None:
        self._plan = plan
        self._site = site
        self._chance = chance
        self._call_later = call_later
        self._watch = watch
        self._slot: Slot | None = None
        self._start: AsyncIterator[Any] | None = None
        self._downloading: set[Request] = set()
        self._scraping = 0
        self._has_ended = False
        self.before_callback: Callable[[str], None] = lambda _: None

    def open(self, crawler: Any, make_scheduler: Callable[[], Any], start: AsyncIterator[Request]) -> None:
        """Open the scheduler, and start."""
        crawler.engine = self
        self._crawler = crawler
        scheduler = make_scheduler()
        self._slot = Slot(scheduler, NextCall(self._call_later, self._run_scheduled))
        self._start = start
        crawler.signals.connect(self._note_dropped, signals.request_dropped)
        scheduler.open(crawler.spider)
        crawler.signals.send_catch_log(signals.spider_opened, spider=crawler.spider)
        self._slot.nextcall.schedule()
        self._beat()
        self._drive(self._process_start())

    @property
    def scheduler(self) -> Any:
        """The scheduler, once there is one."""
        return None if self._slot is None else self._slot.scheduler

    def crawl(self, request: Request, **_: Any) -> None:
        """Schedule a request."""
        slot = self._open_slot()
        if not self._timed("enqueue_request", lambda: slot.scheduler.enqueue_request(request)):
            self._crawler.signals.send_catch_log(signals.request_dropped, request=request, spider=self._crawler.spider)
        slot.nextcall.schedule()

    def close_spider(self, _: Any, reason: str) -> None:
        """End the crawl once the requests in progress are done."""
        slot = self._open_slot()
        if slot.closing is None:
            slot.closing = reason
            self._end_if_done()

    def _open_slot(self) -> Slot:
        assert self._slot is not None
        return self._slot

    def _note_dropped(self, request: Request) -> None:
        self._watch.dropped(request)

    def _beat(self) -> None:
        slot = self._open_slot()
        if slot.closing is None:
            slot.nextcall.schedule()
            self._call_later(_HEARTBEAT_SECONDS, self._beat)

    def _drive(self, steps: Coroutine[Any, Any, None]) -> None:
        try:
            waits_for = steps.send(None)
        except StopIteration:
            return
        if isinstance(waits_for, Sleep):
            self._call_later(waits_for.seconds, lambda: self._drive(steps))
        else:
            self._open_slot().nextcall.waiting.append(lambda: self._drive(steps))

    async def _process_start(self) -> None:
        slot = self._open_slot()
        while self._start is not None and slot.closing is None:
            try:
                request = await anext(self._start)
            except StopAsyncIteration:
                self._start = None
                slot.nextcall.schedule()
            else:
                self._watch.offered(request)
                self.crawl(request)
            if not self._needs_backout():
                slot.nextcall.schedule()
                await _Next()

    def _needs_backout(self) -> bool:
        return self._open_slot().closing is not None or len(self._downloading) >= self._plan.concurrency

    def _run_scheduled(self) -> None:
        slot = self._open_slot()
        if slot.closing is not None:
            return
        while not self._needs_backout():
            request = self._timed("next_request", slot.scheduler.next_request)
            if request is None:
                break
            self._download(request)
        if self._is_idle():
            self._go_idle()

    def _is_idle(self) -> bool:
        if self._scraping or self._downloading or self._start is not None:
            return False
        return not self._timed("has_pending_requests", self._open_slot().scheduler.has_pending_requests)

    def _go_idle(self) -> None:
        expected = (DontCloseSpider, CloseSpider)
        results = self._crawler.signals.send_catch_log(
            signals.spider_idle, spider=self._crawler.spider, dont_log=expected
        )
        raised = [result.value for _, result in results if isinstance(result, Failure)]
        if any(isinstance(error, DontCloseSpider) for error in raised):
            return
        if self._is_idle():
            reasons = [error.reason for error in raised if isinstance(error, CloseSpider)]
            self.close_spider(None, reasons[0] if reasons else "finished")

    def _download(self, request: Request) -> None:
        self._open_slot().inprogress.add(request)
        self._downloading.add(request)
        self._watch.began(request)
        self._crawler.signals.send_catch_log(
            signals.request_reached_downloader, request=request, spider=self._crawler.spider
        )
        self._call_later(self._chance.expovariate(1 / self._plan.download), lambda: self._downloaded(request))

    def _downloaded(self, request: Request) -> None:
        self._downloading.discard(request)
        attempt = request.meta.get("attempt", 0)
        if self._site.fails(request.url, attempt):  # as Scrapy's retry middleware does it
            again = request.replace(dont_filter=True, priority=request.priority - 1)
            again.meta["attempt"] = attempt + 1
            self.crawl(again)
            self._done(request)
            return
        self._crawler.signals.send_catch_log(signals.response_received, request=request, spider=self._crawler.spider)
        self._open_slot().nextcall.schedule()
        self._scraping += 1
        self.before_callback(request.url)
        outputs = self._outputs(request)
        self._call_later(0, lambda: self._scrape(request, outputs))

    def _outputs(self, request: Request) -> Iterator[Request]:
        for link in self._site.links[request.url]:
            yield Request(
                link.url,
                callback=self._crawler.spider.parse,
                dont_filter=link.dont_filter,
                priority=link.priority,
            )

    def _scrape(self, request: Request, outputs: Iterator[Request]) -> None:
        """Schedule some requests of a callback, and continue with the rest later."""
        for _ in range(self._chance.choice([1, 3, 100])):
            found = next(outputs, None)
            if found is None:
                self._watch.ended(request)
                self._scraping -= 1
                self._done(request)
                return
            self.crawl(found)
        self._call_later(self._chance.expovariate(1 / self._plan.callback), lambda: self._scrape(request, outputs))

    def _done(self, request: Request) -> None:
        slot = self._open_slot()
        slot.inprogress.discard(request)
        slot.nextcall.schedule()
        self._end_if_done()

    def _end_if_done(self) -> None:
        slot = self._open_slot()
        if slot.closing is not None and not slot.inprogress and not self._has_ended:
            self._has_ended = True
            slot.nextcall.cancel()
            self._call_later(0, self._end)

    def _end(self) -> None:
        reason = self._open_slot().closing or ""
        self.close(reason)
        self._watch.closed(reason)

    def close(self, reason: str) -> None:
        """Close scheduler and spider, even after a failed opening."""
        slot = self._open_slot()
        if hasattr(slot.scheduler, "df") and slot.scheduler.df is not None:
            slot.scheduler.close(reason)
        self._crawler.signals.send_catch_log(signals.spider_closed, spider=self._crawler.spider, reason=reason)

    def _timed(self, name: str, call: Callable[[], Any]) -> Any:
        begin = self._crawler.monotonic()
        result = call()
        self._watch.called(name, begin)
        return result
