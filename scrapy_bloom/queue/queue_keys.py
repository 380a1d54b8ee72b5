"""The names of the keys of a queue, and of start URLs; they are made here and nowhere else."""

from dataclasses import dataclass

from redis.crc import key_slot

from scrapy_bloom.errors import ConfigError


@dataclass(frozen=True)
class QueueKeys:
    """The keys of the queue at `queue`, all of which are in its slot of a cluster.

    A name in braces alone decides on the slot. So where the queue's own has none, it stands in braces in the others.
    """

    queue: str

    @property
    def workers(self) -> str:
        """The key of the hash of a queue's workers."""
        return f"{self._stem}:workers"

    @property
    def dead_letters(self) -> str:
        """The key of the sorted set of a queue's requests that could not be read."""
        return f"{self._stem}:dead-letter"

    @property
    def audit(self) -> str:
        """The key of the hash that tells whether requests of a queue were lost."""
        return f"{self._stem}:audit"

    @property
    def deliveries(self) -> str:
        """The key of the hash that counts how often a request was taken from a dead worker."""
        return f"{self._stem}:deliveries"

    def leases(self, worker: str) -> str:
        """Return the key of the sorted set of requests that a worker has leased."""
        return f"{self._stem}:leases:{worker}"

    @property
    def dupefilter(self) -> str:
        """The key of a filter in the queue's slot, so that one node has both."""
        return f"{self._stem}:dupefilter"

    def share_slot_with(self, key: str) -> bool:
        """Return whether a cluster keeps `key` in the queue's slot."""
        return int(key_slot(key.encode())) == int(key_slot(self.queue.encode()))

    @property
    def share_a_slot(self) -> bool:
        """False if a cluster has the queue elsewhere than its other keys: a brace in its name is not one of a pair."""
        return self.share_slot_with(self.workers)

    def include(self, key: str) -> bool:
        """Return whether a key is the queue, or one of those that its workers make beside it."""
        single = (self.queue, self.workers, self.dead_letters, self.audit, self.deliveries)
        return key in single or key.startswith(self.leases(""))

    @property
    def _stem(self) -> str:
        return _tagged(self.queue)


@dataclass(frozen=True)
class StartKeys:
    """The keys of the start URLs at `start`, all of which are in its slot of a cluster."""

    start: str

    @property
    def leased(self) -> str:
        """The key of the hash of start URLs that workers have taken, and that are no requests in the queue yet."""
        return f"{_tagged(self.start)}:leased"

    @property
    def dead_letters(self) -> str:
        """The key of the list of start URLs of which no request could be made."""
        return f"{_tagged(self.start)}:dead-letter"


def _tagged(key: str) -> str:
    """Return the begin of the names of keys that are in the slot of this one."""
    _, brace, rest = key.partition("{")
    has_tag = bool(brace) and rest.find("}") > 0
    return key if has_tag else f"{{{key}}}"


def queue_name(template: str, spider: str) -> str:
    """Return the key that scrapy-redis's queue has: its scheduler and its queue both put the spider's name in."""
    setting = "SCHEDULER_QUEUE_KEY"
    return key_of(setting, key_of(setting, template, spider), spider)


def key_of(setting: str, template: str, spider: str) -> str:
    """Return the key that a setting means for a spider.

    Raises:
        ConfigError: it has a percent sign that is not that of `%(spider)s`.
    """
    try:
        return template % {"spider": spider}
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f"{setting} = {template!r}: may have %(spider)s in it for the spider's name, and no other percent sign; "
            f"set a name like '%(spider)s:requests'"
        ) from None
