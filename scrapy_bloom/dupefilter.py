"""The dupefilter that Scrapy loads: fingerprint a request and ask the Bloom filter whether it is new."""

import contextlib
from collections.abc import Callable
from functools import cached_property, partial
from inspect import getattr_static, unwrap
from typing import Any, ClassVar, Self

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from scrapy.utils.job import job_dir
from scrapy.utils.request import RequestFingerprinter, RequestFingerprinterProtocol
from scrapy_redis import defaults
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import engine
from scrapy_bloom.command import reports_at_exit
from scrapy_bloom.errors import BloomError, ConfigError
from scrapy_bloom.filter.bloom_filter import BloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.fingerprints import Marks, chosen_fingerprinter, in_bytes, plain_or
from scrapy_bloom.pace import Moments, Pacer
from scrapy_bloom.queue.keys import FilterKey, QueueKeys, queue_of
from scrapy_bloom.report import CrawlReporter, call_safely, warn_about_memory, warn_of_deleted_requests
from scrapy_bloom.runtime import RUNTIME, Runtime
from scrapy_bloom.settings import BloomSettings, path_of, read_flag
from scrapy_bloom.stats import guard_stats
from scrapy_bloom.text import get_logger
from scrapy_bloom.transport.connect import connect, disconnect, is_cluster
from scrapy_bloom.transport.failures import FAULTS
from scrapy_bloom.transport.retry import retry_until

logger = get_logger(__name__)

# The settings of a dupefilter that was built without settings.
_DEFAULTS = BloomSettings()


def share_delay(crawler: Crawler, runtime: Runtime) -> None:
    """Let all workers of a crawl share its delays, if BLOOMFILTER_SHARED_DELAY is set.

    Raises:
        ConfigError: the downloader has no slots.
    """
    settings, stats = crawler.settings, crawler.stats
    if BloomSettings.from_settings(settings).shared_delay and stats is not None:
        keys = QueueKeys(queue_of(settings, crawler.spider or crawler.spidercls))
        Pacer(crawler, Moments(settings, keys.of_slot), partial(call_safely, stats.inc_value), runtime).start()


