"""The dupefilter: from a Scrapy request to a fingerprint, and from the filter's answer to Scrapy's.

It sees settings and requests, and never a bit.
"""

import contextlib
import logging
from collections.abc import Callable
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
from scrapy_bloom._scrapy.connection import connect
from scrapy_bloom._scrapy.exit_report import report_at_exit, reports_at_exit
from scrapy_bloom._scrapy.fingerprints import CachedFingerprints, chosen_fingerprinter, uncached_fingerprints
from scrapy_bloom.errors import BloomError, ConfigError
from scrapy_bloom.filter.bloom_filter import BloomFilter, CrawlFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.monitoring.reporter import CrawlReporter, warn_about_memory_policy, warn_of_deleted_requests
from scrapy_bloom.queue.inspection import delete_audit, mark_shared
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.transport.connections import disconnect
from scrapy_bloom.transport.failures import FAULTS, describe
from scrapy_bloom.transport.retry import retry_until

logger = logging.getLogger(__name__)

# The reason with which a crawl ends whose Redis cannot be used as it has to be.
UNUSABLE = "bloomfilter_error"

T = TypeVar("T")


class BloomRFPDupeFilter(RFPDupeFilter):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's dupefilter with a Bloom filter in the place of its SET, under either scheduler.

    Scrapy builds it by `from_spider`, `from_crawler` or `from_settings`. It then follows the BLOOMFILTER_* settings and
    opens the filter at once. Built directly it has the defaults, and opens at the first use.

    Args:
        server: a Redis client.
        key: the name of the filter's key.
        debug: log every repeat, not only the first.

    Raises:
        ConfigError: a setting is not allowed.
        MismatchError: the stored filter was made with other parameters.
        WrongTypeError: the key holds something that is not a filter.

    Example:
        In a project's `settings.py`:

        >>> DUPEFILTER_CLASS = "scrapy_bloom.BloomRFPDupeFilter"
        >>> BLOOMFILTER_CAPACITY = 10_000_000
        >>> BLOOMFILTER_ERROR_RATE = 1e-6
    """

    _runtime: ClassVar[Runtime] = RUNTIME
    _filter_type: ClassVar[type[BloomFilter]] = CrawlFilter

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
        self.fingerprint_of = self._choose_fingerprints()

    def __setattr__(self, name: str, value: object) -> None:
        """Honour a `request_fingerprint` that is set on one filter, as scrapy-redis does."""
        super().__setattr__(name, value)
        if name == "request_fingerprint":
            self.fingerprint_of = self._choose_fingerprints()
            opened: BloomFilter | None = vars(self).get("_filter")
            if opened is not None:
                logger.warning(
                    "The filter at %r was opened for fingerprints of %r and gets those of %r from now on, of which no "
                    "other worker is told: override request_fingerprint in a subclass, or set "
                    "REQUEST_FINGERPRINTER_CLASS",
                    self.key,
                    opened.parameters.fingerprint,
                    self.fingerprint_scheme(),
                )

    @classmethod
    @reports_at_exit()
    def from_spider(cls, spider: Spider) -> Self:
        """Build it for scrapy-redis's Scheduler, which clears the filter itself unless SCHEDULER_PERSIST keeps it.

        Args:
            spider: the spider of the crawl; its name is part of the key.

        Returns:
            A dupefilter whose filter is open.
        """
        key = FilterKey.of_spider(spider)
        self = cls._build(spider.settings, key, spider.crawler)
        if key.queue and _takes_without_scripts(load_object(spider.settings["SCHEDULER"])):
            try:
                mark_shared(self.server, key.queue)
            except (BloomError, *FAULTS) as error:
                # The user may have no right to it. BloomScheduler would take these requests for lost.
                logger.debug("The queue %r is not noted as shared: %s", key.queue, describe(error))
        return self

    @classmethod
    @reports_at_exit()
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build it for Scrapy's own Scheduler.

        The filter is the one that SCHEDULER_DUPEFILTER_KEY names, that of the JOBDIR, or a new one. In a JOBDIR a
        filter stays as the queue does, for the crawl that goes on; one that is new otherwise is deleted.

        Args:
            crawler: the crawl.

        Returns:
            A dupefilter whose filter is open.
        """
        return cls._build(crawler.settings, FilterKey.of_crawler(crawler), crawler)

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> Self:
        """Build it where there is no crawler: as `from_crawler`, but without the spider's name, and without stats.

        Args:
            settings: those of a crawl.

        Returns:
            A dupefilter whose filter is open.

        Raises:
            ConfigError: a setting is not allowed; SCHEDULER_DUPEFILTER_KEY may not ask for the spider.
        """
        return cls._build(settings, FilterKey.of_settings(settings), None)

    @classmethod
    def unopened(cls, settings: BaseSettings, key: str, crawler: Crawler | None) -> Self:
        """Build it with its settings and fingerprints, and send nothing to Redis yet.

        Args:
            settings: those of a crawl.
            key: the name of the filter's key.
            crawler: the crawl, or None.

        Returns:
            A dupefilter that opens its filter at the first use.
        """
        config = BloomSettings.from_settings(settings)
        self = cls(connect(settings), key=key, debug=read_flag(settings, "DUPEFILTER_DEBUG"))
        self.config = config
        self._crawler = crawler
        self._fingerprinter = chosen_fingerprinter(settings, crawler)
        self.fingerprint_of = self._choose_fingerprints()
        return self

    @classmethod
    def _build(cls, settings: BaseSettings, key: FilterKey, crawler: Crawler | None) -> Self:
        self = cls.unopened(settings, key.name, crawler)
        self.persist = key.persists
        self._jobdir = key.jobdir
        parameters = self.parameters()
        place = self._retry(lambda: key.on(self.server, parameters.memory_bytes))
        place.warn_of_failovers(self.server)
        self.key = place.name
        warn_about_memory_policy(self.server, place.name, parameters.memory_bytes, expires=bool(parameters.ttl))
        flushes = read_flag(settings, "SCHEDULER_FLUSH_ON_START")
        self._filter = self._open_at(place, flush=flushes)
        self._report = CrawlReporter(self._filter, crawler.stats if crawler else None, self._runtime.monotonic)
        self._report.start(begins_anew=flushes)
        if crawler is not None:
            for fetches in (signals.request_reached_downloader, signals.response_received):
                crawler.signals.connect(self._report.note_fetch, fetches)
            crawler.signals.connect(self._report.finish, signals.spider_closed)
            crawler.signals.connect(self._filter.release_idle_credit, signals.spider_idle)
            crawler.signals.connect(self._filter.close, signals.spider_closed)
            crawler.signals.connect(self._disconnect, signals.spider_closed)
        return self

    @property
    def filter(self) -> BloomFilter:
        """The filter, opened at the first use where that was not done at the start."""
        if self._filter is None:
            self._filter = self._open(flush=False)
        return self._filter

    def request_seen(self, request: Request) -> bool:
        """Return whether a request was seen by any worker, and remember it.

        If the filter was replaced by one that this crawl cannot use, the crawl is ended; the request is not dropped.

        Args:
            request: the request; another with the same fingerprint is a repeat of it.

        Returns:
            True if it was seen, False if it is new.
        """
        if self._has_ended:
            return False
        fingerprint = self.fingerprint_of(request)
        bloom = self._filter or self.filter  # nearly always open: a call is spared
        if bloom.is_cached(fingerprint):
            return True
        try:
            (is_new,) = bloom.add_many([fingerprint])  # the cache was asked above
            self.update_stats()
            return not is_new
        except BloomError as error:
            self.end_crawl(error)
            return False
        except BaseException:
            # Ctrl-C behind the answer: nobody was told.
            bloom.mark_ambiguous([fingerprint])
            raise

    def update_stats(self) -> None:
        """Show what the filter did, where there is a crawl to show it."""
        if self._report is not None:
            self._report.update()

    def note_workers(self, *, is_alone: bool) -> None:
        """Note whether the worker of this process has its queue to itself; the report at the end depends on it.

        Args:
            is_alone: True if no other worker is registered now, and nothing waits that one may have queued.
        """
        if self._report is not None:
            self._report.note_workers(is_alone=is_alone)

    def request_fingerprint(self, request: Request) -> str:
        """Return a request's fingerprint: scrapy-redis's, or that of the REQUEST_FINGERPRINTER_CLASS that was set.

        Args:
            request: the request.

        Returns:
            The fingerprint in hexadecimal.
        """
        if self._fingerprinter is not None:
            return self._fingerprinter.fingerprint(request).hex()
        return str(super().request_fingerprint(request))

    def log(self, request: Request, spider: Spider) -> None:
        """Log a request that is dropped, and count it as Scrapy's own filter does.

        Args:
            request: the repeat.
            spider: the spider that made it.
        """
        if self.debug or self.logdupes:
            super().log(request, spider)
        if self._report is not None:
            self._report.count_filtered()

    def open(self) -> None:
        """Do nothing: Scrapy's own Scheduler calls this, scrapy-redis's does not, and the filter is open."""

    def close(self, reason: str = "") -> None:  # noqa: ARG002  # Scrapy passes it
        """Delete the filter, unless a JOBDIR, or SCHEDULER_DUPEFILTER_KEY and SCHEDULER_PERSIST, say that it stays.

        Args:
            reason: why the spider was closed, which does not matter here.
        """
        if not self.persist:
            self.clear()
        elif self._jobdir and not self._has_ended:
            logger.info(
                "The filter at %r stays for the next crawl in JOBDIR = %r. When the job is over, delete it by "
                "BloomFilter(client, %r, flush=True).clear()",
                self.key,
                self._jobdir,
                self.key,
            )

    def clear(self) -> None:
        """Delete the filter; what the stats say of it stays. One that ended the crawl is not ours to delete."""
        if self._has_ended:
            return
        if self._report is not None:
            self._report.refresh()
        self._warn_of_deleted_requests()
        self.filter.clear()

    def conclude(self) -> None:
        """Report on the filter, and give back the room in it, before another worker may delete it."""
        self.filter.close()
        if self._report is not None:
            self._report.conclude()

    def release(self, user: str) -> bool:
        """Keep the filter for a queue no more; without any user it is deleted. What the stats say of it stays.

        Args:
            user: the key of the queue.

        Returns:
            True if the filter was deleted, False if it stays for another queue.
        """
        if self._report is not None:
            self._report.refresh()
        return self.filter.remove_reference(user)

    def _retry(self, work: Callable[[], T]) -> T:
        return retry_until(work, self.config.retry_timeout, runtime=self._runtime)

    def _disconnect(self) -> None:
        """Close the connections, which were made by the settings of this crawl."""
        disconnect(self.server)

    def _warn_of_deleted_requests(self) -> None:
        """Warn where scrapy-redis's Scheduler is about to delete requests with the filter: it does so in silence."""
        scheduler = engine.closing_scheduler(self._crawler) if self._crawler else None
        if scheduler is None or not _takes_without_scripts(type(scheduler)):
            return
        # Whatever goes wrong here, the deletion goes on.
        with contextlib.suppress(Exception):
            queue = scheduler.queue_key % {"spider": scheduler.spider.name}
            delete_audit(self.server, queue)
            if waiting := len(scheduler):
                warn_of_deleted_requests(waiting, queue)

    def _open_at(self, key: FilterKey, *, flush: bool) -> BloomFilter:
        """Open the filter; a new one whose key cannot be kept for the next crawl is deleted."""
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
            retry_timeout=self.config.retry_timeout,
            flush=flush,
        )

    def _choose_fingerprints(self) -> Callable[[Request], bytes]:
        """Choose the function that makes of a request the bytes that the filter stores.

        Nobody knows what a method or a fingerprinter of the user's depends on: theirs are made anew each time.
        """
        if not self._has_users_fingerprint():
            if self._fingerprinter is None:
                return CachedFingerprints(self.request_fingerprint, self.config.cache_size)
            if type(self._fingerprinter) is RequestFingerprinter:
                return CachedFingerprints(self.request_fingerprint, self.config.cache_size, engine.FINGERPRINTED_META)
        return uncached_fingerprints(self.request_fingerprint)

    def _has_users_fingerprint(self) -> bool:
        """Return whether a subclass, or somebody who set it, has another `request_fingerprint` than this class."""
        return "request_fingerprint" in vars(self) or type(self).request_fingerprint is not _OURS

    def parameters(self) -> FilterParameters:
        """Choose what the workers of the filter must agree on, by the settings and the fingerprints.

        Returns:
            The parameters that a filter of this crawl has.
        """
        return replace(self.config.parameters(), fingerprint=self.fingerprint_scheme())

    def fingerprint_scheme(self) -> str:
        """Name the scheme of the fingerprints, as it is stored: it must not change under a filter.

        Returns:
            `scrapy-redis`, or the full name of the class or the method that makes them.
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
        """Say why and end the crawl, once; an error that is raised would drop one request after another.

        Args:
            error: why the filter or the queue cannot be used.

        Raises:
            Exception: the error itself, where there is no crawl to end.
        """
        if self._crawler is None or self._crawler.spider is None:
            raise error
        if not self._has_ended:
            self._has_ended = True
            logger.error("The crawl ends, since Redis cannot be used as it has to be: %s", describe(error))
            report_at_exit(describe(error))
            engine.close_spider(self._crawler, self._crawler.spider, UNUSABLE, self._runtime)


_OURS = BloomRFPDupeFilter.request_fingerprint


def _takes_without_scripts(kind: type[Any]) -> bool:
    """Return whether a scheduler takes requests as scrapy-redis's does, without the scripts of a queue."""
    return issubclass(kind, Scheduler) and bool(kind.flush is Scheduler.flush)
