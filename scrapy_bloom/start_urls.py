"""The start URLs of a spider in Redis: leased by a worker, and acknowledged when their requests are queued.

`StartUrls` has the leases. One script ends, releases and takes them; it may be executed twice or late, since a worker
uses the number of a lease once. `StartUrlFeed` feeds them to the spider. Users may bring their own scheduler: any with
`when_queued`, `ask_redis` and the attributes of `BloomScheduler` works.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial, wraps
from itertools import takewhile
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

from redis.client import NEVER_DECODE
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy_redis import defaults
from scrapy_redis.spiders import RedisMixin

from scrapy_bloom._format import plural
from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom._scrapy import engine
from scrapy_bloom.errors import BloomError, WrongTypeError
from scrapy_bloom.queue.keys import QueueKeys, StartKeys
from scrapy_bloom.scripts import Script
from scrapy_bloom.transport.failures import FAULTS, describe
from scrapy_bloom.transport.retry import RedisUnreachableError

logger = logging.getLogger(__name__)

# Seconds between two looks for start URLs that are done.
_TICK_SECONDS = 0.25
# Buried start URLs that are logged with a traceback.
_MAX_TRACEBACKS = 3
_EXCHANGE = Script("start_urls")

T = TypeVar("T")


class StartUrl(NamedTuple):
    """A start URL: its field in the hash of leases, `<number>:<worker>:<queue>`, and its data."""

    field: str
    data: bytes


class StartState(NamedTuple):
    """The start URLs taken from `key`.

    Attributes:
        key: the start key.
        leased: leases of all workers.
        abandoned: leases of dead workers, included in `leased`.
        dead_letters: start URLs that led to no request.
        dead_key: the key of the dead letters.
    """

    key: str
    leased: int
    abandoned: int
    dead_letters: int
    dead_key: str


class StartUrls:
    """The start URLs at `key`, a `kind` ("list", "set" or "zset"), for the worker `worker` of a queue.

    Attributes:
        ready: leased start URLs to deliver.
        others_hold: True if other live workers had leases at the last look.
    """

    def __init__(self, client: Any, key: str, kind: str, worker: str, queue: str) -> None:
        self.key = key
        self.keys = StartKeys(key)
        self.ready: deque[StartUrl] = deque()
        self.others_hold = False
        self._client = client
        self._kind = kind
        self._mark = f":{worker}:{queue}"
        self._next_number = 0
        self._held: set[str] = set()
        self._done: list[str] = []
        self._dead: list[str] = []

    @property
    def needs_sync(self) -> bool:
        """True if acknowledged or buried start URLs are still leased in Redis."""
        return bool(self._done or self._dead)

    def acknowledge(self, url: StartUrl) -> None:
        """Note a start URL whose requests are queued: the next call ends its lease."""
        self._done.append(url.field)

    def bury(self, url: StartUrl) -> None:
        """Note a start URL that leads to no request: the next call moves it to the dead letters."""
        self._dead.append(url.field)

    def sync(self) -> int:
        """Return the number of start URLs at the key and in `ready`; like each call, end the noted ones."""
        waiting, _ = self._exchange()
        return waiting + len(self.ready)

    def lease(self, want: int) -> None:
        """Lease up to `want` start URLs, and append them to `ready`; `recover` releases those of a lost reply."""
        self._exchange(want=want)

    def recover(self) -> int:
        """Release the leases of dead workers and of lost replies; return their number."""
        leases = _leases(self._client, self.keys)
        mine = {field for field in leases if field.endswith(self._mark)}
        orphans = _abandoned(self._client, leases - mine) | (mine - self._held)
        self.others_hold = bool(leases - mine - orphans)
        return self._exchange(orphans)[1] if orphans else 0

    def release(self) -> int:
        """Release this worker's start URLs that are neither acknowledged nor buried; return their number."""
        self.ready.clear()
        _, released = self._exchange(self._held.difference(self._done, self._dead))
        self._held.clear()
        return released

    def _exchange(self, released: Collection[str] = (), want: int = 0) -> tuple[int, int]:
        """Return how many start URLs wait at the key, and how many were released.

        Raises:
            WrongTypeError: the start key is not a `kind`.
        """
        keys, first = self.keys, self._next_number
        self._next_number += want
        numbers = len(self._done), len(self._dead)
        # In the order in which they were leased.
        in_order = sorted(released, key=lambda field: (int(field.partition(":")[0]), field))
        status, *reply = _EXCHANGE.call(
            self._client,
            (keys.start, keys.leased, keys.dead_letters, keys.absent),
            (self._kind, want, first, self._mark, *numbers, *self._done, *self._dead, *in_order),
        )
        self._held.difference_update(self._done, self._dead)
        self._done, self._dead = [], []
        if status != b"OK":
            raise WrongTypeError(
                f"redis_key = {self.key!r}: holds a {status.decode()}, but start URLs are read from a {self._kind}; "
                "use another key, or set REDIS_START_URLS_AS_SET or REDIS_START_URLS_AS_ZSET to match"
            )
        data, waiting, moved = reply
        leased = [StartUrl(f"{number}{self._mark}", each) for number, each in enumerate(data, first)]
        self._held.update(url.field for url in leased)
        self.ready.extend(leased)
        return waiting, moved


