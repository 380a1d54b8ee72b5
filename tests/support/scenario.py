"""Sites whose every page is linked once, and crawls of them with faults."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from devtools.crawl_process import LIMIT, Crawl, CrawlProcess
from devtools.site import Links, Site, serving
from tests.support import crawling
from tests.support.servers import Server
from tests.support.spiders import links as links_spider
from tests.support.waiting import until

PAGES = 121
DELAY = 0.02
# Scrapy before 2.18 shows a page to the spider 0.1 s after its arrival; the engine takes the next requests meanwhile.
SLOWER_THAN_SCRAPY = 0.15
# The moment of the fault in a crawl.
MIDDLE = 40

OURS: dict[str, object] = {"SCHEDULER": "scrapy_bloom.BloomScheduler", "DUPEFILTER_CLASS": crawling.BLOOM}
STOCK: dict[str, object] = {
    "SCHEDULER": crawling.REDIS_SCHEDULER,
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
}
# scrapy-redis's own Scheduler, with our filter.
FILTER_ALONE: dict[str, object] = {"SCHEDULER": crawling.REDIS_SCHEDULER, "DUPEFILTER_CLASS": crawling.BLOOM}
# So has Scrapy's.
SCRAPY: dict[str, object] = {"SCHEDULER": crawling.OWN_SCHEDULER, "DUPEFILTER_CLASS": crawling.BLOOM}

# A worker silent for so many seconds is taken for dead.
LEASE: dict[str, object] = {"BLOOMFILTER_LEASE": 1}

# redis-py connects such a client when it is created.
SINGLE_CONNECTION: dict[str, object] = {"REDIS_PARAMS": '{"single_connection_client": true}'}

Kind = dict[str, object]
Action = Callable[[str], object]

every_scheduler = pytest.mark.parametrize(
    "kind", [FILTER_ALONE, SCRAPY, OURS], ids=["scrapy-redis", "scrapy", "scrapy-bloom"]
)

# Scrapy opens the scheduler before any reactor but asyncio's runs. Without the setting Twisted chooses: epoll on
# Linux.
REACTORS: dict[str, Kind] = {
    "asyncio": {"TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor"},
    "none": {"TWISTED_REACTOR": ""},
}
# Only `make test-all` runs the test under another one, too.
asyncio_first = pytest.mark.parametrize(
    "reactor", [REACTORS["asyncio"], pytest.param(REACTORS["none"], marks=pytest.mark.long)], ids=["asyncio", "none"]
)


class Moments:
    """The events of a crawl, each at a number of requested pages, and the delay of each page.

    `when(number, action)` calls the action with the name of the requesting worker, before the response. Actions run one
    at a time, and `check` raises their errors at the end.
    """

    def __init__(self, delay: float) -> None:
        self.asked = 0
        self.delay = delay
        self._actions: list[tuple[int, Action]] = []
        self._errors: list[Exception] = []
        self._lock = threading.Lock()
        self._never = threading.Event()

    def when(self, number: int, action: Action) -> None:
        """Call an action when the page with this number is requested, or as soon after as possible."""
        self._actions.append((number, action))

    def __call__(self, worker: str) -> None:
        """Handle the request of a page."""
        with self._lock:
            self.asked += 1
            due = [action for number, action in self._actions if number <= self.asked]
            self._actions = [(number, action) for number, action in self._actions if number > self.asked]
            for action in due:
                self._act(action, worker)
        self._never.wait(self.delay)

    def _act(self, action: Action, worker: str) -> None:
        try:
            action(worker)
        except Exception as error:  # `check` raises it
            self._errors.append(error)

    def check(self) -> None:
        """Assert that every event has happened, without errors."""
        assert self._actions == []
        for error in self._errors:
            raise error


class Scene:
    """A site and crawls of it that share a queue and a filter; `spider` is a file."""

    def __init__(self, site: Site, moments: Moments, directory: Path, key: str, settings: dict[str, object]) -> None:
        self.site = site
        self.moments = moments
        self.workers: list[CrawlProcess] = []
        self.spider = links_spider.__file__
        self._directory = directory
        self._key = key
        self._settings = settings

    @property
    def fetched(self) -> Counter[str]:
        """The number of times that spiders got each page."""
        urls = [url for worker in self.workers for url in worker.received]
        return Counter(url.removeprefix(self.site.url) or "/" for url in urls)

    @property
    def missed(self) -> set[str]:
        """The pages that no spider got."""
        return set(self.site.links) - set(self.fetched)

    @property
    def twice(self) -> int:
        """The number of fetches beyond the first of each page."""
        return self.fetched.total() - len(self.fetched)

    @property
    def keys(self) -> set[str]:
        """The stored keys of the crawls."""
        with redis.Redis.from_url(str(self._settings["REDIS_URL"])) as client:
            return keys_of(client, self._key)

    def start(self, name: str, kind: Kind, **settings: object) -> CrawlProcess:
        """Start a worker."""
        return self.start_at("", name, kind, **settings)

    def start_at(self, path: str, name: str, kind: Kind, **settings: object) -> CrawlProcess:
        """Start a worker at the page with this path; None removes a setting."""
        is_stock = kind.get("DUPEFILTER_CLASS") == STOCK["DUPEFILTER_CLASS"]  # it has the spider's name alone in keys
        own = {"SCHEDULER_DUPEFILTER_KEY": self._key} if is_stock else {}
        given = {**self._settings, **own, **kind, **settings}
        settings = {setting: value for setting, value in given.items() if value is not None}
        worker = crawling.begin(name, self.site.url + path, self._directory, settings, self.spider, key=self._key)
        self.workers.append(worker)
        return worker

    def crawl(self, kind: Kind, name: str = "worker", **settings: object) -> Crawl:
        """Crawl to the end."""
        return self.start(name, kind, **settings).wait()

    def crawl_by(self, *names: str, kind: Kind, **settings: object) -> list[Crawl]:
        """Crawl to the end by several workers."""
        workers = [self.start(name, kind, **settings) for name in names]
        return [worker.wait() for worker in workers]

    def hold(self, path: str) -> tuple[threading.Event, threading.Event]:
        """Let a page wait; return the events of its request and of its release."""
        held, release = threading.Event(), threading.Event()

        def wait(_: str) -> None:
            held.set()
            release.wait(LIMIT)

        self.site.on[path] = wait
        return held, release

    @contextmanager
    def outage(self, server: Server, seconds: float, at: int = MIDDLE) -> Iterator[None]:
        """Kill a server when the page with this number is requested in the block; start it so many seconds later."""
        back = threading.Timer(seconds, server.start)

        def kill(_: str) -> None:
            server.kill()
            back.start()

        self.moments.when(at, kill)
        yield
        back.join()

    def log(self, name: str) -> str:
        """Return a worker's log so far."""
        return (self._directory / f"{name}.log").read_text()

    def opened(self, *names: str) -> None:
        """Wait until each of these workers, which may still have to be started, takes part in the crawl."""
        logs = [self._directory / f"{name}.log" for name in names]
        until(lambda: all(log.exists() and "Spider opened" in log.read_text() for log in logs))


@contextmanager
def scene(links: Links, directory: Path, server_url: str, key: str, delay: float = DELAY) -> Iterator[Scene]:
    """A site to crawl; remaining workers are killed at the end."""
    settings = {
        "REDIS_URL": server_url,
        # With an attribute of the spider, so that the end of a crawl deletes the filter.
        "SCHEDULER_DUPEFILTER_KEY": "%(key)s",
        "SCHEDULER_QUEUE_KEY": f"{key}:queue",
        "BLOOMFILTER_CAPACITY": 1000,
        # A missing page was lost, not taken for seen.
        "BLOOMFILTER_ERROR_RATE": 1e-12,
    }
    with serving(links) as site:
        site.before = moments = Moments(delay)
        played = Scene(site, moments, directory, key, settings)
        try:
            yield played
            moments.check()
        finally:
            for worker in played.workers:
                worker.kill()


def keys_of(client: redis.Redis, key: str) -> set[str]:
    """Return all stored keys of a crawl, but for the note of its end to workers that were presumed dead."""
    found = {each.decode() for each in client.scan_iter(match=f"*{key}*", count=10_000)}
    return {each for each in found if not each.endswith(":ended")}
