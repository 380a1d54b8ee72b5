"""Keys of a queue and of start URLs."""

from redis.crc import key_slot

from scrapy_bloom.errors import ConfigError


class QueueKeys:
    """The keys of the queue at `queue`, all in one cluster slot.

    Only the part of a key in braces decides on its slot: if the queue's key has none, the other
    keys contain it in braces.

    Attributes:
        queue: the sorted set of requests.
        workers: the hash of registered workers.
        dead_letters: the sorted set of dead letters.
        audit: the hash that records losses of the queue.
        deliveries: the hash of requests that workers have died with, and how many have.
        dupefilter: the key of a filter on the queue's cluster node.
        absent: a key that never exists.

    Every script names the `absent` key. The node of a slot that is being moved refuses a script with a missing key
    before its first write. Without that key the node would execute the script, and end it in the middle: at the next
    use of a key that the script itself has emptied.
    """

    def __init__(self, queue: str) -> None:
        stem = tagged(queue)
        self.queue = queue
        self.workers = f"{stem}:workers"
        self.dead_letters = f"{stem}:dead-letter"
        self.audit = f"{stem}:audit"
        self.deliveries = f"{stem}:deliveries"
        self.dupefilter = f"{stem}:dupefilter"
        self.absent = f"{stem}:absent"
        self._leases = f"{stem}:leases:"

    def leases(self, worker: str) -> str:
        """Return the sorted set of a worker's leases."""
        return self._leases + worker

    def share_slot_with(self, key: str) -> bool:
        """Return whether `key` is in the queue's cluster slot."""
        return int(key_slot(key.encode())) == int(key_slot(self.queue.encode()))

    @property
    def share_a_slot(self) -> bool:
        """True if all keys are in one slot: the queue's key has no unpaired brace."""
        return self.share_slot_with(self.workers)

    def include(self, key: str) -> bool:
        """Return whether a key is the queue or one of its workers' keys."""
        single = (self.queue, self.workers, self.dead_letters, self.audit, self.deliveries)
        return key in single or key.startswith(self._leases)


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


def tagged(key: str) -> str:
    """Return the prefix of keys that a cluster keeps in the slot of `key`, unless that has an unpaired brace."""
    _, brace, rest = key.partition("{")
    has_tag = bool(brace) and rest.find("}") > 0
    return key if has_tag else f"{{{key}}}"


def queue_name(template: str, spider: str) -> str:
    """Return the key of scrapy-redis's queue, which inserts the spider's name twice."""
    setting = "SCHEDULER_QUEUE_KEY"
    return key_of(setting, key_of(setting, template, spider), spider)


def key_of(setting: str, template: str, spider: str) -> str:
    """Return the key that a setting names for a spider.

    Raises:
        ConfigError: the template has a percent sign outside `%(spider)s`.
    """
    try:
        return template % {"spider": spider}
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            f"{setting} = {template!r}: may have %(spider)s in it for the spider's name, and no other percent sign; "
            f"set a name like '%(spider)s:requests'"
        ) from None
