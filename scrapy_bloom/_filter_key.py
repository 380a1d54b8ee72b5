"""Choose the key of a crawl's filter, and whether the filter stays when the crawl ends."""

import logging
import os
import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from scrapy.utils.job import job_dir
from scrapy_redis import defaults

from scrapy_bloom._format import as_text
from scrapy_bloom._scrapy.components import read_flag
from scrapy_bloom._scrapy.redis_settings import is_filter_separate
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.queue.queue_keys import QueueKeys, key_of, queue_name
from scrapy_bloom.storage import filter_keys
from scrapy_bloom.transport.server_info import is_cluster

logger = logging.getLogger(__name__)

# Bytes of a first layer up to which one node of a cluster keeps the whole filter.
MAX_NODE_BYTES = 1_000_000_000


@dataclass(frozen=True)
class FilterKey:
    """The key of a crawl's filter.

    Attributes:
        name: the key.
        persists: the filter stays when the crawl ends.
        jobdir: the JOBDIR that saves the key for crawls that resume the job, or None.
        is_resumed: an earlier crawl saved the key in the JOBDIR.
        is_unique: the key was generated for this crawl.
        queue: the key of the workers' shared queue, or None.
        slot_key: a key in the queue's slot, which replaces `name` on a cluster, or None.
        is_separate: the filter is on another server than the queue.
    """

    name: str
    persists: bool
    jobdir: str | None = None
    is_resumed: bool = False
    is_unique: bool = False
    queue: str | None = None
    slot_key: str | None = None
    is_separate: bool = False

    @classmethod
    def of_spider(cls, spider: Spider) -> Self:
        """Return the key under scrapy-redis's Scheduler and its subclasses."""
        return cls.for_workers(spider.settings, spider.name)

    @classmethod
    def for_workers(cls, settings: BaseSettings, spider: str) -> Self:
        """Return the key that all workers of a spider share; `on` may choose another key for a cluster.

        Raises:
            ConfigError: a key is invalid, or the filter and the queue have the same key.
        """
        template = settings.get("SCHEDULER_DUPEFILTER_KEY")
        name = key_of("SCHEDULER_DUPEFILTER_KEY", template or defaults.SCHEDULER_DUPEFILTER_KEY, spider)
        queue = queue_of(settings, spider)
        _refuse_common_keys(name, queue)
        # Spiders that share a queue would share this filter, too.
        is_own_queue = queue != queue_of(settings, f"not {spider}")
        is_separate = is_filter_separate(settings)
        slot_key = QueueKeys(queue).dupefilter if is_own_queue and not (template or is_separate) else None
        persists = read_flag(settings, "SCHEDULER_PERSIST")
        return cls(name, persists=persists, queue=queue, slot_key=slot_key, is_separate=is_separate)

    @classmethod
    def of_crawler(cls, crawler: Crawler) -> Self:
        """Return the key under Scrapy's own Scheduler: from the setting, from the JOBDIR, or a new key."""
        template = crawler.settings.get("SCHEDULER_DUPEFILTER_KEY")
        spider = (crawler.spider or crawler.spidercls).name
        name = key_of("SCHEDULER_DUPEFILTER_KEY", template, spider) if template else None
        chosen = cls._of(crawler.settings, name)
        if chosen.is_unique and not chosen.jobdir:
            logger.warning(
                "Nothing is shared: this process has a filter of its own, which is deleted at the end. To share a "
                "crawl between workers, set SCHEDULER = 'scrapy_bloom.BloomScheduler'; to share a filter between "
                "crawls, SCHEDULER_DUPEFILTER_KEY = '%(spider)s:dupefilter'; to resume a crawl, JOBDIR"
            )
        return chosen

    @classmethod
    def of_settings(cls, settings: BaseSettings) -> Self:
        """Return the key without a crawler: as `of_crawler`, but the key cannot contain the spider's name."""
        name = settings.get("SCHEDULER_DUPEFILTER_KEY") or None
        if name and "%(spider)" in name:
            raise ConfigError(
                f"SCHEDULER_DUPEFILTER_KEY = {name!r}: from_settings knows no spider; set a key without %(spider)s, or "
                "use from_crawler or from_spider"
            )
        return cls._of(settings, name)

    @classmethod
    def _of(cls, settings: BaseSettings, name: str | None) -> Self:
        jobdir = job_dir(settings)
        if name:
            return cls(name, bool(jobdir) or read_flag(settings, "SCHEDULER_PERSIST"), jobdir)
        kept = read_key(jobdir) if jobdir else None
        # No later crawl could find a generated key that no directory saves.
        return cls(kept or _unique_key(), bool(jobdir), jobdir, is_resumed=bool(kept), is_unique=not kept)

    def on(self, client: Any, memory_bytes: int) -> Self:
        """Return the key to use on a client's server or cluster, for a new filter of `memory_bytes`.

        On a cluster the default key is in the slot of the queue. One node then replicates both in one stream, and a
        failover that loses writes loses the same last writes of both. An existing filter at the default key of a
        single server stays in use. A filter that is too large for one node is spread over all nodes.
        """
        if self.slot_key is None or not is_cluster(client) or client.exists(self.name):
            return self
        # An existing filter keeps its key, even if the settings ask for another size now.
        if memory_bytes > MAX_NODE_BYTES and not client.exists(self.slot_key):
            return self
        return replace(self, name=self.slot_key)

    def warn_of_failovers(self, client: Any) -> None:
        """Warn if a failover of the cluster, or of the queue's server, may lose requests that the filter knows."""
        if self.queue is not None and self.is_separate:
            logger.info(
                "The filter %r and the queue %r are on different servers. If the queue's server loses its last writes, "
                "by a restart or a failover, the filter still knows these requests: their pages are missed",
                self.name,
                self.queue,
            )
            return
        if self.queue is None or not is_cluster(client):
            return
        if are_in_one_slot(self.name, self.queue):
            return
        logger.warning(
            "The cluster has the filter %r and the queue %r in different slots: a failover that loses writes may lose "
            "requests that the filter knows, and their pages are missed. Before the next new crawl, give both keys the "
            "same part in braces, as in SCHEDULER_DUPEFILTER_KEY = %r",
            self.name,
            self.queue,
            QueueKeys(self.queue).dupefilter,
        )

    def keep(self) -> None:
        """Save a new key in the JOBDIR, if there is one; raise ConfigError if the file cannot be written."""
        if self.jobdir and self.is_unique:
            write_key(self.jobdir, self.name)

    def warn_of_loss(self) -> None:
        """Warn that the filter of the crawl to resume no longer exists."""
        logger.warning(
            "The filter at %r, which %s names, is not on the server any more: this crawl starts with an empty filter, "
            "and fetches pages again",
            self.name,
            Path(str(self.jobdir), KEY_FILE),
        )


