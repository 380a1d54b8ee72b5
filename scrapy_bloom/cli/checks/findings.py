"""A finding of a check."""

from dataclasses import dataclass
from enum import StrEnum

# The checks by name: what makes a loss, and what makes advice. docs/commands.md shows them.
MEANINGS: dict[str, tuple[str, str]] = {
    "versions": ("", ""),
    "settings": ("a setting that is refused: no crawl would start", ""),
    "dupefilter": ("a class that is not this package's: the filter is not used; one that cannot be imported", ""),
    "scheduler": ("scrapy-redis's, which loses requests; one that cannot be imported", "Scrapy's: nothing is shared"),
    "spider": ("scrapy-redis's `RedisSpider` under `BloomScheduler`", ""),
    "serializer": (
        "a module that cannot be imported, or that cannot read the requests that wait",
        "pickles on a server that others may write to",
    ),
    "flush": (
        "`SCHEDULER_FLUSH_ON_START` with a queue that workers share",
        "the same under Scrapy's scheduler",
    ),
    "lease": ("", "`BLOOMFILTER_LEASE` under 10 seconds or over an hour"),
    "timeouts": (
        "",
        "`BLOOMFILTER_RETRY_TIMEOUT` of 0 or over 10 minutes; a `socket_timeout` of None, under 0.5 seconds, over 30, "
        "or as long as the lease",
    ),
    "error rate": ("", "more than one page is expected to be missed"),
    "server": ("it refuses every command", "it denies `INFO`"),
    "eviction": ("a full server evicts the filter, or the queue", ""),
    "memory": ("", "a new filter does not fit"),
    "persistence": ("none, or the server cannot write", "snapshots alone; `appendfsync no`"),
    "replication": ("a replica in the place of the master", "a replica that is far behind"),
    "slots": ("", "a cluster keeps the filter and the queue in different slots"),
    "filter": (
        "a SET or a stranger in its place, other parameters, strings or the hash gone, too full, not complete",
        "more than 5 layers",
    ),
    "import": ("", "an import that was not run to its end"),
    "capacity": ("", "more requests wait than the filter is for"),
    "ttl": ("", "the requests that wait need over 50 pages a second of each worker"),
    "queue": (
        "a list or a stranger in its place, dead letters, lost requests, workers of two spiders",
        "silent workers, spiders that have the same queue",
    ),
    "leases": ("", "requests that nobody holds"),
    "start URLs": ("dead letters, which nobody reads again", "leased by workers that are gone"),
    "permissions": ("commands and keys that the user lacks, with the exact `ACL SETUSER` rule", ""),
    "leftover filters": ("", "filters of crawls that were killed under Scrapy's own scheduler"),
    "undelivered requests": ("", "files that a worker left"),
}


class Level(StrEnum):
    """The weight of a finding: nothing to do, something worth doing, or something by which a crawl loses pages."""

    OK = "ok"
    ADVICE = "advice"
    LOSS = "loss"


@dataclass(frozen=True)
class Finding:
    """A finding: which `check` it is of, how much it matters, what there is, and what to do about it."""

    check: str
    level: Level
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    """Return a finding with nothing to do."""
    return Finding(check, Level.OK, text)


def advice(check: str, text: str, what_to_do: str) -> Finding:
    """Return a finding that is worth doing something about."""
    return Finding(check, Level.ADVICE, text, what_to_do)


def loss(check: str, text: str, what_to_do: str) -> Finding:
    """Return a finding by which a crawl loses pages, or fetches them again, or does not start."""
    return Finding(check, Level.LOSS, text, what_to_do)


def refused(check: str, text: str, what_to_do: str = "") -> Finding:
    """Return a finding by which no crawl would start; most errors say themselves what to do."""
    return loss(check, f"no crawl would start: {text}", what_to_do)