class BloomRFPDupeFilter(RFPDupeFilter):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's dupefilter with a Bloom filter in place of the SET, for any scheduler.

    Scrapy builds it with `from_spider`, `from_crawler` or `from_settings`: the BLOOMFILTER_* settings apply, and the
    filter opens at once. Built directly, it has those of the crawl being started, or of the one that runs. Outside a
    crawl, or if crawls of this process differ, it has the defaults, of which it warns. It opens at the first use.

    Args:
        server: a Redis client.
        key: the filter's key.
        debug: log every repeat, not only the first.

    Attributes:
        config: the BLOOMFILTER_* settings.
        report: reports the filter; None outside a crawl.

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
    # Here, since the __init__ of a subclass may not call this one.
    config = _DEFAULTS
    report: CrawlReporter | None = None
    persist = _is_shared = _has_ended = False
    _crawler: Crawler | None = None
    _fingerprinter: RequestFingerprinterProtocol | None = None
    _filter: BloomFilter | None = None

    def __init__(self, server: Any, key: str, debug: bool = False) -> None:
        super().__init__(server, key, debug)
        self._take_settings()

    @classmethod
    @reports_at_exit()
    def from_spider(cls, spider: Spider) -> Self:
        """Build the dupefilter for scrapy-redis's Scheduler and its subclasses, such as BloomScheduler.

        Args:
            spider: the crawl's spider; its name is part of the key.

        Returns:
            A dupefilter with an open filter.
        """
        settings = spider.settings
        self = cls._build(
            settings, spider.crawler, lambda server: FilterKey.of_workers(settings, spider, is_cluster(server))
        )
        # Otherwise BloomScheduler would report the requests that this scheduler takes as lost.
        with contextlib.suppress(*FAULTS):  # an ACL may deny it
            self.server.hdel(QueueKeys(queue_of(settings, spider)).crawl, "waiting")
        return self

    @classmethod
    @reports_at_exit()
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the dupefilter for Scrapy's own Scheduler.

        The filter's key is SCHEDULER_DUPEFILTER_KEY, or that of the JOBDIR, where the filter stays for the crawl that
        resumes the job. Without either the crawl has a filter of its own, which is deleted at the end.

        Args:
            crawler: the crawl.

        Returns:
            A dupefilter with an open filter.
        """
        if getattr_static(cls, "from_settings") is not getattr_static(BloomRFPDupeFilter, "from_settings"):
            share_delay(crawler, cls._runtime)
            return cls.from_settings(crawler.settings)  # as scrapy-redis does
        settings, spider = crawler.settings, crawler.spider or crawler.spidercls
        self = cls._build(settings, crawler, lambda _: FilterKey.of_process(settings, spider))
        if not self.persist and not settings.get("SCHEDULER_DUPEFILTER_KEY"):
            logger.warning(
                "Nothing is shared: this process has a filter of its own, which is deleted at the end. To share a "
                "crawl between workers, set SCHEDULER = 'scrapy_bloom.BloomScheduler'; to share a filter between "
                "crawls, SCHEDULER_DUPEFILTER_KEY = '%(spider)s:dupefilter'; to resume a crawl, JOBDIR"
            )
        elif self._is_shared and not settings.get("JOBDIR"):
            logger.warning(
                "The filter at %r is shared and stays, but the queue ends with this process: after a stop the filter "
                "calls the pending requests seen, and their pages are missed. Set JOBDIR, or SCHEDULER = "
                "'scrapy_bloom.BloomScheduler'",
                self.key,
            )
        return self

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> Self:
        """Build the dupefilter outside a crawl, without stats.

        Args:
            settings: the crawl's settings. Without SCHEDULER_DUPEFILTER_KEY the key is scrapy-redis's
                `dupefilter:<timestamp>`, and `close` deletes the filter.

        Returns:
            A dupefilter with an open filter.

        Raises:
            ConfigError: a setting is not allowed, or SCHEDULER_DUPEFILTER_KEY has a percent sign.
        """
        key = settings.get("SCHEDULER_DUPEFILTER_KEY")
        if not key:
            key = defaults.DUPEFILTER_KEY % {"timestamp": int(cls._runtime.unix_time())}
            once = FilterKey(key, persists=False, begins_anew=False, is_shared=False)
            return cls._build(settings, None, lambda _: once)
        if "%" in key:
            raise ConfigError(
                f"SCHEDULER_DUPEFILTER_KEY = {key!r}: from_settings knows no spider; set a key without %(spider)s, or "
                "use from_crawler or from_spider"
            )
        return cls._build(settings, None, lambda _: FilterKey.of_process(settings, None))

    @classmethod
    def unopened(cls, settings: BaseSettings, key: str, crawler: Crawler | None, server: Any = None) -> Self:
        """Build the dupefilter from settings without sending anything to Redis.

        Args:
            settings: the crawl's settings.
            key: the filter's key.
            crawler: the crawl, or None.
            server: a Redis client; by default one is made from the settings.

        Returns:
            A dupefilter that opens its filter at the first use.

        Raises:
            ConfigError: a setting is invalid, or a subclass has a `request_seen` that does not use the filter.
        """
        names = getattr(getattr(unwrap(cls.request_seen), "__code__", None), "co_names", ())  # none of a property
        if "server" in names and "request_seen" not in names and ("filter" not in names or "sadd" in names):
            raise ConfigError(
                f"DUPEFILTER_CLASS = {path_of(cls)!r}: its own request_seen calls neither the "
                "parent's nor self.filter, but the key holds no SET for other commands; override request_fingerprint "
                "instead, whose hash the filter stores"
            )
        config = BloomSettings.from_settings(settings)
        self = cls(server or connect(settings), key=key, debug=read_flag(settings, "DUPEFILTER_DEBUG"))
        self.config, self._crawler = config, crawler
        self._fingerprinter = chosen_fingerprinter(settings, crawler)
        return self

    @classmethod
    def _build(cls, settings: BaseSettings, crawler: Crawler | None, choose_key: Callable[[Any], FilterKey]) -> Self:
        config = BloomSettings.from_settings(settings)
        config.refuse_queue_options()
        if crawler is not None:
            guard_stats(crawler, cls._runtime)
            share_delay(crawler, cls._runtime)
        # The client of a cluster connects when it is made.
        server = retry_until(lambda: connect(settings), config.retry_timeout, runtime=cls._runtime)
        try:
            key = choose_key(server).require_keeping()
            self = cls.unopened(settings, key.name, crawler, server)
            self.persist, self._is_shared = key.persists, key.is_shared
            warn_about_memory(server, key.name, self.parameters())
            bloom = self._filter = self._open(flush=key.begins_anew)
            collector = crawler.stats if crawler else None
            self.report = CrawlReporter(self.key, bloom.counters, bloom.info, collector, self._runtime.monotonic)
            self.report.begin(is_shared=key.is_shared)
        except BaseException:
            disconnect(server)
            raise
        if crawler is not None:
            self.report.follow(crawler)
            crawler.signals.connect(self._disconnect, signals.spider_closed)
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        """Use a `request_fingerprint` and a `key` that are set on the instance, as scrapy-redis does.

        Raises:
            ConfigError: a crawl uses the filter at the former key.
        """
        if name == "key" and getattr(self, "report", None) is not None:
            with reports_at_exit():
                raise ConfigError(
                    f"SCHEDULER_DUPEFILTER_KEY = {self.key!r}: the crawl uses the filter at this key already, and "
                    f"{type(self).__qualname__}.key cannot become {value!r}; set the setting, where %(x)s is the "
                    "attribute x of the spider"
                )
        super().__setattr__(name, value)
        if name == "key":
            self._filter = None  # opened at the next use
        elif name == "request_fingerprint":
            for chosen in ("fingerprint_of", "mark_of"):
                self.__dict__.pop(chosen, None)

    def _disconnect(self) -> None:
        with contextlib.suppress(BloomError):
            self.filter.retry_timeout = 0.0
            self.filter.close()
        disconnect(self.server)

    @reports_at_exit()
    def _take_settings(self) -> None:
        """Take the settings of the crawl in which the constructor is called, if the crawls of this process agree."""
        crawlers = engine.crawlers()
        if len(crawlers) == 1:
            self._crawler = crawlers[0]
            self.config = BloomSettings.from_settings(self._crawler.settings)
            self._fingerprinter = chosen_fingerprinter(self._crawler.settings, self._crawler)
            return
        found = set()
        for each in crawlers:
            with contextlib.suppress(ConfigError):  # it may be that of another crawl
                found.add((BloomSettings.from_settings(each.settings), chosen_fingerprinter(each.settings, each)))
        if len(found) == 1:
            ((self.config, self._fingerprinter),) = found

    @property
    def filter(self) -> BloomFilter:
        """The Bloom filter, opened at the first use if it is not open yet."""
        if self._filter is None:
            if self.config is _DEFAULTS:
                logger.warning(
                    "The dupefilter at %r was built without settings: no BLOOMFILTER_ setting applies, and it is made "
                    "for %s requests; build it by from_spider, from_crawler or from_settings",
                    self.key,
                    f"{self.config.capacity:,}",
                )
            self.config.refuse_queue_options()
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
        try:
            bloom = self._filter or self.filter  # nearly always open, which saves the property's call
            if not bloom.add(self.mark_of(request, self._run)):
                return True
        except BloomError as error:
            self.end_crawl(error)
            return False
        if self.report is not None:
            self.report.update()
        return False

    @cached_property
    def _run(self) -> bytes:
        return self._runtime.token_hex(8).encode()

    @cached_property
    def mark_of(self) -> Marks:
        """The function from a request and the run of the crawl to its item in the filter."""
        size = 0 if self._has_users_code() else self.config.cache_size
        return Marks(self.fingerprint_of, size, self.config.always, self._meta_keys())

    def request_fingerprint(self, request: Request) -> str:
        """Return a request's fingerprint, by REQUEST_FINGERPRINTER_CLASS if set, else as scrapy-redis does.

        Args:
            request: the request.

        Returns:
            The fingerprint in hexadecimal.
        """
        if self._fingerprinter is None:
            return str(super().request_fingerprint(request))
        made = self._fingerprinter.fingerprint(request)
        if not isinstance(made, bytes):
            raise ConfigError(
                f"REQUEST_FINGERPRINTER_CLASS = {path_of(type(self._fingerprinter))!r}: its fingerprint returned "
                f"{made!r} for {request}; return bytes"
            )
        return made.hex()

    def log(self, request: Request, spider: Spider) -> None:
        """Log a dropped request and count it, as Scrapy's own dupefilter does.

        Args:
            request: the repeat.
            spider: the crawl's spider.
        """
        if self.debug or self.logdupes:
            super().log(request, spider)
        if self.report is not None:
            self.report.count_filtered()

    def open(self) -> None:
        """Do nothing: the filter is open. Scrapy's own Scheduler calls this, scrapy-redis's does not."""

    def close(self, reason: str = "") -> None:  # noqa: ARG002  # Scrapy passes it
        """Delete the filter, unless JOBDIR or SCHEDULER_PERSIST keeps it, or it is shared.

        Args:
            reason: the crawl's finish reason; ignored.
        """
        if not (self.persist or self._is_shared):
            self.clear()
            return
        jobdir = None if self._crawler is None else job_dir(self._crawler.settings)
        if jobdir and not (self._has_ended or self._is_shared):
            logger.info(
                "The filter at %r stays for the next crawl in JOBDIR = %r. When the job is done, delete the filter by "
                "`scrapy bloom clear --key %s --yes`",
                self.key,
                jobdir,
                self.key,
            )

    def clear(self) -> None:
        """Delete the filter; its last figures stay in the stats.

        A shared filter stays at the end of a crawl, and so does another crawl's filter that has taken the key.
        """
        if self._has_ended:
            return
        if self.report is not None:
            self.report.refresh()
        if self._crawler is None or not engine.is_closing(self._crawler):
            self.filter.clear()
            return
        self._warn_of_deleted_requests(engine.scheduler_of(self._crawler))
        if not self._is_shared:
            self.filter.clear()
        if self.report is not None:
            self.report.end()

    def _warn_of_deleted_requests(self, scheduler: Any) -> None:
        """Warn if scrapy-redis's Scheduler is about to delete waiting requests: it logs nothing itself."""
        # An error here must not prevent the deletion.
        with contextlib.suppress(Exception):
            if isinstance(scheduler, Scheduler) and (waiting := len(scheduler)):
                queue = scheduler.queue_key % {"spider": scheduler.spider.name}
                warn_of_deleted_requests(waiting, queue, is_shared=self._is_shared)

    def _open(self, flush: bool) -> BloomFilter:
        bloom = BloomFilter.with_parameters(
            self.server,
            self.key,
            self.parameters(),
            cache_size=self.config.cache_size,
            retry_timeout=self.config.retry_timeout,
            flush=flush,
        )
        if self._crawler is not None:  # spiders that start over when they are idle may delete the key
            self._crawler.signals.connect(bloom.revalidate, signals.spider_idle)
        return bloom

    @cached_property
    def fingerprint_of(self) -> Callable[[Request], bytes]:
        """The function from a request to its fingerprint, chosen at the first use."""
        label = f"DUPEFILTER_CLASS = {path_of(type(self))!r}: its request_fingerprint"
        make = in_bytes(self.request_fingerprint, label)
        if self._has_users_code():
            return make
        return plain_or(make, is_scrapys=self._is_scrapys(), meta_keys=self._meta_keys())

    def _is_scrapys(self) -> bool:
        return type(self._fingerprinter) is RequestFingerprinter

    def _meta_keys(self) -> tuple[str, ...]:
        """Return the keys of a request's meta on which the fingerprint depends."""
        return engine.FINGERPRINTED_META if self._is_scrapys() else ()

    def _has_users_code(self) -> bool:
        """Return whether the fingerprints are made by the user's code."""
        return self._has_users_method() or not (self._fingerprinter is None or self._is_scrapys())

    def _has_users_method(self) -> bool:
        """Return whether a class other than ours and scrapy-redis's, or the instance, has a `request_fingerprint`."""
        of_classes = [found for kind in type(self).__mro__ if (found := vars(kind).get("request_fingerprint"))]
        return of_classes != _STOCK or "request_fingerprint" in vars(self)

    def parameters(self) -> FilterParameters:
        """Return the filter's parameters, which all workers must agree on.

        Returns:
            The parameters from the settings, with the fingerprint scheme.
        """
        return FilterParameters.of(self.config, self.fingerprint_scheme())

    def fingerprint_scheme(self) -> str:
        """Return the name of the fingerprint scheme, which is stored: a filter keeps one scheme for life.

        Returns:
            `scrapy-redis`, or the full name of the user's class or method.
        """
        if self._has_users_method():
            return f"{path_of(type(self))}.request_fingerprint"
        return "scrapy-redis" if self._fingerprinter is None else path_of(type(self._fingerprinter))

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
            engine.end_crawl(self._crawler, error, self._runtime)


_STOCK = [BloomRFPDupeFilter.request_fingerprint, RFPDupeFilter.request_fingerprint]
