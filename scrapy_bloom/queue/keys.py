"""Keys of a queue and of start URLs, and the spider's attributes in the names that the settings give."""

from typing import Any
from zlib import crc32

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from scrapy_bloom._format import as_text
from scrapy_bloom.errors import ConfigError


class QueueKeys:
    """The keys of the queue at `queue`, all in one cluster slot.

    Only the part of a key in braces decides on its slot: if the queue's key has none, the other keys contain it in
    braces.

    Attributes:
        queue: the sorted set of requests.
        crawl: the hash of the crawl, and of its workers' registrations.
        departed: the hash of the registrations of workers that left or died.
        dead_letters: the sorted set of dead letters.
        failed: the hash of failed requests that are kept for the next run.
        deliveries: the hash of requests that workers have died with, and how many have.
        suspects: the hash of requests that workers run alone, since others have died with them.
        absent: a key that never exists, see `queue.lua`.
        dupefilter: the key of a filter in the queue's slot.
    """

    def __init__(self, queue: str) -> None:
        stem = tagged(queue)
        self.queue = queue
        self.crawl = f"{stem}:crawl"
        self.departed = f"{stem}:departed"
        self.dead_letters = f"{stem}:dead-letter"
        self.failed = f"{stem}:failed"
        self.deliveries = f"{stem}:deliveries"
        self.suspects = f"{stem}:suspects"
        self.absent = f"{stem}:absent"
        self.dupefilter = f"{stem}:dupefilter"
        self._of_workers = f"{stem}:leases:", f"{stem}:taken:"

    def of_scripts(self, filter_key: str) -> tuple[str, ...]:
        """Return KEYS of the queue's scripts, in the order of `queue.lua`."""
        return filter_key, *self._single, self.absent

    @property
    def _single(self) -> tuple[str, ...]:
        of_crawl = self.queue, self.crawl, self.departed
        return (*of_crawl, self.dead_letters, self.failed, self.deliveries, self.suspects)

    def of_worker(self, worker: str) -> tuple[str, ...]:
        """Return the sorted sets of a worker's leases, and of the requests that its last exchange took."""
        return tuple(prefix + worker for prefix in self._of_workers)

    def share_slot_with(self, key: str) -> bool:
        """Return whether `key` is in the queue's cluster slot."""
        return int(key_slot(key.encode())) == int(key_slot(self.queue.encode()))

    @property
    def share_a_slot(self) -> bool:
        """True if all keys are in one slot: the queue's key has no unpaired brace."""
        return self.share_slot_with(self.crawl)

    def include(self, key: str) -> bool:
        """Return whether a key is the queue or one of its other keys."""
        return key in (*self._single, self.absent) or key.startswith(self._of_workers)


class StartKeys:
    """The keys of the start URLs at `start`, all in one cluster slot.

    Attributes:
        start: the key of the start URLs.
        leased: the hash of start URLs that workers have taken and not queued yet.
        dead_letters: the list of start URLs that made no request.
        absent: a key that never exists, as in `QueueKeys`.
    """

    def __init__(self, start: str) -> None:
        self.start = start
        self.leased = f"{tagged(start)}:leased"
        self.dead_letters = f"{tagged(start)}:dead-letter"
        self.absent = f"{tagged(start)}:absent"


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
        "delete the crawl by `scrapy bloom clear`"
    )


def _in_partition(key: str, number: int) -> str:
    """Return a key with a number at the end of the part that decides on its slot; without one for 0."""
    if number == 0:
        return key
    end_of_key = f":partition:{number}"
    before, brace, rest = key.partition("{")
    tag, end, after = rest.partition("}")
    return f"{before}{{{tag}{end_of_key}}}{after}" if brace and tag and end else f"{key}{end_of_key}"


def tagged(key: str) -> str:
    """Return the prefix of keys that a cluster keeps in the slot of `key`, unless that has an unpaired brace."""
    _, brace, rest = key.partition("{")
    has_tag = bool(brace) and rest.find("}") > 0
    return key if has_tag else f"{{{key}}}"


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