def inspect(client: Any, key: str) -> StartState:
    """Return the state of the start URLs at a key, without changing anything."""
    keys = StartKeys(key)
    leases = _leases(client, keys)
    # A worker that leaves in between has released its leases.
    abandoned = (found := _abandoned(client, leases)) and found & _leases(client, keys)
    return StartState(key, len(leases), len(abandoned), client.llen(keys.dead_letters), keys.dead_letters)


def _leases(client: Any, keys: StartKeys) -> set[str]:
    return {field.decode() for field in _fields(client, keys.leased)}


def _abandoned(client: Any, leases: set[str]) -> set[str]:
    """Return the leases of workers that are not registered with their queue.

    Leases must be read before this: a worker registers before it leases, and would count as dead otherwise.
    """
    owners = {field: field.split(":", 2)[1:] for field in leases}
    queues = {queue for _, queue in owners.values()}
    registered = {queue: set(_fields(client, QueueKeys(queue).crawl)) for queue in queues}
    return {field for field, (worker, queue) in owners.items() if f"@{worker}".encode() not in registered[queue]}


def _fields(client: Any, key: str) -> list[bytes]:
    found: list[bytes] = client.execute_command("HKEYS", key, **{NEVER_DECODE: []})
    return found


def warn_of_popped_start_urls(spider: Spider) -> None:
    """Warn of a spider that pops start URLs instead of leasing them: scrapy-redis's, or one with its own way."""
    if not isinstance(spider, RedisMixin):
        return
    if not isinstance(getattr(spider, "_start_url_feed", None), StartUrlFeed):
        logger.warning(
            "The spider %r is scrapy-redis's RedisSpider or RedisCrawlSpider: a killed worker loses the start URLs "
            "that it has just taken. Import the class of the same name from scrapy_bloom, which leases them",
            spider.name,
        )
    elif bypasses_fetch_data(type(spider)):
        logger.warning(
            "next_requests of the spider %r does not call fetch_data: a killed worker loses the start URLs that it has "
            "just taken. Iterate over self.fetch_data(self.redis_key, self.redis_batch_size), which leases them",
            spider.name,
        )


def bypasses_fetch_data(kind: Any) -> bool:
    """Return whether a spider's class has its own `next_requests`, and no method that calls `fetch_data`."""
    if kind.next_requests is RedisMixin.next_requests:
        return False
    own = takewhile(lambda base: not base.__module__.startswith(("scrapy_bloom.", "scrapy_redis.")), kind.__mro__)
    methods = [each for base in own for each in vars(base).values() if isinstance(each, FunctionType)]
    calls_parent = "next_requests" in kind.next_requests.__code__.co_names
    return not calls_parent and not any("fetch_data" in method.__code__.co_names for method in methods)


