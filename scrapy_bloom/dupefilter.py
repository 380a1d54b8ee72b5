"""The dupefilter that Scrapy loads: fingerprint a request and ask the Bloom filter whether it is new."""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object
from scrapy.utils.request import RequestFingerprinter, RequestFingerprinterProtocol
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom._filter_key import FilterKey
from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom._scrapy import engine
from scrapy_bloom._scrapy.components import read_flag
from scrapy_bloom._scrapy.connection import connect, connect_filter
from scrapy_bloom._scrapy.exit_report import report_at_exit, reports_at_exit
from scrapy_bloom._scrapy.fingerprints import CachedFingerprints, chosen_fingerprinter, uncached_fingerprints
from scrapy_bloom._scrapy.redis_settings import RedisSettings, is_filter_separate
from scrapy_bloom.errors import FILTER_SERVER_NAMES, SETTING_NAMES, BloomError, ConfigError, Names
from scrapy_bloom.filter.bloom_filter import BloomFilter, CrawlFilter, SeparateFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.monitoring.reporter import CrawlReporter, warn_about_memory_policy, warn_of_deleted_requests
from scrapy_bloom.queue.inspection import delete_audit, mark_shared
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.transport.client import disconnect
from scrapy_bloom.transport.failures import FAULTS, describe
from scrapy_bloom.transport.retry import retry_until

logger = logging.getLogger(__name__)

# Under a scheduler other than BloomScheduler, failed requests wait so long: each call costs every worker its cache.
_FORGET_SECONDS = 1.0
# The failures of a request in one process, until the process drops it.
_MAX_FAILURES = 3
# The close reason of a crawl that cannot use its filter or queue.
UNUSABLE = "bloomfilter_error"

T = TypeVar("T")


