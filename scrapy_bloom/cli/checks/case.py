"""The crawl that `scrapy bloom doctor` examines, each part read once, and the findings about it."""

from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from redis import exceptions
from scrapy.utils.misc import load_object
from scrapy_redis import defaults
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom._filter_key import FilterKey
from scrapy_bloom.cli._target import UNREADABLE, CrawlTarget
from scrapy_bloom.cli.report import FilterReport, build_report
from scrapy_bloom.dupefilter import BloomRFPDupeFilter
from scrapy_bloom.errors import (
    FILTER_SERVER_NAMES,
    BloomError,
    ConfigError,
    MismatchError,
    RefusedError,
    UnavailableError,
    WrongTypeError,
)
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.inspection import QueueState
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.transport.failures import describe
from scrapy_bloom.transport.retry import retry_until
from scrapy_bloom.transport.server_info import is_cluster

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
    "server": (
        "refuses every command; a cluster's master does not answer",
        "denies `INFO`; a cluster's replica does not answer",
    ),
    "eviction": ("a full server evicts the filter or the queue", ""),
    "memory": ("", "no room for a new filter"),
    "persistence": ("none, or the server cannot write to disk", "snapshots only; `appendfsync no`"),
    "replication": ("a replica in place of the master", "a replica far behind its master, or without a link to it"),
    "slots": ("", "filter and queue in different slots of a cluster"),
    "filter": (
        "a SET or foreign data at its key; other parameters; lost shards, a lost hash or lost forgotten requests; too "
        "full; incomplete",
        "more than 5 layers; forgotten requests of a filter that is gone",
    ),
    "import": ("", "an unfinished import"),
    "capacity": ("", "more pending requests than the filter's capacity"),
    "ttl": ("", "the pending requests need more than 50 pages a second per worker"),
    "queue": (
        "a list or foreign data at its key; dead letters; lost requests; workers of two spiders",
        "silent workers; spiders with the same queue",
    ),
    "leases": ("", "requests leased by no registered worker"),
    "start URLs": ("dead letters, which no worker reads again", "leases of workers that are gone"),
    "permissions": (
        "missing permissions for commands and keys, with the exact `ACL SETUSER` rule; commands that the server does "
        "not know",
        "",
    ),
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


# Loaded by name: modules on this level do not import each other.
BLOOM_SCHEDULER: Any = load_object("scrapy_bloom.BloomScheduler")
LEASED_START_URLS: type = load_object("scrapy_bloom.spiders.LeasedStartUrls")


