"""All keys of a crawl, of its queue, its filter and its start URLs, from its settings and its spider."""

import re
import secrets
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self
from zlib import crc32

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from scrapy.settings import BaseSettings
from scrapy_redis import defaults

from scrapy_bloom.errors import ConfigError
from scrapy_bloom.settings import read_flag
from scrapy_bloom.text import as_text
from scrapy_bloom.transport.connect import tagged

_KEY = "SCHEDULER_DUPEFILTER_KEY"


class QueueKeys:
    """The keys of the queue at `queue`, all in one cluster slot.

    Only the part of a key in braces decides on its slot: if the queue's key has none, the other keys contain it in
    braces.

    Attributes:
        queue: the sorted set of requests.
        crawl: the hash of the crawl, and of the records of its workers.
        workers: the hash of the registrations of its workers.
        dead_letters: the sorted set of dead letters.
        failed: the hash of failed requests that are kept for the next run.
        deaths: the hash of requests that workers have died with, and how many have.
        ended: the hash that tells a worker that was presumed dead that the others have finished the crawl.
        rest: what is left of a queue that is being converted between a list and a sorted set.
        absent: a key that never exists, see `queue.lua`.
        dupefilter: the key of a filter in the queue's slot.
    """

    def __init__(self, queue: str) -> None:
        stem = tagged(queue)
        self.queue = queue
        self.crawl = f"{stem}:crawl"
        self.workers = f"{stem}:workers"
        self.dead_letters = f"{stem}:dead-letter"
        self.failed = f"{stem}:failed"
        self.deaths = f"{stem}:deaths"
        self.ended = f"{stem}:ended"
        self.rest = f"{stem}:rest"
        self.absent = f"{stem}:absent"
        self.dupefilter = f"{stem}:dupefilter"
        self._of_workers = f"{stem}:leases:", f"{stem}:taken:"
        self._of_slots = f"{stem}:pace:"

    def of_scripts(self, filter_key: str) -> tuple[str, ...]:
        """Return KEYS of the queue's scripts, in the order of `queue.lua`."""
        of_crawl = self.queue, self.crawl, self.workers
        return (filter_key, *of_crawl, self.dead_letters, self.failed, self.deaths, self.absent)

    def of_worker(self, worker: str) -> tuple[str, ...]:
        """Return the sorted sets of a worker's leases, and of the requests that its last sync took."""
        return tuple(prefix + worker for prefix in self._of_workers)

    def of_slot(self, name: str) -> str:
        """Return the hash of the next moment of a slot of the downloader, whose name may be any text."""
        return self._of_slots + name.encode(errors="backslashreplace").decode()

    def share_slot_with(self, key: str) -> bool:
        """Return whether `key` is in the queue's cluster slot."""
        return int(key_slot(key.encode())) == int(key_slot(self.queue.encode()))

    @property
    def share_a_slot(self) -> bool:
        """True if all keys are in one slot: the queue's key has no unpaired brace."""
        return self.share_slot_with(self.crawl)

    def include(self, key: str) -> bool:
        """Return whether a key is the queue or one of its other keys."""
        mine = (*self.of_scripts(self.queue), self.ended, self.rest)
        return key in mine or key.startswith((*self._of_workers, self._of_slots))


