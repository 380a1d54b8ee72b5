"""Choose the keys of a crawl, and whether its filter stays when the crawl ends."""

import re
import secrets
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from scrapy.settings import BaseSettings
from scrapy_redis import defaults

from scrapy_bloom._format import as_text
from scrapy_bloom._scrapy.components import read_flag
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.queue.keys import QueueKeys, key_of, queue_name, tagged

_SETTING = "SCHEDULER_DUPEFILTER_KEY"


@dataclass(frozen=True)
class FilterKey:
    """The key of a crawl's filter.

    Attributes:
        name: the key.
        persists: the filter stays when the crawl ends.
        begins_anew: the filter that an earlier crawl left at the key is not this crawl's.
        is_shared: the filter is that of other spiders, too, so that no crawl deletes it.
    """

    name: str
    persists: bool
    begins_anew: bool
    is_shared: bool

    def require_keeping(self) -> Self:
        """Return this key, if the start of the crawl deletes no shared filter.

        Raises:
            ConfigError: it would.
        """
        if self.is_shared and self.begins_anew:
            raise ConfigError(
                f"SCHEDULER_FLUSH_ON_START = True and {_SETTING} = {self.name!r}: spiders share this filter, since its "
                "key has no %(spider)s in it, and no crawl may delete it. Remove SCHEDULER_FLUSH_ON_START, and run "
                f"`scrapy bloom clear --key {self.name} --yes` while no crawl runs, or put %(spider)s into the key"
            )
        return self

    @classmethod
    def of_workers(cls, settings: BaseSettings, spider: object, *, is_clustered: bool) -> Self:
        """Return the key that all workers of a spider share, under scrapy-redis's Scheduler and its subclasses.

        Without SCHEDULER_DUPEFILTER_KEY it is scrapy-redis's default, and on a cluster a key in the queue's slot.

        Args:
            settings: the crawl's settings.
            spider: the spider, or another object with its attributes.
            is_clustered: the server is a cluster.

        Raises:
            ConfigError: a key is invalid, or the filter and the queue have the same key.
        """
        keys = QueueKeys(queue_of(settings, spider))
        template = settings.get(_SETTING)
        name = key_of(_SETTING, template or defaults.SCHEDULER_DUPEFILTER_KEY, spider)
        # Spiders that share a queue would share this filter, too.
        if is_clustered and not template and "%(" in _queue_template(settings):
            name = keys.dupefilter
        # The keys that the filter makes.
        of_filter = rf"{re.escape(tagged(name))}:(call:\w+|\w+:\d+:\d+)"
        if keys.include(name) or re.fullmatch(of_filter, keys.queue):
            raise ConfigError(
                f"SCHEDULER_QUEUE_KEY = {keys.queue!r} and {_SETTING} = {name!r}: must not name the same keys, nor one "
                "a key that the other makes; set two names, as the defaults are, '%(spider)s:requests' and "
                "'%(spider)s:dupefilter'"
            )
        persists, flushes = read_flag(settings, "SCHEDULER_PERSIST"), read_flag(settings, "SCHEDULER_FLUSH_ON_START")
        return cls(name, persists, flushes, names_shared_filter(settings))

    @classmethod
    def of_process(cls, settings: BaseSettings, spider: object) -> Self:
        """Return the key under Scrapy's own Scheduler.

        Without SCHEDULER_DUPEFILTER_KEY a JOBDIR has a filter of its own, which is emptied when the job begins. Without
        a JOBDIR each process has one.

        Args:
            settings: the crawl's settings.
            spider: the spider, or another object with its attributes.

        Raises:
            ConfigError: the key is invalid.
        """
        template, jobdir = settings.get(_SETTING), settings.get("JOBDIR")
        flushes = read_flag(settings, "SCHEDULER_FLUSH_ON_START")
        if template:
            persists = bool(jobdir) or read_flag(settings, "SCHEDULER_PERSIST")
            return cls(key_of(_SETTING, template, spider), persists, flushes, names_shared_filter(settings))
        stem = key_of(_SETTING, defaults.SCHEDULER_DUPEFILTER_KEY, spider)
        if jobdir:
            # Scrapy's Scheduler makes this folder at the first start of a job.
            is_resumed = Path(jobdir, "requests.queue").exists()
            place = sha256(str(Path(jobdir).resolve()).encode()).hexdigest()[:16]
            return cls(f"{stem}:{place}", persists=True, begins_anew=flushes or not is_resumed, is_shared=False)
        return cls(f"{stem}:{secrets.token_hex(8)}", persists=False, begins_anew=False, is_shared=False)


def names_shared_filter(settings: BaseSettings) -> bool:
    """Return whether SCHEDULER_DUPEFILTER_KEY names one filter for all spiders, by no attribute of a spider."""
    return "%(" not in as_text(settings.get(_SETTING) or "%(spider)s")


def queue_of(settings: BaseSettings, spider: object) -> str:
    """Return the key of scrapy-redis's queue for a spider, or another object with its attributes."""
    return queue_name(_queue_template(settings), spider)


def start_key_of(settings: BaseSettings, spider: Any) -> str:
    """Return the key of the start URLs of a spider, or another object with its attributes.

    Raises:
        ConfigError: the key is invalid.
    """
    setting, key = "redis_key", spider.redis_key
    if key is None:
        setting = "REDIS_START_URLS_KEY"
        key = settings.get(setting) or defaults.START_URLS_KEY
    return key_of(setting, key, spider)


def _queue_template(settings: BaseSettings) -> str:
    return as_text(settings.get("SCHEDULER_QUEUE_KEY") or defaults.SCHEDULER_QUEUE_KEY)