def are_in_one_slot(key: str, queue: str) -> bool:
    """Return whether a cluster stores the filter at a key, with all its shards, in the slot of a queue."""
    # Without a part in braces, the shards of a filter are in other slots than its hash.
    return all(map(QueueKeys(queue).share_slot_with, (key, filter_keys.shard_key(key, 0, 0))))


def queue_of(settings: BaseSettings, spider: str) -> str:
    """Return the key of scrapy-redis's queue for a spider."""
    return queue_name(settings.get("SCHEDULER_QUEUE_KEY") or defaults.SCHEDULER_QUEUE_KEY, spider)


def _unique_key() -> str:
    """Return a new key; by the time alone, crawls that start in the same second would share one."""
    return str(defaults.DUPEFILTER_KEY % {"timestamp": f"{int(time.time())}-{secrets.token_hex(4)}"})


def _refuse_common_keys(key: str, queue: str) -> None:
    """Refuse a queue and a filter that would write to the same keys."""
    key, queue = as_text(key), as_text(queue)
    if filter_keys.is_key_of(key, queue) or QueueKeys(queue).include(key):
        raise ConfigError(
            f"SCHEDULER_QUEUE_KEY = {queue!r} and SCHEDULER_DUPEFILTER_KEY = {key!r}: must not name the same keys, nor "
            "one a key that the other makes; set two names, as the defaults are, '%(spider)s:requests' and "
            "'%(spider)s:dupefilter'"
        )


KEY_FILE = "bloomfilter.key"


def read_key(directory: str) -> str | None:
    """Return the key that an earlier crawl saved in this directory, or None."""
    path = Path(directory, KEY_FILE)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _refusal(path, f"cannot be read ({type(error).__name__})") from None
    if len(lines) != 1 or not lines[0].strip():
        raise _refusal(path, "must be one line, the key of the job's filter")
    return lines[0].strip()


def write_key(directory: str, key: str) -> None:
    """Save the key in a file, atomically: a reader finds all of it or no file."""
    path = Path(directory, KEY_FILE)
    unfinished = path.with_suffix(".part")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(f"{key}\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(
            f"JOBDIR = {directory!r}: the file {path} cannot be written ({error.strerror}), which saves the filter's "
            "key for the crawl that resumes the job; use a writable directory, or set SCHEDULER_DUPEFILTER_KEY"
        ) from None


def _refusal(path: Path, fact: str) -> ConfigError:
    return ConfigError(
        f"JOBDIR = {str(path.parent)!r}: the file {path} {fact}. The last crawl's log names the key: write it into the "
        "file, or set SCHEDULER_DUPEFILTER_KEY to it. Or delete the file: the crawl then fetches pages again"
    )
