"""A simulated process: a reactor, a spider, and the real scheduler and dupefilter of a crawl."""

import collections
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import scrapy_redis.scheduler
from scrapy import Request, Spider
from scrapy.settings import Settings
from scrapy.signalmanager import SignalManager
from scrapy.statscollectors import StatsCollector

import scrapy_bloom
from scrapy_bloom.errors import BloomError
from scrapy_bloom.filter.bloom_filter import CrawlFilter
from scrapy_bloom.spool.directory import SpoolDirectory
from scrapy_bloom.spool.file import SpoolFile
from tests.simulation.client import Client, SimulatedQueue, SimulatedStore
from tests.simulation.engine import Engine, Watch

FILTER_KEY = "sim:dupefilter"
START_KEY = "sim:start_urls"


class WatchedSpool(SpoolDirectory):
    """A spool that tracks its open files, so that they are closed with a killed process.

    `on_claim` is called when a file of an earlier process is claimed.
    """

    def __init__(
        self, *arguments: Any, opened: list[SpoolFile], on_claim: Callable[[], object], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._opened = opened
        self._on_claim = on_claim

    def _create(self, path: Path) -> SpoolFile:
        return self._note(super()._create(path))

    def _claim(self, path: Path) -> SpoolFile | None:
        file = super()._claim(path)
        if file is None:
            return None
        self._on_claim()
        return self._note(file)

    def _note(self, file: SpoolFile) -> SpoolFile:
        self._opened.append(file)
        return file


class PlainSpider(Spider):
    """A spider whose start requests are in its code."""

    def parse(self, response: object) -> None:
        """Do nothing: the engine yields the links."""


class FedSpider(scrapy_bloom.RedisSpider):
    """A spider whose start requests come from Redis."""

    redis_key = START_KEY
    redis_batch_size = 3
    links_of: Callable[[str], list[str]]

    def make_request_from_data(self, data: bytes) -> Iterator[Request]:
        """Yield a request for a start URL, and for each of its further pages."""
        url = json.loads(data)["url"]
        for each in (url, *self.links_of(url)):
            yield Request(each, callback=self.parse)

    def parse(self, response: object) -> None:
        """Do nothing: the engine yields the links."""


class Process(Watch):
    """A process of the crawl of a `world`, in a directory.

    Attributes:
        how: the end: "finished" or another reason of a closed spider, "killed", "refused", "crashed".
        offered_urls: its start requests accepted by the scheduler.
    """

    def __init__(self, world: Any, name: str, spider: str, directory: str, *, number: int, flush: bool) -> None:
        self.world = world
        self.name = name
        self.spider_name = spider
        self.directory = directory
        self.number = number
        self.flushes = flush
        self.is_dead = False
        self.stopped_until = 0.0
        self.how = ""
        self.files: list[SpoolFile] = []
        self.offered_urls: list[str] = []
        self.is_open = False
        self.began_at = world.hub.now
        plan, chance = world.plan, world.chance
        self._slowness = chance.choice([1.0, 1.0, plan.link.spread, 1 / plan.link.spread])
        self._inbox: collections.deque[Callable[[], object]] = collections.deque()
        self._is_waiting = False
        self.engine = Engine(plan, world.site, chance, self.call_later, self)
        self.engine.before_callback = partial(world.before_callback, self)
        self._reactor = world.hub.spawn(self, self._main)

    # A process.

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Have the reactor call a function."""
        hub = self.world.hub

        def fire() -> None:
            if self.is_dead:
                return
            if hub.now < self.stopped_until:
                hub.at(self.stopped_until, fire)
                return
            self._inbox.append(call)
            if self._is_waiting:
                self._is_waiting = False
                hub.resume(self, self._reactor)

        hub.after(seconds, fire)

    def crash(self, error: BaseException) -> None:
        """End by an uncaught error."""
        self.world.found("exception", f"{self.name}: {type(error).__name__}: {error}", error)
        self.exit("crashed")

    def exit(self, how: str) -> None:
        """End the process: no code of it runs any more, and its files are closed."""
        if self.is_dead:
            return
        self.how, self.is_dead = how, True
        self.world.log(f"ends: {how}", self.name)
        for file in self.files:
            with contextlib.suppress(OSError, ValueError):
                file._reader.close()

    def kill(self) -> None:
        """End as by SIGKILL."""
        self.exit("killed")

    def terminate(self) -> None:
        """End as by SIGTERM."""

        def close() -> None:
            if self.engine.scheduler is not None:
                self.engine.close_spider(None, "shutdown")

        self.call_later(0, close)

    def stop(self, seconds: float) -> None:
        """Stop as by SIGSTOP, or as by a callback that holds the GIL."""
        self.stopped_until = max(self.stopped_until, self.world.hub.now + seconds)

    def _main(self) -> None:
        self.world.log(f"starts in {Path(self.directory).name}{' and flushes' * self.flushes}", self.name)
        try:
            crawler = self._crawler()
            self.engine.open(crawler, partial(self._scheduler_type().from_crawler, crawler), self._start(crawler))
            self.is_open = True
        except BloomError as error:
            self.world.refused(self, error)
            if self.engine._slot is not None:
                self.engine.close("shutdown")
            self.exit("refused")
            return
        while not self.is_dead:
            while self._inbox and not self.is_dead:
                self._inbox.popleft()()
            self._is_waiting = True
            self.world.hub.block()

    # A crawl.

    def _crawler(self) -> Any:
        plan = self.world.plan
        client = partial(Client, self.world.server, self._slowness)
        settings = Settings(
            {
                "SCHEDULER": self._scheduler_type(),
                "DUPEFILTER_CLASS": self._dupefilter_type(),
                "SCHEDULER_DUPEFILTER_KEY": FILTER_KEY,
                "SCHEDULER_PERSIST": plan.persists,
                "SCHEDULER_FLUSH_ON_START": self.flushes,
                "JOBDIR": self.directory,
                "MAX_IDLE_TIME_BEFORE_CLOSE": 2,
                "REDIS_PARAMS": {"redis_cls": client},
                **plan.settings,
            }
        )
        crawler = SimpleNamespace(settings=settings, engine=None, monotonic=self.world.runtime.monotonic)
        crawler.signals = SignalManager(crawler)
        crawler.stats = self.stats = StatsCollector(SimpleNamespace(settings=Settings({"STATS_DUMP": False})))  # type: ignore[arg-type]
        members = {"_runtime": self.world.runtime, "links_of": staticmethod(self.world.further_starts)}
        crawler.spidercls = type("Spider", (FedSpider if plan.is_fed else PlainSpider,), members)
        crawler.spider = crawler.spidercls(name=self.spider_name)
        crawler.spider.crawler, crawler.spider.settings = crawler, settings
        if plan.is_fed:
            crawler.spider.setup_redis(crawler)
            crawler.spider.spider_idle_start_time = int(self.world.runtime.unix_time())
        return crawler

    def _scheduler_type(self) -> Any:
        world = self.world
        if world.plan.is_stock:
            return scrapy_redis.scheduler.Scheduler

        def queue_at(scheduler: Any, key: str) -> SimulatedQueue:
            return SimulatedQueue(scheduler.server, key, partial(world.listen, self.name))

        def spool_directory(scheduler: Any, directory: str | None) -> SpoolDirectory:
            key = scheduler.queue_keys.queue
            on_claim = partial(world.faults.on_claim, self)
            return WatchedSpool(key, directory, world.runtime, opened=self.files, on_claim=on_claim)

        members = {
            "_runtime": world.runtime,
            "_tuning": world.plan.tuning,
            "_queue_at": queue_at,
            "_spool_directory": spool_directory,
        }
        return type("Scheduler", (scrapy_bloom.BloomScheduler,), members)

    def _dupefilter_type(self) -> Any:
        world = self.world

        def store_over(_: Any, client: Client) -> SimulatedStore:
            return SimulatedStore(client, partial(world.listen, self.name))

        filter_type = type("Filter", (CrawlFilter,), {"_runtime": world.runtime, "_store_over": store_over})
        members = {"_runtime": world.runtime, "_filter_type": filter_type}
        return type("BloomRFPDupeFilter", (scrapy_bloom.BloomRFPDupeFilter,), members)

    async def _start(self, crawler: Any) -> AsyncIterator[Request]:
        if self.world.plan.is_fed:
            for request in crawler.spider.next_requests():
                yield request
            return
        for url in self.world.roots_of(self):
            yield Request(url, callback=crawler.spider.parse)

    # Reports of its engine.

    def began(self, request: Request) -> None:
        self.world.began(self, request)

    def ended(self, request: Request) -> None:
        self.world.ended(self, request)

    def offered(self, request: Request) -> None:
        self.offered_urls.append(request.url)

    def dropped(self, request: Request) -> None:
        self.world.dropped(self, request)

    def called(self, name: str, begin: float) -> None:
        self.world.called(self, name, begin)

    def closed(self, reason: str) -> None:
        self.exit(reason)
