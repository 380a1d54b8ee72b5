"""The checks of `scrapy bloom doctor` by name, and their findings."""

from dataclasses import dataclass
from enum import StrEnum

from scrapy_bloom.transport.failures import describe

# The checks, with the causes of a loss and of advice. docs/commands.md shows them.
MEANINGS: dict[str, tuple[str, str]] = {
    "versions": ("", ""),
    "settings": ("a setting is refused: no crawl would start", ""),
    "dupefilter": ("another package's class, which does not use the filter; a class that cannot be imported", ""),
    "scheduler": (
        "scrapy-redis's, which loses requests; a class that cannot be imported",
        "Scrapy's: workers share nothing",
    ),
    "spider": ("scrapy-redis's `RedisSpider` under `BloomScheduler`", ""),
    "serializer": (
        "a module that cannot be imported, or cannot read the pending requests",
        "pickles on a server that others may write to",
    ),
    "flush": ("`SCHEDULER_FLUSH_ON_START` with a queue that workers share", "the same under Scrapy's scheduler"),
    "lease": ("", "`BLOOMFILTER_LEASE` under 10 seconds or over an hour"),
    "timeouts": (
        "",
        "`BLOOMFILTER_RETRY_TIMEOUT` of 0 or over 10 minutes; a `socket_timeout` of None, under 0.5 seconds, over 30, "
        "or as long as the lease",
    ),
    "error rate": ("", "more than one missed page expected"),
    "server": ("refuses every command", "denies `INFO`"),
    "eviction": ("a full server evicts the filter or the queue", ""),
    "memory": ("", "no room for a new filter"),
    "persistence": ("none, or the server cannot write to disk", "snapshots only; `appendfsync no`"),
    "replication": ("a replica in place of the master", "a replica far behind its master"),
    "slots": ("", "filter and queue in different slots of a cluster"),
    "filter": (
        "a SET or foreign data at its key, other parameters, lost shards, a lost hash, too full, incomplete",
        "more than 5 layers",
    ),
    "import": ("", "an unfinished import"),
    "capacity": ("", "more pending requests than the filter's capacity"),
    "ttl": ("", "the pending requests need more than 50 pages a second per worker"),
    "queue": (
        "a list or foreign data at its key, dead letters, lost requests, workers of two spiders",
        "silent workers, spiders with the same queue",
    ),
    "leases": ("", "requests leased by no registered worker"),
    "start URLs": ("dead letters, which no worker reads again", "leases of workers that are gone"),
    "permissions": ("missing permissions for commands and keys, with the exact `ACL SETUSER` rule", ""),
    "leftover filters": ("", "filters of crawls killed under Scrapy's own scheduler"),
    "undelivered requests": ("", "files left by stopped workers"),
}


class Level(StrEnum):
    """The weight of a finding: nothing to do, advice, or a loss of pages."""

    OK = "ok"
    ADVICE = "advice"
    LOSS = "loss"


@dataclass(frozen=True)
class Finding:
    """A finding of a check: its level, the fact, and the advice."""

    check: str
    level: Level
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(check, Level.OK, text)


def advice(check: str, text: str, action: str) -> Finding:
    """Return a finding with advice."""
    return Finding(check, Level.ADVICE, text, action)


def loss(check: str, text: str, action: str) -> Finding:
    """Return a finding by which a crawl loses pages, fetches them twice or does not start."""
    return Finding(check, Level.LOSS, text, action)


def refused(check: str, text: str, action: str = "") -> Finding:
    """Return a finding by which no crawl would start; the text of most errors has the advice."""
    return loss(check, f"no crawl would start: {text}", action)


def skipped(check: str, error: Exception) -> Finding:
    """Return the finding of a check that the server denied."""
    return advice(check, f"not checked: {describe(error)}", "run it as a user with the permission")
