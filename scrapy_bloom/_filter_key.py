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
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.queue.queue_keys import QueueKeys, key_of, queue_name
from scrapy_bloom.storage import filter_keys
from scrapy_bloom.transport.server_info import is_cluster

logger = logging.getLogger(__name__)

# Bytes of a first layer up to which one node of a cluster keeps the whole filter.
_MAX_NODE_BYTES = 1_000_000_000


@dataclass(frozen=True)
class FilterKey:
    """The `name` of a key, and whether the filter there `persists` when the crawl ends.

    A `jobdir` keeps it for the crawls that resume the job; `is_resumed` where an earlier crawl has left it there.
    `is_unique` is a key that this crawl has made up.
    `queue` is the key of the queue, where workers share one. A `slot_key` is a key in the queue's slot that takes the
    place of `name` on a cluster.
    """

    name: str
    persists: bool
    jobdir: str | None = None
    is_resumed: bool = False
    is_unique: bool = False
    queue: str | None = None
    slot_key: str | None = None

    @classmethod
    def of_spider(cls, spider: Spider) -> Self:
        """Return the key under scrapy-redis's Scheduler and its subclasses."""
        return cls.for_workers(spider.settings, spider.name)

    @classmethod
    def for_workers(cls, settings: BaseSettings, spider: str) -> Self:
        """Return the key that all workers of the spider of a name share; a cluster may have another one, see `on`.

        Raises:
            ConfigError: a key is not allowed, or the filter and the queue have the same.
        """
        template = settings.get("SCHEDULER_DUPEFILTER_KEY")
        name = key_of("SCHEDULER_DUPEFILTER_KEY", template or defaults.SCHEDULER_DUPEFILTER_KEY, spider)
        queue = queue_of(settings, spider)
        _refuse_common_keys(name, queue)
        # A queue of several spiders would give all of them one filter, too.
        is_own_queue = queue != queue_of(settings, f"not {spider}")
        slot_key = None if template or not is_own_queue else QueueKeys(queue).dupefilter
        return cls(name, persists=read_flag(settings, "SCHEDULER_PERSIST"), queue=queue, slot_key=slot_key)

    @classmethod
    def of_crawler(cls, crawler: Crawler) -> Self:
        """Return the key under Scrapy's own Scheduler: the one that is set, that of the JOBDIR, or a new one."""
        template = crawler.settings.get("SCHEDULER_DUPEFILTER_KEY")
        spider = (crawler.spider or crawler.spidercls).name
        name = key_of("SCHEDULER_DUPEFILTER_KEY", template, spider) if template else None
        chosen = cls._of(crawler.settings, name)
        if chosen.is_unique and not chosen.jobdir:
            logger.warning(
                "Nothing is shared: this process has a filter of its own, which is deleted at the end. For workers "
                "that share a crawl set SCHEDULER = 'scrapy_bloom.BloomScheduler'; for a filter that crawls share, "
                "SCHEDULER_DUPEFILTER_KEY = '%(spider)s:dupefilter'; for a crawl that is resumed, JOBDIR"
            )
        return chosen

    @classmethod
    def of_settings(cls, settings: BaseSettings) -> Self:
        """Return the key where there is no crawler: as `of_crawler`, but it cannot name the spider."""
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
        # A key that nobody named, and that no directory keeps, is a key that nobody finds again.
        return cls(kept or _unique_key(), bool(jobdir), jobdir, is_resumed=bool(kept), is_unique=not kept)

    def on(self, client: Any, memory_bytes: int) -> Self:
        """Return the key on a server or a cluster, where a new filter takes so many bytes.

        On a cluster the default key is in the slot of the queue. One node replicates both in one stream then, and a
        failover that loses writes loses the same end of both. Data at the default key of a single server stay in use.
        A filter that is too large for one node is spread over all nodes.
        """
        if self.slot_key is None or not is_cluster(client) or client.exists(self.name):
            return self
        # A filter that is there keeps its key, whatever size the settings ask for now.
        if memory_bytes > _MAX_NODE_BYTES and not client.exists(self.slot_key):
            return self
        return replace(self, name=self.slot_key)

    def warn_of_failovers(self, client: Any) -> None:
        """Warn where a cluster's failover may lose requests that the filter knows."""
        if self.queue is None or not is_cluster(client):
            return
        if are_in_one_slot(self.name, self.queue):
            return
        logger.warning(
            "The cluster has the filter %r and the queue %r in different slots: a failover that loses writes may lose "
            "requests which the filter knows, and their pages are missed. Before the next new crawl give both keys the "
            "same part in braces, as in SCHEDULER_DUPEFILTER_KEY = %r",
            self.name,
            self.queue,
            QueueKeys(self.queue).dupefilter,
        )

    def keep(self) -> None:
        """Write a new key into the JOBDIR, if there is one; raises ConfigError where that is not possible."""
        if self.jobdir and self.is_unique:
            write_key(self.jobdir, self.name)

    def warn_of_loss(self) -> None:
        """Warn that an earlier crawl's filter is not there any more: nothing else would tell of it."""
        logger.warning(
            "The filter at %r, which %s names, is not on the server any more: this crawl begins with an empty one, and "
            "fetches pages again",
            self.name,
            Path(str(self.jobdir), KEY_FILE),
        )


def are_in_one_slot(key: str, queue: str) -> bool:
    """Return whether a cluster keeps the filter at a key in the slot of a queue, all of its strings included."""
    # Without a part in braces the shards of a filter are elsewhere than its hash.
    return all(map(QueueKeys(queue).share_slot_with, (key, filter_keys.shard_key(key, 0, 0))))


def queue_of(settings: BaseSettings, spider: str) -> str:
    """Return the key that scrapy-redis's queue has for the spider of this name."""
    return queue_name(settings.get("SCHEDULER_QUEUE_KEY") or defaults.SCHEDULER_QUEUE_KEY, spider)


def _unique_key() -> str:
    """Return a key for one crawl; the time alone would be shared by crawls that start in the same second."""
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
    """Return the key that an earlier crawl in this directory had, or None: there was none."""
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
    """Keep the key; nobody ever finds a part of it."""
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
            f"JOBDIR = {directory!r}: the file {path} cannot be written ({error.strerror}), which keeps the key of the "
            "filter for the crawl that goes on; use a directory that can be written to, or set SCHEDULER_DUPEFILTER_KEY"
        ) from None


def _refusal(path: Path, what: str) -> ConfigError:
    return ConfigError(
        f"JOBDIR = {str(path.parent)!r}: the file {path} {what}; write the key into it that the last crawl's log "
        "names, or set SCHEDULER_DUPEFILTER_KEY to it, or delete the file: the crawl then fetches pages again"
    )