def partition_keys(queue: str, filter_key: str, count: int) -> list[tuple[str, str]]:
    """Return the keys of the queue and the filter in each partition; the first one has the keys themselves.

    The others say that they are a partition's, so that no other crawl has such a key by chance. Each filter is in
    another one of `count` equal parts of the cluster's slots, so that equal primaries have equally many partitions.
    """
    numbers: dict[int, int] = {}  # by the part of the slots
    number = 0
    while len(numbers) < count:
        slot = int(key_slot(_in_partition(filter_key, number).encode()))
        numbers.setdefault(slot * count // REDIS_CLUSTER_HASH_SLOTS, number)
        number += 1
    return [(_in_partition(queue, each), _in_partition(filter_key, each)) for each in numbers.values()]


def partition_of(item: bytes, count: int) -> int:
    """Return the number of a request's partition, by its fingerprint, or by its bytes in the queue without one."""
    return (crc32(item) >> 16) % count


def another_count(count: int, crawl: str, stored: int) -> ConfigError:
    """Return the error for a crawl, such as "in the queue 'a'", with another number of partitions than `count`."""
    return ConfigError(
        f"BLOOMFILTER_PARTITIONS = {count}: the crawl {crawl} has {stored}; set that number, also to "
        "delete the crawl by `scrapy bloom clear SPIDER --with-queue --yes`"
    )


def _in_partition(key: str, number: int) -> str:
    """Return a key with a number at the end of the part that decides on its slot; without one for 0."""
    if number == 0:
        return key
    end_of_key = f":partition:{number}"
    before, brace, rest = key.partition("{")
    tag, end, after = rest.partition("}")
    return f"{before}{{{tag}{end_of_key}}}{after}" if brace and tag and end else f"{key}{end_of_key}"


def queue_name(template: str, spider: object) -> str:
    """Return the key of scrapy-redis's queue, which inserts the spider's name twice."""
    setting = "SCHEDULER_QUEUE_KEY"
    return key_of(setting, key_of(setting, template, spider), spider)


def key_of(setting: str, template: str, spider: object) -> str:
    """Return the key that a setting names: `%(spider)s` is the spider's name, and `%(x)s` its attribute `x`.

    Args:
        setting: the name of the setting.
        template: its value.
        spider: the spider, or another object with its attributes.

    Raises:
        ConfigError: the spider has no such attribute, or the template has another percent sign.
    """
    try:
        return as_text(template) % _Attributes(spider)
    except (KeyError, TypeError, ValueError) as error:
        missing = f" (the spider's attribute {error} is not set)" if isinstance(error, KeyError) else ""
        raise ConfigError(
            f"{setting} = {template!r}: may have %(spider)s in it for the spider's name, %(x)s for its attribute x"
            f"{missing}, and no other percent sign; set a name like '%(spider)s:requests', or set the attribute"
        ) from None


class _Attributes:
    """The attributes of a spider, as `%` reads them."""

    def __init__(self, spider: object) -> None:
        self._spider = spider

    def __getitem__(self, name: str) -> Any:
        value = getattr(self._spider, "name" if name == "spider" else name, None)
        if not isinstance(value, (str, int)) or value == "":
            raise KeyError(name)
        return value


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
                f"SCHEDULER_FLUSH_ON_START = True and {_KEY} = {self.name!r}: spiders share this filter, since its "
                "key has no %(spider)s in it, and no crawl may delete it. Remove SCHEDULER_FLUSH_ON_START, and run "
                f"`scrapy bloom clear --key {self.name} --yes` while no crawl runs, or put %(spider)s into the key"
            )
        return self

    @classmethod
    def of_workers(cls, settings: BaseSettings, spider: object, is_clustered: bool) -> Self:
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
        template = settings.get(_KEY)
        name = key_of(_KEY, template or defaults.SCHEDULER_DUPEFILTER_KEY, spider)
        # Spiders that share a queue would share this filter, too.
        if is_clustered and not template and "%(" in _queue_template(settings):
            name = keys.dupefilter
        # The keys that the filter makes.
        of_filter = rf"{re.escape(tagged(name))}:(call:\w+|\w+:\d+:\d+)"
        if keys.include(name) or re.fullmatch(of_filter, keys.queue):
            raise ConfigError(
                f"SCHEDULER_QUEUE_KEY = {keys.queue!r} and {_KEY} = {name!r}: must not name the same keys, nor one "
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
        template, jobdir = settings.get(_KEY), settings.get("JOBDIR")
        flushes = read_flag(settings, "SCHEDULER_FLUSH_ON_START")
        if template:
            persists = bool(jobdir) or read_flag(settings, "SCHEDULER_PERSIST")
            return cls(key_of(_KEY, template, spider), persists, flushes, names_shared_filter(settings))
        stem = key_of(_KEY, defaults.SCHEDULER_DUPEFILTER_KEY, spider)
        if jobdir:
            # Scrapy's Scheduler makes this folder at the first start of a job.
            is_resumed = Path(jobdir, "requests.queue").exists()
            place = sha256(str(Path(jobdir).resolve()).encode()).hexdigest()[:16]
            return cls(f"{stem}:{place}", persists=True, begins_anew=flushes or not is_resumed, is_shared=False)
        return cls(f"{stem}:{secrets.token_hex(8)}", persists=False, begins_anew=False, is_shared=False)


def names_shared_filter(settings: BaseSettings) -> bool:
    """Return whether SCHEDULER_DUPEFILTER_KEY names one filter for all spiders, by no attribute of a spider."""
    return "%(" not in as_text(settings.get(_KEY) or "%(spider)s")


def queue_of(settings: BaseSettings, spider: object) -> str:
    """Return the key of scrapy-redis's queue for a spider, or another object with its attributes."""
    return queue_name(_queue_template(settings), spider)


def _queue_template(settings: BaseSettings) -> str:
    return as_text(settings.get("SCHEDULER_QUEUE_KEY") or defaults.SCHEDULER_QUEUE_KEY)