class StartUrlFeed:
    """The start URLs of one spider: leased, delivered, then acknowledged, buried or released.

    It replaces `fetch_data` and `count_size` of the spider, and guards `make_request_from_data`.

    Attributes:
        is_unsure: True if Redis was unreachable, so that there may be further start URLs.
    """

    def __init__(self, spider: Any, crawler: Crawler, runtime: Runtime = RUNTIME) -> None:
        self.is_unsure = False
        self._runtime = runtime
        self._spider = spider
        self._crawler = crawler
        self._scheduler: Any = None
        self._has_warned = False
        self._urls: dict[str, StartUrls] = {}
        self._current: tuple[StartUrls, StartUrl] | None = None
        self._buried = 0
        self._ticker = engine.Ticker(_TICK_SECONDS, self._sync, runtime)
        self._pop, self._count_stock = spider.fetch_data, spider.count_size
        spider.fetch_data, spider.count_size = self.fetch, self.count
        spider.make_request_from_data = self._guarded(spider.make_request_from_data)
        crawler.signals.connect(self._release, signals.spider_closed)

    @property
    def others_hold(self) -> bool:
        """True if other live workers hold start URLs, which return if those workers die."""
        return any(urls.others_hold for urls in self._urls.values())

    def fetch(self, key: str, want: int) -> Iterable[Any]:
        """Return up to `want` start URLs; asking for the next one, or for the end, finishes the one before."""
        if not self._can_lease():
            return self._pop(key, want)  # type: ignore[no-any-return]
        urls = self._urls_at(key)
        if not urls.ready:
            self._ask(lambda: self._lease(urls, want), None)
        return self._deliver(urls)

    def count(self, key: str) -> int:
        """Return the number of start URLs, 0 while Redis is unreachable."""
        if not self._can_lease():
            return self._count_stock(key)  # type: ignore[no-any-return]
        return self._ask(self._urls_at(key).sync, 0)

    def _can_lease(self) -> bool:
        """Return whether the scheduler reports queued requests."""
        if self._scheduler is None:
            scheduler = engine.scheduler_of(self._crawler)
            if hasattr(scheduler, "when_queued"):
                self._scheduler = scheduler
                self._ticker.start()
            elif not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "SCHEDULER = %r: a killed worker loses the start URLs that it has just taken; set "
                    "'scrapy_bloom.BloomScheduler', which keeps them in Redis until their requests are queued",
                    self._crawler.settings["SCHEDULER"],
                )
        return self._scheduler is not None

    def _urls_at(self, key: str) -> StartUrls:
        if key not in self._urls:
            scheduler, settings, kind = self._scheduler, self._crawler.settings, "list"
            # As scrapy-redis reads them.
            if settings.getbool("REDIS_START_URLS_AS_SET", defaults.START_URLS_AS_SET):
                kind = "set"
            elif settings.getbool("REDIS_START_URLS_AS_ZSET", defaults.START_URLS_AS_ZSET):
                kind = "zset"
            self._urls[key] = StartUrls(scheduler.server, key, kind, scheduler.worker_name, scheduler.queue_keys.queue)
        return self._urls[key]

    def _lease(self, urls: StartUrls, want: int) -> None:
        """Lease start URLs, after the leases of dead workers at all of the spider's keys are released."""
        for key in getattr(self._spider, "_redis_keys", None) or ():
            self._urls_at(key)
        for each in self._urls.values():
            if recovered := each.recover():
                logger.warning(
                    "The start key %r gets back %s of dead workers", each.key, plural(recovered, "start URL")
                )
        urls.lease(want)
        if urls.ready:
            self._spider.spider_idle_start_time = int(self._runtime.unix_time())

    def _deliver(self, urls: StartUrls) -> Iterator[Any]:
        """Yield ready start URLs. A request for the next one shows that the engine has all requests of the last one.

        If the caller stops early, the last one stays leased until the spider closes, and is released then.
        """
        while urls.ready:
            url = urls.ready.popleft()
            self._current = urls, url
            yield url.data
            if self._current is not None:
                self._scheduler.when_queued(partial(urls.acknowledge, url))
            self._current = None

    def _guarded(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return make_request_from_data with its errors caught: one bad start URL stops no other."""

        @wraps(make)
        def make_request_from_data(data: Any) -> Any:
            try:
                made = make(data)
            except Exception as error:  # any error of the spider
                self._bury(data, error)
                return []
            return rest_of(made, data) if isinstance(made, Iterator) else made

        def rest_of(made: Iterator[Request], data: Any) -> Iterator[Request]:
            try:
                yield from made
            except Exception as error:  # any error of the spider's generator
                self._bury(data, error)

        return make_request_from_data

    def _bury(self, data: Any, error: Exception) -> None:
        """Move the current start URL to the dead letters; raise the error if `data` is not leased."""
        if self._current is None or self._current[1].data is not data:
            raise error
        urls, url = self._current
        self._current = None
        urls.bury(url)
        self._buried += 1
        logger.error(
            "make_request_from_data failed for the start URL %.500r, which is kept in %r: %s: %s",
            data,
            urls.keys.dead_letters,
            type(error).__name__,
            error,
            exc_info=error if self._buried <= _MAX_TRACEBACKS else None,
        )

    def _ask(self, work: Callable[[], T], default: T) -> T:
        """Return the result of `work`, or `default` while Redis is unreachable."""
        try:
            return self._scheduler.ask_redis(work)  # type: ignore[no-any-return]
        except RedisUnreachableError:
            self.is_unsure = True
            return default

    def _sync(self) -> None:
        for urls in self._urls.values():
            if urls.needs_sync:
                self._ask(urls.sync, 0)

    def _release(self) -> None:
        """Release this worker's start URLs at once, so that no worker has to wait for its lease to expire."""
        self._ticker.stop()
        try:
            for urls in self._urls.values():
                if released := urls.release():
                    logger.info("The start key %r gets back %s of this worker", urls.key, plural(released, "start URL"))
        except (BloomError, *FAULTS) as error:
            logger.error(
                "The start URLs of this worker stay leased until another worker requeues them: %s", describe(error)
            )
