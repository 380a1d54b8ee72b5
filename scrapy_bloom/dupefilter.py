"""The dupefilter: from a Scrapy request to a fingerprint, and from the filter's answer to Scrapy's.

It sees settings and requests, and never a bit.
"""

import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.utils.job import job_dir
from scrapy.utils.misc import load_object
from scrapy.utils.request import RequestFingerprinter, RequestFingerprinterProtocol
from scrapy_redis import defaults
from scrapy_redis.dupefilter import RFPDupeFilter

from scrapy_bloom import compat, job
from scrapy_bloom.advice import warn_of_limits
from scrapy_bloom.config import BloomConfig
from scrapy_bloom.connection import connect
from scrapy_bloom.errors import BloomError, ConfigError
from scrapy_bloom.filter import BloomFilter
from scrapy_bloom.fingerprints import Remembered, fresh
from scrapy_bloom.patience import patiently
from scrapy_bloom.report import Report

logger = logging.getLogger(__name__)


class BloomRFPDupeFilter(RFPDupeFilter):  # type: ignore[misc]  # scrapy-redis has no types
    """scrapy-redis's dupefilter with a Bloom filter in the place of its SET, under either scheduler.

    `server` is a Redis client, `key` where the filter is. Built by `from_spider`, `from_crawler` or `from_settings` it
    follows the BLOOMFILTER_* settings, opens the filter at once and raises what is wrong with them or with what is
    stored: ConfigError, MismatchError, WrongTypeError. Built directly it has the defaults, and opens at the first use.
    """

    def __init__(self, server: Any, key: str, debug: bool = False) -> None:
        super().__init__(server, key, debug)
        self.config = BloomConfig()
        self.persist = False
        self._jobdir: str | None = None
        self._crawler: Crawler | None = None
        self._fingerprinter: RequestFingerprinterProtocol | None = None
        self._filter: BloomFilter | None = None
        self._report: Report | None = None
        self._has_ended = False
        self.item = self._items()

    def __setattr__(self, name: str, value: object) -> None:
        """Honour a `request_fingerprint` that is set on one filter, as scrapy-redis does."""
        super().__setattr__(name, value)
        if name == "request_fingerprint":
            self.item = self._items()
            opened: BloomFilter | None = vars(self).get("_filter")
            if opened is not None:
                logger.warning(
                    "The filter at %r was opened for fingerprints of %r and gets those of %r from now on, of which no "
                    "other worker is told: override request_fingerprint in a subclass, or set "
                    "REQUEST_FINGERPRINTER_CLASS",
                    self.key,
                    opened.plan.fingerprint,
                    self._fingerprint_scheme(),
                )

    @classmethod
    def from_spider(cls, spider: Spider) -> Self:
        """For scrapy-redis's Scheduler, which clears the filter itself unless SCHEDULER_PERSIST keeps it."""
        template = spider.settings.get("SCHEDULER_DUPEFILTER_KEY") or defaults.SCHEDULER_DUPEFILTER_KEY
        return cls._build(spider.settings, template % {"spider": spider.name}, spider.crawler, None)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """For Scrapy's own Scheduler: the filter that SCHEDULER_DUPEFILTER_KEY names, that of the JOBDIR, or a new one.

        In a JOBDIR a filter stays as the queue does, for the crawl that goes on; one that is new otherwise is deleted.
        """
        template = crawler.settings.get("SCHEDULER_DUPEFILTER_KEY")
        key = template % {"spider": (crawler.spider or crawler.spidercls).name} if template else None
        return cls._build(crawler.settings, key, crawler, job_dir(crawler.settings))

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> Self:
        """Where there is no crawler: as `from_crawler`, but the key cannot name the spider, and no stats are kept."""
        key = settings.get("SCHEDULER_DUPEFILTER_KEY") or None
        if key and "%(spider)" in key:
            raise ConfigError(
                f"SCHEDULER_DUPEFILTER_KEY = {key!r}: from_settings knows no spider; set a key without %(spider)s, or "
                "use from_crawler or from_spider"
            )
        return cls._build(settings, key, None, job_dir(settings))

    @classmethod
    def _build(cls, settings: BaseSettings, named: str | None, crawler: Crawler | None, jobdir: str | None) -> Self:
        config = BloomConfig.from_settings(settings)
        kept = job.read_key(jobdir) if jobdir and not named else None
        key = named or kept or _unique_key()
        self = cls(connect(settings), key=key, debug=settings.getbool("DUPEFILTER_DEBUG"))
        self.config = config
        # A key that nobody named, and that no directory keeps, is a key that nobody finds again.
        self.persist = bool(jobdir) or bool(named and settings.getbool("SCHEDULER_PERSIST"))
        self._jobdir = jobdir
        self._crawler = crawler
        self._fingerprinter = _chosen_fingerprinter(settings, crawler)
        self.item = self._items()
        warn_of_limits(self.server, key, config.plan().memory_bytes)
        flush = settings.getbool("SCHEDULER_FLUSH_ON_START")
        if jobdir and kept and not flush:
            self._warn_of_loss(jobdir)
        self._filter = self._open(flush=flush)
        if jobdir and key not in (named, kept):
            self._keep_key(jobdir)
        self._report = Report(self._filter, crawler.stats if crawler else None)
        self._report.start()
        if crawler is not None:
            crawler.signals.connect(self._report.finish, signals.spider_closed)
            crawler.signals.connect(self._filter.rest, signals.spider_idle)
            crawler.signals.connect(self._filter.close, signals.spider_closed)
        return self

    @property
    def filter(self) -> BloomFilter:
        """The filter, opened at the first use where that was not done at the start."""
        if self._filter is None:
            self._filter = self._open(flush=False)
        return self._filter

    def request_seen(self, request: Request) -> bool:
        """Whether this request, or one with the same fingerprint, was seen by any worker; if not, it is now.

        If the filter was replaced by one that this crawl cannot use, the crawl is ended; the request is not dropped.
        """
        if self._has_ended:
            return False
        item = self.item(request)
        used = self._filter or self.filter
        if used.knows(item):
            return True
        try:
            is_new = used.add(item)
        except BloomError as error:
            self.end_crawl(error)
            return False
        self.update_stats()
        return not is_new

    def update_stats(self) -> None:
        """Show what the filter did, where there is a crawl to show it."""
        if self._report is not None:
            self._report.update()

    def request_fingerprint(self, request: Request) -> str:
        """The fingerprint in hexadecimal: scrapy-redis's, or that of the REQUEST_FINGERPRINTER_CLASS that was set."""
        if self._fingerprinter is not None:
            return self._fingerprinter.fingerprint(request).hex()
        return str(super().request_fingerprint(request))

    def log(self, request: Request, spider: Spider) -> None:
        """Log a request that is dropped, and count it as Scrapy's own filter does."""
        if self.debug or self.logdupes:
            super().log(request, spider)
        if self._report is not None:
            self._report.drop()

    def open(self) -> None:
        """Do nothing: Scrapy's own Scheduler calls this, scrapy-redis's does not, and the filter is open."""

    def close(self, reason: str = "") -> None:  # noqa: ARG002  # Scrapy passes it
        """Delete the filter, unless a JOBDIR, or SCHEDULER_DUPEFILTER_KEY and SCHEDULER_PERSIST, say that it stays."""
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
            self._report.look()
        self.filter.clear()

    def _warn_of_loss(self, jobdir: str) -> None:
        """Warn where an earlier crawl's filter is not there any more: nothing else would tell of it."""
        if not patiently(lambda: self.server.exists(self.key), self.config.retry_timeout):
            logger.warning(
                "The filter at %r, which %s names, is not on the server any more: this crawl begins with an empty one, "
                "and fetches pages again",
                self.key,
                Path(jobdir, job.KEY_FILE),
            )

    def _keep_key(self, jobdir: str) -> None:
        """Keep the key of a filter that is there: where it cannot be found by the next crawl, it goes."""
        try:
            job.write_key(jobdir, self.key)
        except ConfigError:
            self.filter.clear()
            raise

    def _open(self, flush: bool) -> BloomFilter:
        scheme = self._fingerprint_scheme()
        return BloomFilter(self.server, self.key, fingerprint=scheme, flush=flush, **self.config.of_the_filter())

    def _items(self) -> Callable[[Request], bytes]:
        """What makes of a request the bytes that the filter stores.

        What a method or a fingerprinter of the user's depends on nobody knows: theirs are made anew each time.
        """
        if not self._has_users_fingerprint():
            if self._fingerprinter is None:
                return Remembered(self.request_fingerprint, self.config.cache_size)
            if type(self._fingerprinter) is RequestFingerprinter:
                return Remembered(self.request_fingerprint, self.config.cache_size, compat.FINGERPRINTED_META)
        return fresh(self.request_fingerprint)

    def _has_users_fingerprint(self) -> bool:
        """Whether a subclass, or somebody who set it, has another `request_fingerprint` than this class."""
        return "request_fingerprint" in vars(self) or type(self).request_fingerprint is not _OURS

    def _fingerprint_scheme(self) -> str:
        """What fingerprints are made by, as it is stored: it must not change under a filter."""
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
        """Say why and end the crawl, once; an error that is raised would drop one request after another."""
        if self._crawler is None or self._crawler.spider is None:
            raise error
        if not self._has_ended:
            self._has_ended = True
            logger.error("The crawl ends, since Redis cannot be used as it has to be: %s", error)
            compat.close_spider(self._crawler, self._crawler.spider, "bloomfilter_error")


_OURS = BloomRFPDupeFilter.request_fingerprint


def _unique_key() -> str:
    """A key for one crawl; the time alone would be shared by crawls that start in the same second."""
    return str(defaults.DUPEFILTER_KEY % {"timestamp": f"{int(time.time())}-{secrets.token_hex(4)}"})


def _chosen_fingerprinter(settings: BaseSettings, crawler: Crawler | None) -> RequestFingerprinterProtocol | None:
    """Scrapy's fingerprinter where the user has chosen one; None, for scrapy-redis's, where not."""
    if settings.getpriority("REQUEST_FINGERPRINTER_CLASS") == SETTINGS_PRIORITIES["default"]:
        return None
    if crawler is not None:
        return crawler.request_fingerprinter
    chosen = load_object(settings["REQUEST_FINGERPRINTER_CLASS"])
    if hasattr(chosen, "from_crawler"):
        raise ConfigError(
            f"REQUEST_FINGERPRINTER_CLASS = {settings['REQUEST_FINGERPRINTER_CLASS']!r}: it is built from a crawler, "
            "which from_settings does not know; use from_crawler or from_spider"
        )
    return chosen()  # type: ignore[no-any-return]  # load_object loads anything
