"""The filter and the queue that the options and the settings of an action name."""

import argparse
import re
import weakref
from collections.abc import Callable, Iterable
from copy import copy
from functools import cached_property, partial
from typing import Any, Self, TypeVar

from redis.client import NEVER_DECODE
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings, Settings
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.project import inside_project
from scrapy_redis import defaults
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom.dupefilter import BloomRFPDupeFilter
from scrapy_bloom.errors import BloomError, ConfigError, UnavailableError, WrongTypeError
from scrapy_bloom.filter.info import StoredFilter, read_filter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.inspection import QueueState, inspect
from scrapy_bloom.queue.keys import FilterKey, another_count, partition_keys, partition_of, queue_of
from scrapy_bloom.settings import (
    CAPACITY,
    ERROR_RATE,
    EXPANSION,
    PARTITIONS,
    PREFIX,
    TTL,
    BloomSettings,
    Option,
    load_setting,
)
from scrapy_bloom.transport.connect import connect, disconnect, is_cluster
from scrapy_bloom.transport.retry import retry_until

# Errors of Scrapy and redis-py for settings that they cannot use.
UNREADABLE = (ImportError, NameError, AttributeError, TypeError, ValueError, KeyError)
_PLACE = "the name of a spider of the project, or --key KEY"
# The options that describe a filter, by their settings.
PARAMETERS: dict[str, Option[Any]] = {
    PREFIX + each.name.upper(): each for each in (CAPACITY, ERROR_RATE, EXPANSION, TTL)
}
_ADDON, _SCHEDULER = "scrapy_bloom.Addon", "scrapy_bloom.BloomScheduler"
# The place of a setting, by its priority.
_PLACES = {15: "an add-on", 20: "the project's settings", 30: "the spider", 40: "the command line"}
# A key with an attribute that only a spider has, see `key_of`.
_OF_AN_INSTANCE = re.compile(r"%\((?!spider\)|name\))")

T = TypeVar("T")


def add_target_options(parser: argparse.ArgumentParser, *, spider: bool = True) -> None:
    """Add the options that name a filter; with `spider`, a spider's name is the first argument."""
    if spider:
        parser.add_argument("spider", nargs="?", metavar="SPIDER", help="a spider of the project")
    parser.add_argument("--key", metavar="KEY", help="the key of the filter (default: the spider's)")
    parser.add_argument("--queue", metavar="KEY", help="the key of the queue (default: the spider's)")
    server = "the URL of the server, of filter and queue (default: from the settings)"
    parser.add_argument("--redis-url", dest="REDIS_URL", metavar="URL", help=server)


def add_parameter_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that set the filter's parameters, each by its setting."""
    for setting, option in PARAMETERS.items():
        meaning = f"{option.meaning} (default {option.default_text})"
        parser.add_argument(f"--{option.name.replace('_', '-')}", dest=setting, metavar="N", help=meaning)