class Case:
    """The examined crawl. A property is None if the settings do not determine it.

    `idle` is the time in seconds without use after which a filter counts as left over.
    """

    def __init__(self, target: CrawlTarget, idle: float) -> None:
        self.target = target
        self.idle = idle
        self.settings = target.settings

    @cached_property
    def dupefilter(self) -> type | None:
        """The DUPEFILTER_CLASS."""
        return load_class(self.settings["DUPEFILTER_CLASS"])

    @cached_property
    def scheduler(self) -> type | None:
        """The SCHEDULER."""
        return load_class(self.settings["SCHEDULER"])

    @property
    def has_bloom_scheduler(self) -> bool:
        """True if workers lease requests."""
        return is_a(self.scheduler, BLOOM_SCHEDULER)

    @property
    def is_shared(self) -> bool:
        """True if workers share a queue."""
        return is_a(self.scheduler, Scheduler)

    @property
    def uses_filter(self) -> bool:
        """True if the crawl uses the filter, according to its settings."""
        return not self.target.has_spider or is_a(self.dupefilter, BloomRFPDupeFilter)

    @cached_property
    def config(self) -> BloomSettings | None:
        """The BLOOMFILTER_* settings."""
        with suppress(BloomError):
            return BloomSettings.from_settings(self.settings)
        return None

    @cached_property
    def key(self) -> str | None:
        """The key of the filter; under Scrapy's scheduler each crawl may have its own."""
        try:
            if self.is_shared and self.config is None and self.target.named_key is None:
                return FilterKey.for_workers(self.settings, self.target.spider).name
            return self.target.key
        except UnavailableError:
            raise
        except (BloomError, *UNREADABLE):
            return None

    @property
    def has_fixed_key(self) -> bool:
        """True if the settings determine the filter's key, and crawls draw none."""
        return self.is_shared or bool(self.settings.get("SCHEDULER_DUPEFILTER_KEY"))

    @cached_property
    def wanted(self) -> FilterParameters | None:
        """The filter's parameters according to the settings."""
        with suppress(BloomError, *UNREADABLE):
            return self.target.parameters
        return None

    @cached_property
    def inspection(self) -> FilterReport | BloomError | None:
        """The stored filter, or the error by which it cannot be used, or None: there is none."""
        try:
            return None if self.key is None else self.target.run_steps(build_report(self.key))
        except (MismatchError, RefusedError, WrongTypeError) as error:
            return error

    @property
    def found(self) -> FilterReport | None:
        """The stored filter, or None: there is none, or it cannot be used."""
        return self.inspection if isinstance(self.inspection, FilterReport) else None

    @property
    def parameters(self) -> FilterParameters | None:
        """The parameters of the stored filter, or else those of the settings."""
        return self.wanted if self.found is None else self.found.stored.parameters

    @property
    def queues(self) -> list[str]:
        """The keys of the queues: the named one or the spider's, and the users of the filter."""
        known: list[str] = []
        if self.is_shared or self.target.named_queue is not None:
            with suppress(BloomError):
                known = self.target.queues
        return list(dict.fromkeys([*known, *(self.found.stored.references if self.found else [])]))

    @cached_property
    def queue_inspections(self) -> list[QueueState | BloomError]:
        """The state of each queue, or the error by which it cannot be read."""
        found: list[QueueState | BloomError] = []
        for name in self.queues:
            try:
                found.append(self.target.inspect_queue(name))
            except (RefusedError, WrongTypeError) as error:
                found.append(error)
        return found

    @property
    def queue_states(self) -> list[QueueState]:
        """The states of the readable queues."""
        return [each for each in self.queue_inspections if isinstance(each, QueueState)]

    @cached_property
    def serializer(self) -> str | None:
        """The name of the SCHEDULER_SERIALIZER, or None: pickle."""
        serializer = self.settings["SCHEDULER_SERIALIZER"]
        return name_of(serializer) if serializer else None

    @property
    def start_key(self) -> str | None:
        """The key of the start URLs if the spider leases them, or None.

        Raises:
            ConfigError: the template has a percent sign other than that of `%(name)s`.
        """
        kind: Any = self.target.crawler.spidercls
        if not issubclass(kind, LEASED_START_URLS):
            return None
        setting, template = "redis_key", kind.redis_key
        if template is None:
            setting = "REDIS_START_URLS_KEY"
            template = self.settings.get(setting, defaults.START_URLS_KEY)
        try:
            return str(template % {"name": self.target.spider})
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                f"{setting} = {template!r}: may have %(name)s for the spider's name, and no other percent sign; set a "
                f"key like {defaults.START_URLS_KEY!r}"
            ) from None

    @cached_property
    def address(self) -> str | None:
        """The address and database of the filter's server, without any password."""
        with suppress(BloomError, *UNREADABLE):
            return self.target.server
        return None

    @cached_property
    def queue_address(self) -> str | None:
        """The address and database of the queue's server, without any password."""
        with suppress(BloomError, *UNREADABLE):
            return self.target.queue_server
        return None

    @cached_property
    def refusal(self) -> Finding | None:
        """The finding of a server that refuses every command, or of an invalid address; or None.

        Raises:
            UnavailableError: Redis is unreachable.
        """
        try:
            retry_until(lambda: _ping(self.target.queue_client), self.target.wait)
            if self.target.is_separate:
                retry_until(lambda: _ping(self.target.filter_client), self.target.wait, FILTER_SERVER_NAMES)
        except UnavailableError:
            raise
        except (BloomError, *UNREADABLE) as error:
            return refused("server", describe(error))
        return None

    def get_flag(self, name: str) -> bool:
        """Return a boolean setting; an unreadable one is reported by another check."""
        with suppress(ValueError):
            return self.settings.getbool(name)
        return False


def _ping(client: Any) -> None:
    """Ask a server, or a cluster's nodes until one of them answers."""
    nodes = client.get_primaries() if is_cluster(client) else [None]
    for number, node in enumerate(nodes, 1):
        # Another check covers the permission for PING.
        with suppress(exceptions.NoPermissionError):
            try:
                (client if node is None else client.get_redis_connection(node)).ping()
            except (exceptions.ConnectionError, exceptions.TimeoutError):
                if number == len(nodes):
                    raise
                continue
        return


def load_class(setting: Any) -> type | None:
    """Return the class in a setting, or None if it cannot be imported."""
    with suppress(*UNREADABLE):
        kind: type = load_object(setting)
        return kind
    return None


def is_a(kind: type | None, base: type) -> bool:
    """Return whether a loaded class is a subclass."""
    return isinstance(kind, type) and issubclass(kind, base)


def name_of(setting: Any) -> str:
    """Return the name of a class or module in a setting."""
    return setting if isinstance(setting, str) else getattr(setting, "__qualname__", str(setting))