class BloomRFPDupeFilter(RFPDupeFilter):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's dupefilter with a Bloom filter in place of the SET, for any scheduler.

    Scrapy builds it with `from_spider`, `from_crawler` or `from_settings`: the BLOOMFILTER_* settings apply, and the
    filter opens at once. Built directly, it has the default settings and opens at the first use.

    Args:
        server: a Redis client.
        key: the filter's key.
        debug: log every repeat, not only the first.

    Attributes:
        is_separate: True if BLOOMFILTER_REDIS_URL names another server than the queue's.

    Raises:
        ConfigError: a setting is not allowed.
        MismatchError: the stored filter has other parameters.
        WrongTypeError: the key holds something other than a filter.

    Example:
        In a project's `settings.py`:

        >>> DUPEFILTER_CLASS = "scrapy_bloom.BloomRFPDupeFilter"
        >>> BLOOMFILTER_CAPACITY = 10_000_000
        >>> BLOOMFILTER_ERROR_RATE = 1e-6
    """

    _runtime: ClassVar[Runtime] = RUNTIME
    _filter_type: type[BloomFilter] = CrawlFilter
    _names: Names = SETTING_NAMES
    is_separate = False

    def __init__(self, server: Any, key: str, debug: bool = False) -> None:
        super().__init__(server, key, debug)
        self.config = BloomSettings()
        self.persist = False
        self._jobdir: str | None = None
        self._crawler: Crawler | None = None
        self._fingerprinter: RequestFingerprinterProtocol | None = None
        self._filter: BloomFilter | None = None
        self._report: CrawlReporter | None = None
        self._has_ended = False
        self._to_forget: tuple[bytes, ...] = ()
        self._failures: Counter[bytes] = Counter()
        self.given_up: set[bytes] = set()
        self._always_met: set[bytes] = set()
        self.forget_soon: Callable[[tuple[bytes, ...]], object] = self._forget_later
        self.fingerprint_of = self._choose_fingerprints()

    def __setattr__(self, name: str, value: object) -> None:
        """Honour a `request_fingerprint` set on the instance, as scrapy-redis does."""
        super().__setattr__(name, value)
        if name == "request_fingerprint":
            self.fingerprint_of = self._choose_fingerprints()
            opened: BloomFilter | None = vars(self).get("_filter")
            if opened is not None:
                logger.warning(
                    "The filter at %r was opened for fingerprints by %r and gets fingerprints by %r from now on; other "
                    "workers do not notice. Override request_fingerprint in a subclass, or set "
                    "REQUEST_FINGERPRINTER_CLASS",
                    self.key,
                    opened.parameters.fingerprint,
                    self.fingerprint_scheme(),
                )

    @classmethod
    @reports_at_exit()
    def from_spider(cls, spider: Spider) -> Self:
        """Build the dupefilter for scrapy-redis's Scheduler and its subclasses, such as BloomScheduler.

        Args:
            spider: the crawl's spider; its name is part of the key.

        Returns:
            A dupefilter with an open filter.
        """
        key = FilterKey.of_spider(spider)
        self = cls._build(spider.settings, key, spider.crawler)
        if key.queue and _bypasses_audit(load_object(spider.settings["SCHEDULER"])):
            try:
                self._mark_shared(spider.settings, key.queue)
            except (BloomError, *FAULTS) as error:
                # An ACL may deny it. BloomScheduler would then report these requests as lost.
                logger.debug("The queue %r could not be marked as shared: %s", key.queue, describe(error))
        return self

    @classmethod
    @reports_at_exit()
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the dupefilter for Scrapy's own Scheduler.

        The filter's key is SCHEDULER_DUPEFILTER_KEY, or the key saved in the JOBDIR. Without either the crawl gets a
        new filter, which a JOBDIR keeps for the next crawl; otherwise the filter is deleted at the end.

        Args:
            crawler: the crawl.

        Returns:
            A dupefilter with an open filter.
        """
        return cls._build(crawler.settings, FilterKey.of_crawler(crawler), crawler)

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> Self:
        """Build the dupefilter outside a crawl: as `from_crawler`, without a spider's name and without stats.

        Args:
            settings: the crawl's settings.

        Returns:
            A dupefilter with an open filter.

        Raises:
            ConfigError: a setting is not allowed, or SCHEDULER_DUPEFILTER_KEY contains %(spider)s.
        """
        return cls._build(settings, FilterKey.of_settings(settings), None)

    @classmethod
    def unopened(cls, settings: BaseSettings, key: str, crawler: Crawler | None) -> Self:
        """Build the dupefilter from settings without sending anything to Redis.

        Args:
            settings: the crawl's settings.
            key: the filter's key.
            crawler: the crawl, or None.

        Returns:
            A dupefilter that opens its filter at the first use.
        """
        config = BloomSettings.from_settings(settings)
        self = cls(connect_filter(settings), key=key, debug=read_flag(settings, "DUPEFILTER_DEBUG"))
        self.is_separate = is_filter_separate(settings)
        if RedisSettings.of_filter(settings).prefix:
            self._filter_type, self._names = SeparateFilter, FILTER_SERVER_NAMES
        self.config = config
        self._crawler = crawler
        self._fingerprinter = chosen_fingerprinter(settings, crawler)
        self.fingerprint_of = self._choose_fingerprints()
        return self

    @classmethod
    def _build(cls, settings: BaseSettings, key: FilterKey, crawler: Crawler | None) -> Self:
        timeout, names = BloomSettings.from_settings(settings).retry_timeout, RedisSettings.of_filter(settings).names
        # The client of a cluster connects when it is made.
        self = retry_until(lambda: cls.unopened(settings, key.name, crawler), timeout, names, cls._runtime)
        self.persist = key.persists
        self._jobdir = key.jobdir
        try:
            self._open_for_crawl(settings, key, crawler)
        except BaseException:
            self._disconnect()
            raise
        return self

    def _open_for_crawl(self, settings: BaseSettings, key: FilterKey, crawler: Crawler | None) -> None:
        """Open the filter, report it, and follow the crawl's signals."""
        parameters = self.parameters()
        place = self._retry(lambda: key.on(self.server, parameters.memory_bytes))
        place.warn_of_failovers(self.server)
        self.key = place.name
        warn_about_memory_policy(self.server, place.name, parameters.memory_bytes, expires=bool(parameters.ttl))
        flushes = read_flag(settings, "SCHEDULER_FLUSH_ON_START")
        self._filter = self._open_at(place, flush=flushes)
        self._report = CrawlReporter(
            self._filter, crawler.stats if crawler else None, self._runtime.monotonic, is_always_new=self.is_always_new
        )
        self._report.start(begins_anew=flushes)
        if crawler is not None:
            for fetches in (signals.request_reached_downloader, signals.response_received):
                crawler.signals.connect(self._report.note_fetch, fetches)
            if self.config.forget_failed:
                engine.follow_failures(crawler, self.config.forget_statuses, self.note_failed)
                crawler.signals.connect(self._forget_due, signals.spider_closed)
            crawler.signals.connect(self._report.finish, signals.spider_closed)
            crawler.signals.connect(self._filter.release_idle_credit, signals.spider_idle)
            crawler.signals.connect(self._filter.close, signals.spider_closed)
            crawler.signals.connect(self._disconnect, signals.spider_closed)

    @property
    def filter(self) -> BloomFilter:
        """The Bloom filter, opened at the first use if it is not open yet."""
        if self._filter is None:
            self._filter = self._open(flush=False)
        return self._filter

    def request_seen(self, request: Request) -> bool:
        """Return whether any worker has seen a request, and remember the request.

        If the filter cannot be used, the crawl ends, and the request counts as new.

        Args:
            request: the request; requests with the same fingerprint are repeats.

        Returns:
            True for a repeat, False for a new request.
        """
        if self._has_ended:
            return False
        fingerprint = self.fingerprint_of(request)
        bloom = self._filter or self.filter  # nearly always open, which saves the property's call
        if self.config.always and self.is_new_once(request, fingerprint):
            bloom.mark_ambiguous([fingerprint])
        if bloom.is_cached(fingerprint) or fingerprint in self.given_up:
            return True
        try:
            (is_new,) = bloom.add_many([fingerprint])  # `add` would look into the cache again
            self.update_stats()
            return not is_new
        except BloomError as error:
            self.end_crawl(error)
            return False
        except BaseException:
            # After Ctrl-C the reply may be lost: the filter knows the request, and Scrapy has not queued it.
            bloom.mark_ambiguous([fingerprint])
            raise

    def is_always_new(self, request: Request) -> bool:
        """Return whether BLOOMFILTER_ALWAYS makes a request new in each run.

        Args:
            request: the request.

        Returns:
            True if one of the patterns is found in its URL.
        """
        return any(pattern.search(request.url) for pattern in self.config.always)

    def is_new_once(self, request: Request, fingerprint: bytes) -> bool:
        """Return whether BLOOMFILTER_ALWAYS makes a request new now, which it does once in this process.

        The filter marks the request, and decides about all further ones: pages that link to each other end.

        Args:
            request: the request.
            fingerprint: its fingerprint.

        Returns:
            True for the first request of a page, if one of the patterns is found in its URL.
        """
        is_first = fingerprint not in self._always_met and self.is_always_new(request)
        if is_first:
            self._always_met.add(fingerprint)
        return is_first

    def note_failed(self, request: Request) -> None:
        """Have the filter forget a request whose page failed, and the requests that were redirected to it.

        BloomScheduler does so before it acknowledges the request. Under other schedulers it takes a second. A request
        that has failed three times in this process is `given_up`: this process ignores links to it until it ends, or
        for a BLOOMFILTER_TTL at most. Otherwise pages that link to each other, and whose callbacks raise, would be
        fetched for ever.

        Args:
            request: the request.
        """
        redirected = (request.replace(url=url) for url in request.meta.get("redirect_urls", ()))
        failed = tuple(map(self.fingerprint_of, (request, *redirected)))
        if self.config.ttl and not self._failures:
            self._runtime.call_later(self.config.ttl, self._reset_failures)
        self._failures.update(failed)
        if self._failures[failed[0]] == _MAX_FAILURES:
            logger.info("%s failed %d times: this worker ignores links to it from now on", request, _MAX_FAILURES)
        self.given_up.update(each for each in failed if self._failures[each] >= _MAX_FAILURES)
        self.forget_soon(failed)

    def _reset_failures(self) -> None:
        self._failures.clear()
        self.given_up.clear()

    def forget(self, fingerprints: Sequence[bytes]) -> None:
        """Have the filter forget requests: each is new once more, to one worker of all.

        Args:
            fingerprints: their fingerprints.

        Raises:
            BloomError: the filter cannot be used.
        """
        forgotten = sum(self.filter.forget_many([*dict.fromkeys(fingerprints)]))
        if self._report is not None:
            self._report.count_forgotten(forgotten)

    def _forget_later(self, fingerprints: tuple[bytes, ...]) -> None:
        is_due = not self._to_forget and not self._runtime.call_later(_FORGET_SECONDS, self._forget_due)
        self._to_forget += fingerprints
        if is_due:
            self._forget_due()

    def _forget_due(self) -> None:
        due, self._to_forget = self._to_forget, ()
        if due and not self._has_ended:
            try:
                self.forget(due)
            except BloomError as error:
                self.end_crawl(error)

    def update_stats(self) -> None:
        """Update the crawl's stats."""
        if self._report is not None:
            self._report.update()

    def note_workers(self, *, is_alone: bool) -> None:
        """Note whether this worker has the queue to itself; the final report depends on it.

        Args:
            is_alone: True if no other worker is registered, and no request of another worker waits in the queue.
        """
        if self._report is not None:
            self._report.note_workers(is_alone=is_alone)

    def request_fingerprint(self, request: Request) -> str:
        """Return a request's fingerprint, by REQUEST_FINGERPRINTER_CLASS if set, else as scrapy-redis does.

        Args:
            request: the request.

        Returns:
            The fingerprint in hexadecimal.
        """
        if self._fingerprinter is not None:
            return self._fingerprinter.fingerprint(request).hex()
        return str(super().request_fingerprint(request))

    def log(self, request: Request, spider: Spider) -> None:
        """Log a dropped request and count it, as Scrapy's own dupefilter does.

        Args:
            request: the repeat.
            spider: the crawl's spider.
        """
        if self.debug or self.logdupes:
            super().log(request, spider)
        if self._report is not None:
            self._report.count_filtered()

    def open(self) -> None:
        """Do nothing: the filter is open. Scrapy's own Scheduler calls this, scrapy-redis's does not."""

    def close(self, reason: str = "") -> None:  # noqa: ARG002  # Scrapy passes it
        """Delete the filter, unless JOBDIR, or SCHEDULER_DUPEFILTER_KEY with SCHEDULER_PERSIST, keeps it.

        Args:
            reason: the crawl's finish reason; ignored.
        """
        if not self.persist:
            self.clear()
        elif self._jobdir and not self._has_ended:
            logger.info(
                "The filter at %r stays for the next crawl in JOBDIR = %r. When the job is done, delete the filter: "
                "BloomFilter(client, %r, flush=True).clear()",
                self.key,
                self._jobdir,
                self.key,
            )

    def clear(self) -> None:
        """Delete the filter; its last figures stay in the stats.

        If the crawl ended because another crawl's filter has the key, that filter stays.
        """
        if self._has_ended:
            return
        if self._report is not None:
            self._report.refresh()
        self._warn_of_deleted_requests()
        self._to_forget = ()
        self.filter.clear()

    def conclude(self) -> None:
        """Report on the filter and return its unused credit, before another worker may delete it."""
        self.filter.close()
        if self._report is not None:
            self._report.conclude()

    def release(self, user: str) -> bool:
        """Remove a queue's reference to the filter; delete the filter when none is left.

        Args:
            user: the key of the queue.

        Returns:
            True if the filter was deleted, False if another queue still refers to it.
        """
        if self._report is not None:
            self._report.refresh()
        return self.filter.remove_reference(user)

    def _retry(self, work: Callable[[], T]) -> T:
        return retry_until(work, self.config.retry_timeout, self._names, self._runtime)

    def _mark_shared(self, settings: BaseSettings, queue: str) -> None:
        """Mark the queue as shared with scrapy-redis's Scheduler, on its own server."""
        client = connect(settings) if self.is_separate else self.server
        try:
            mark_shared(client, queue)
        finally:
            if client is not self.server:
                disconnect(client)

    def _disconnect(self) -> None:
        disconnect(self.server)

    def _warn_of_deleted_requests(self) -> None:
        """Warn if scrapy-redis's Scheduler is about to delete waiting requests: it logs nothing itself."""
        scheduler = engine.closing_scheduler(self._crawler) if self._crawler else None
        if scheduler is None or not _bypasses_audit(type(scheduler)):
            return
        # An error here must not prevent the deletion.
        with contextlib.suppress(Exception):
            queue = scheduler.queue_key % {"spider": scheduler.spider.name}
            delete_audit(scheduler.server, queue)
            if waiting := len(scheduler):
                warn_of_deleted_requests(waiting, queue)

    def _open_at(self, key: FilterKey, *, flush: bool) -> BloomFilter:
        """Open the filter and save its key in the JOBDIR; if that fails, delete the new filter."""
        must_exist = key.is_resumed and not flush
        if must_exist and not self._retry(lambda: self.server.exists(key.name)):
            key.warn_of_loss()
        bloom = self._open(flush=flush)
        try:
            key.keep()
        except ConfigError:
            bloom.clear()
            raise
        return bloom

    def _open(self, flush: bool) -> BloomFilter:
        return self._filter_type.with_parameters(
            self.server,
            self.key,
            self.parameters(),
            cache_size=self.config.cache_size,
            shard_bytes=self.config.shard_bytes,
            retry_timeout=self.config.retry_timeout,
            flush=flush,
        )

    def _choose_fingerprints(self) -> Callable[[Request], bytes]:
        """Return the function from a request to the fingerprint that the filter stores.

        Fingerprints by the user's code are not cached: they may depend on anything.
        """
        if not self._has_users_fingerprint():
            if self._fingerprinter is None:
                return CachedFingerprints(self.request_fingerprint, self.config.cache_size)
            if type(self._fingerprinter) is RequestFingerprinter:
                return CachedFingerprints(self.request_fingerprint, self.config.cache_size, engine.FINGERPRINTED_META)
        return uncached_fingerprints(self.request_fingerprint)

    def _has_users_fingerprint(self) -> bool:
        """Return whether a subclass or the instance overrides `request_fingerprint`."""
        return "request_fingerprint" in vars(self) or type(self).request_fingerprint is not _OUR_FINGERPRINT

    def parameters(self) -> FilterParameters:
        """Return the filter's parameters, which all workers must agree on.

        Returns:
            The parameters from the settings, with the fingerprint scheme.
        """
        return replace(self.config.parameters(), fingerprint=self.fingerprint_scheme())

    def fingerprint_scheme(self) -> str:
        """Return the name of the fingerprint scheme, which is stored: a filter keeps one scheme for life.

        Returns:
            `scrapy-redis`, or the full name of the user's class or method.
        """
        chosen = vars(self).get("request_fingerprint")
        if chosen is not None:
            named = chosen if hasattr(chosen, "__qualname__") else type(chosen)
            return f"{named.__module__}.{named.__qualname__}"
        if self._has_users_fingerprint():
            return f"{type(self).__module__}.{type(self).__qualname__}.request_fingerprint"
        if self._fingerprinter is not None:
            return f"{type(self._fingerprinter).__module__}.{type(self._fingerprinter).__qualname__}"
        return "scrapy-redis"

    def end_crawl(self, error: Exception) -> None:
        """Log an error and end the crawl, once. Raising the error instead would drop request after request.

        Args:
            error: why the filter or the queue cannot be used.

        Raises:
            Exception: the error itself, outside a crawl.
        """
        if self._crawler is None or self._crawler.spider is None:
            raise error
        if not self._has_ended:
            self._has_ended = True
            logger.error("The crawl ends, because its data in Redis cannot be used: %s", describe(error))
            report_at_exit(describe(error))
            engine.close_spider(self._crawler, self._crawler.spider, UNUSABLE, self._runtime)


_OUR_FINGERPRINT = BloomRFPDupeFilter.request_fingerprint


def _bypasses_audit(kind: type[Any]) -> bool:
    """Return whether a scheduler takes requests as scrapy-redis's does, without the queue's audit."""
    return issubclass(kind, Scheduler) and bool(kind.flush is Scheduler.flush)
