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
    """

    name: str
    persists: bool
    begins_anew: bool

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
        return cls(name, read_flag(settings, "SCHEDULER_PERSIST"), read_flag(settings, "SCHEDULER_FLUSH_ON_START"))

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
            return cls(key_of(_SETTING, template, spider), persists, flushes)
        stem = key_of(_SETTING, defaults.SCHEDULER_DUPEFILTER_KEY, spider)
        if jobdir:
            # Scrapy's Scheduler makes this folder at the first start of a job.
            is_resumed = Path(jobdir, "requests.queue").exists()
            place = sha256(str(Path(jobdir).resolve()).encode()).hexdigest()[:16]
            return cls(f"{stem}:{place}", persists=True, begins_anew=flushes or not is_resumed)
        return cls(f"{stem}:{secrets.token_hex(8)}", persists=False, begins_anew=False)


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