class CrawlTarget:
    """A crawl that never starts. A property raises the error of the setting that it needs.

    Args:
        options: those of `add_target_options`.
        settings: the project's settings.
        waits: retry an unreachable server as a crawl does.
        may_be_refused: keep the error of a spider or an add-on that refuses the settings as `refusal`.

    Attributes:
        crawler: it has the spider's class and the settings of the add-ons.
        settings: the crawler's.
        has_spider: the target is a spider of the project; otherwise only keys are known.
        spider: the spider whose attributes are in the keys: its class, unless it needs arguments or an instance.
        wait: seconds for which an unreachable server is retried.
        refusal: the error of the spider or of an add-on, or None.
        where: the beginning of texts about one of several partitions, or "".
    """

    where = ""
    _whole: "CrawlTarget | None" = None  # of a partition

    def __init__(
        self, options: argparse.Namespace, settings: Settings, *, waits: bool = False, may_be_refused: bool = False
    ) -> None:
        self._named_key, self._named_queue = options.key, options.queue
        self.has_spider = options.spider is not None or (options.key is None and inside_project())
        if not (self.has_spider or options.key or options.queue):
            raise ConfigError(f"give {_PLACE}")
        file = str(getattr(options, "file", ""))
        self.crawler = crawler_of(options.spider, settings, file=file) if self.has_spider else Crawler(Spider, settings)
        self.settings: BaseSettings = self.crawler.settings
        self.spider: type[Spider] | Spider = self.crawler.spidercls
        self.refusal: BloomError | None = None
        for step in (partial(self._make_spider, options.arguments), self.crawler.addons.load_settings):
            try:
                step(self.settings)
            except BloomError as error:
                if not may_be_refused:
                    raise
                self.refusal = error
        self.wait = BloomSettings.from_settings(self.settings).retry_timeout if waits else 0.0

    def _make_spider(self, arguments: dict[str, str], settings: BaseSettings) -> None:
        """Make the spider if a key needs it, as Scrapy does before the add-ons: it may change the settings."""
        keys = map(settings.get, ("SCHEDULER_QUEUE_KEY", "SCHEDULER_DUPEFILTER_KEY", "REDIS_START_URLS_KEY"))
        if self.has_spider and (arguments or any(_OF_AN_INSTANCE.search(str(key)) for key in keys)):
            kind = self.crawler.spidercls
            try:
                self.spider = kind.from_crawler(self.crawler, **arguments)
            except TypeError as error:
                raise ConfigError(f"{kind.__name__}: {error}: give its arguments by -a") from None

    def retry(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which may call Redis. If a partition is away, the error names it."""
        try:
            return retry_until(work, self.wait)
        except UnavailableError as error:
            error.cause = self.where + error.cause
            raise

    def send(self, *command: str | bytes | int) -> Any:
        """Return the reply to a command, with text as bytes; an unreachable server is retried."""
        return self.retry(lambda: self.client.execute_command(*command, **{NEVER_DECODE: []}))

    @cached_property
    def client(self) -> Any:
        """A client of the server; its connections are closed with the target, or at exit."""
        client = self.retry(lambda: connect(self.settings))
        weakref.finalize(self, disconnect, client)
        return client

    @cached_property
    def server(self) -> str:
        """The address and database of the server, without any password."""
        if is_cluster(self.client):
            return f"the cluster of {', '.join(sorted(node.name for node in self.client.get_primaries()))}"
        where: dict[str, Any] = self.client.connection_pool.connection_kwargs
        address = f"unix:{where['path']}" if "path" in where else type(self.client).__name__
        if "host" in where:
            address = f"{where['host']}:{where.get('port', 6379)}"
        return f"{address}, database {where.get('db', 0) or 0}"

    @property
    def is_shared(self) -> bool:
        """True if the scheduler's workers share a queue."""
        return issubclass(self._scheduler, Scheduler)

    @property
    def _scheduler(self) -> type:
        kind: type = load_setting(self.settings, "SCHEDULER", _SCHEDULER)
        return kind

    @cached_property
    def key(self) -> str:
        """The key of the filter."""
        if self._named_key is not None:
            return str(self._named_key)
        if not self.has_spider:
            raise ConfigError(f"give {_PLACE}")
        if self.is_shared:
            return FilterKey.of_workers(self.settings, self.spider, is_clustered=is_cluster(self.client)).name
        if any(map(self.settings.get, ("SCHEDULER_DUPEFILTER_KEY", "JOBDIR"))):
            return FilterKey.of_process(self.settings, self.spider).name
        raise ConfigError(
            f"SCHEDULER = {self.settings['SCHEDULER']!r}: each crawl has its own filter, whose key is in its log; give "
            "that key by --key, or set SCHEDULER = 'scrapy_bloom.BloomScheduler' for a filter at "
            f"{defaults.SCHEDULER_DUPEFILTER_KEY!r}"
        )

    @property
    def queue(self) -> str | None:
        """The key of the queue, or None if no spider names it, or the spider's scheduler shares none."""
        if self._named_queue is not None:
            return str(self._named_queue)
        return queue_of(self.settings, self.spider) if self.has_spider and self.is_shared else None

    @cached_property
    def count(self) -> int:
        """The number of partitions; only BloomScheduler has several."""
        given = PARTITIONS.read(self.settings.get(PARTITIONS.setting, PARTITIONS.default))
        is_ours = not self.has_spider or issubclass(self._scheduler, load_object(_SCHEDULER))
        return given if is_ours else 1

    @property
    def partitions(self) -> list[Self]:
        """The target in each partition: each is a target with keys of its own. The first one has the crawl's."""
        return [self] if self.count == 1 else self._partitions

    @cached_property
    def _partitions(self) -> list[Self]:
        return self.partitions_at(self.queue, self.key)

    def partitions_at(self, queue: str | None, key: str) -> list[Self]:
        """Return the partitions of the crawl with this queue, if it is known, and this filter."""
        parts = []
        for number, (own, of_filter) in enumerate(partition_keys(queue or key, key, self.count)):
            part, where = copy(self), f"partition {number}: " if self.count > 1 else ""
            keys = {"key": of_filter, "_named_queue": own if queue else None}
            vars(part).update(client=self.client, where=where, _whole=self, **keys)
            parts.append(part)
        return parts

    @cached_property
    def uses_filter(self) -> bool:
        """True if the DUPEFILTER_CLASS uses the filter, or only keys are known."""
        try:
            kind = load_object(self.settings["DUPEFILTER_CLASS"])
        except UNREADABLE:
            kind = None
        return not self.has_spider or (isinstance(kind, type) and issubclass(kind, BloomRFPDupeFilter))

    def require_dupefilter(self) -> None:
        """Refuse a crawl that does not use the filter."""
        if not self.uses_filter:
            raise ConfigError(
                f"DUPEFILTER_CLASS = {self.settings['DUPEFILTER_CLASS']!r}: a crawl with this class does not use the "
                f"filter; {self.remedy_for_dupefilter()}, and run this again"
            )

    def remedy_for_dupefilter(self) -> str:
        """Return the change after which the crawl uses the filter."""
        addons = self.settings.getdict("ADDONS")
        steps = []
        if load_object(_ADDON) not in [load_object(each) for each, order in addons.items() if order is not None]:
            steps.append(f"add {_ADDON!r}: 500 to ADDONS")
            if where := self.place_of("ADDONS"):
                steps[0] += f", which is {addons} in {where} (of two assignments the last one counts)"
        if where := self.place_of("DUPEFILTER_CLASS"):
            steps.append(f"remove DUPEFILTER_CLASS from {where}")
        return ", and ".join(steps)

    def place_of(self, setting: str) -> str | None:
        """Return where a setting has its value, or None for Scrapy's default."""
        return _PLACES.get(self.settings.getpriority(setting) or 0)

    @cached_property
    def dupefilter(self) -> BloomRFPDupeFilter:
        """The crawl's dupefilter, unopened; this package's if the crawl has another package's."""
        kind = load_object(self.settings["DUPEFILTER_CLASS"])
        if not issubclass(kind, BloomRFPDupeFilter):
            kind = BloomRFPDupeFilter
        fingerprinter = load_object(self.settings["REQUEST_FINGERPRINTER_CLASS"])
        self.crawler.request_fingerprinter = build_from_crawler(fingerprinter, self.crawler)
        work: Callable[[], BloomRFPDupeFilter] = partial(kind.unopened, self.settings, self.key, self.crawler)
        dupefilter = self.retry(work)
        weakref.finalize(self, disconnect, dupefilter.server)
        return dupefilter

    def parameters(self) -> FilterParameters:
        """Return the parameters of a filter, or of each partition's, according to the settings."""
        return (self._whole or self).dupefilter.parameters().of_partition(self.count)

    def read_filter(self) -> StoredFilter | None:
        """Return the stored filter, or None if the key is empty.

        Raises:
            ConfigError: its crawl has another number of partitions.
        """
        found = self.retry(lambda: read_filter(self.client, self.key))
        if found and found.partitions not in (0, self.count):
            raise another_count(self.count, f"of the filter {self.key!r}", found.partitions)
        return found

    def require_filter(self, *, is_complete: bool = False) -> StoredFilter:
        """Return the stored filter.

        Raises:
            WrongTypeError: the key is empty, or the filter must be complete and is not.
        """
        found = self.read_filter()
        if found is None:
            raise WrongTypeError(
                f"there is no filter at {self.key!r} on {self.server}: no crawl has used it yet, or it was cleared at "
                "the end of its crawl"
            )
        if is_complete and found.unfinished:
            raise WrongTypeError(
                f"the filter at {self.key!r} is not complete: `scrapy bloom {found.unfinished}` is filling it, or was "
                "stopped; run that again"
            )
        return found

    def inspect_queue(self, key: str) -> QueueState:
        """Return the state of a queue.

        Raises:
            ConfigError: its crawl has another number of partitions.
        """
        state = self.retry(lambda: inspect(self.client, key))
        if state.partitions not in (0, self.count):
            raise another_count(self.count, f"in the queue {key!r}", state.partitions)
        return state

    def inspect_queues(self) -> list[list[QueueState]]:
        """Return the states of the queue, if it is known, in all partitions; a list of one."""
        return [[part.inspect_queue(str(part.queue)) for part in self.partitions]] if self.queue else []


def by_partition(items: Iterable[bytes], count: int) -> list[list[bytes]]:
    """Return the fingerprints of each partition."""
    found: list[list[bytes]] = [[] for _ in range(count)]
    for item in items:
        found[partition_of(item, count)].append(item)
    return found


def spider_loader(settings: Settings) -> Any:
    """Return the loader of the project's spiders."""
    return load_object(settings["SPIDER_LOADER_CLASS"]).from_settings(settings.frozencopy())


def crawler_of(name: str | None, settings: Settings, *, file: str = "", is_optional: bool = False) -> Crawler:
    """Return a crawler of the named spider, or of the only one; with `is_optional`, otherwise of no spider.

    A `file` with the name of a spider stands in its place.
    """
    loader = spider_loader(settings)
    names: list[str] = sorted(loader.list())
    if name is None and file in names:
        raise ConfigError(f"{file!r} is a spider: give the FILE after it")
    if name is None and len(names) == 1:
        name = names[0]
    if name is None and is_optional:
        return Crawler(Spider, settings)
    if name not in names:
        fault = f"give {_PLACE}" if name is None else f"{name!r} is not a spider of a project"
        there = f"there are {', '.join(names)}" if names else "run it in a project, or give --key KEY"
        raise ConfigError(f"{fault}: {there}")
    return Crawler(loader.load(name), settings)
