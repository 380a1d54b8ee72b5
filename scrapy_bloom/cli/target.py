"""The filter and the queue that the options and the settings of an action name."""

import argparse
import re
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeVar

from redis.client import NEVER_DECODE
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings, Settings
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.project import inside_project
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom.components import way_to
from scrapy_bloom.dupefilter import BloomRFPDupeFilter
from scrapy_bloom.errors import BloomError, ConfigError, UnavailableError, WrongTypeError
from scrapy_bloom.filter.info import StoredFilter, read_filter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.inspection import QueueState, inspect
from scrapy_bloom.queue.keys import FilterKey, another_count, partition_keys, partition_of, queue_of
from scrapy_bloom.scheduler import BloomScheduler
from scrapy_bloom.settings import OF_FILTER, PARTITIONS, BloomSettings, is_a, load_setting
from scrapy_bloom.transport.connect import connect, disconnect, is_cluster
from scrapy_bloom.transport.retry import retry_until

_PLACE = "the name of a spider of the project, or --key KEY"
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
    for option in OF_FILTER:
        meaning = f"{option.meaning} (default {option.default_text})"
        parser.add_argument(f"--{option.name.replace('_', '-')}", dest=option.setting, metavar="N", help=meaning)


class Place:
    """The filter and the queue of a crawl, or of one of its partitions, on a server.

    Args:
        target: the crawl.
        key: the key of the filter.
        queue: the key of the queue, or None if it is unknown, or workers share none.
        where: the beginning of texts about one of several partitions, or "".

    Attributes:
        client: a client of the server.
        server: the address and database of the server, without any password.
        count: the number of partitions of the crawl.
        wait: seconds for which an unreachable server is retried.
    """

    def __init__(self, target: "Place", key: str, queue: str | None, where: str) -> None:
        self.client: Any = target.client
        self.server: str = target.server
        self.count: int = target.count
        self.wait: float = target.wait
        self.key, self.queue, self.where = key, queue, where

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

    def read_filter(self) -> StoredFilter | None:
        """Return the stored filter, or None if the key is empty.

        Raises:
            ConfigError: its crawl has another number of partitions.
        """
        found = self.retry(lambda: read_filter(self.client, self.key))
        if found and found.partitions not in (0, self.count):
            raise another_count(self.count, f"of the filter {self.key!r}", found.partitions)
        return found

    def require_filter(self) -> StoredFilter:
        """Return the stored filter.

        Raises:
            WrongTypeError: the key is empty.
        """
        found = self.read_filter()
        if found is None:
            why = "no crawl has used it yet, or it was cleared at the end of its crawl"
            raise WrongTypeError(f"there is no filter at {self.key!r} on {self.server}: {why}")
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


class CrawlTarget(Place):
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
        refusal: the error of the spider or of an add-on, or None.
    """

    def __init__(
        self, options: argparse.Namespace, settings: Settings, *, waits: bool = False, may_be_refused: bool = False
    ) -> None:
        self._named_key, self._named_queue, self.where = options.key, options.queue, ""
        self.has_spider = options.spider is not None or (options.key is None and inside_project())
        _require(self.has_spider or options.key or options.queue)
        self.crawler = crawler_of(options.spider, settings) if self.has_spider else Crawler(Spider, settings)
        self.settings: BaseSettings = self.crawler.settings
        self.spider: type[Spider] | Spider = self.crawler.spidercls
        self.refusal: BloomError | None = None
        try:
            self._make_spider(options.arguments)
            self.crawler.addons.load_settings(self.settings)
        except BloomError as error:
            if not may_be_refused:
                raise
            self.refusal = error
        self.wait = BloomSettings.from_settings(self.settings).retry_timeout if waits else 0.0

    def _make_spider(self, arguments: dict[str, str]) -> None:
        """Make the spider if a key needs it, as Scrapy does before the add-ons: it may change the settings."""
        keys = map(self.settings.get, ("SCHEDULER_QUEUE_KEY", "SCHEDULER_DUPEFILTER_KEY", "REDIS_START_URLS_KEY"))
        if self.has_spider and (arguments or any(_OF_AN_INSTANCE.search(str(key)) for key in keys)):
            kind = self.crawler.spidercls
            try:
                self.spider = kind.from_crawler(self.crawler, **arguments)
            except TypeError as error:
                raise ConfigError(f"{kind.__name__}: {error}: give its arguments by -a") from None

    @cached_property
    def client(self) -> Any:
        """A client of the server; its connections are closed with the target, or at exit."""
        client = self.retry(lambda: connect(self.settings))
        weakref.finalize(self, disconnect, client)
        return client

    @cached_property
    def server(self) -> str:  # type: ignore[override]  # computed when it is needed
        """The address and database of the server, without any password."""
        if is_cluster(self.client):
            return f"the cluster of {', '.join(sorted(node.name for node in self.client.get_primaries()))}"
        where: dict[str, Any] = self.client.connection_pool.connection_kwargs
        address = f"unix:{where['path']}" if "path" in where else type(self.client).__name__
        address = f"{where['host']}:{where.get('port', 6379)}" if "host" in where else address
        return f"{address}, database {where.get('db') or 0}"

    @cached_property
    def scheduler(self) -> type:
        """The class of the SCHEDULER."""
        kind: type = load_setting(self.settings, "SCHEDULER", "scrapy_bloom.BloomScheduler")
        return kind

    @cached_property
    def key(self) -> str:  # type: ignore[override]  # computed when it is needed
        """The key of the filter."""
        if self._named_key or not self.has_spider:
            return str(_require(self._named_key))
        if issubclass(self.scheduler, Scheduler):
            return FilterKey.of_workers(self.settings, self.spider, is_clustered=is_cluster(self.client)).name
        if any(map(self.settings.get, ("SCHEDULER_DUPEFILTER_KEY", "JOBDIR"))):
            return FilterKey.of_process(self.settings, self.spider).name
        action = "give that key by --key, or set SCHEDULER = 'scrapy_bloom.BloomScheduler' for one that workers share"
        fault = f"SCHEDULER = {self.settings['SCHEDULER']!r}: each crawl has its own filter, whose key is in its log"
        raise ConfigError(f"{fault}; {action}")

    @cached_property
    def queue(self) -> str | None:  # type: ignore[override]  # computed when it is needed
        """The key of the queue, or None if no spider names it, or the spider's scheduler shares none."""
        is_shared = self.has_spider and issubclass(self.scheduler, Scheduler)
        return self._named_queue or (queue_of(self.settings, self.spider) if is_shared else None)

    @cached_property
    def count(self) -> int:  # type: ignore[override]  # computed when it is needed
        """The number of partitions; only BloomScheduler has several."""
        given = PARTITIONS.read(self.settings.get(PARTITIONS.setting, PARTITIONS.default))
        return given if not self.has_spider or issubclass(self.scheduler, BloomScheduler) else 1

    @cached_property
    def partitions(self) -> list[Place]:
        """The partitions of the crawl, or the one place of a crawl without any."""
        return self.partitions_at(self.queue, self.key)

    def partitions_at(self, queue: str | None, key: str) -> list[Place]:
        """Return the partitions of the crawl with this queue, if it is known, and this filter."""
        where = "partition {}: " if self.count > 1 else ""
        keys = enumerate(partition_keys(queue or key, key, self.count))
        return [Place(self, at, own if queue else None, where.format(number)) for number, (own, at) in keys]

    @cached_property
    def filter_class(self) -> type[BloomRFPDupeFilter] | None:
        """The DUPEFILTER_CLASS, or None if it does not use the filter; this package's if only keys are known."""
        kind = self._chosen_class if self.has_spider else BloomRFPDupeFilter
        return kind if is_a(kind, BloomRFPDupeFilter) else None

    @property
    def way_to_filter(self) -> str:
        """The change after which a crawl uses the filter."""
        return way_to("scrapy_bloom.BloomRFPDupeFilter", "DUPEFILTER_CLASS", self._chosen_class)

    @cached_property
    def _chosen_class(self) -> Any:
        with suppress(ConfigError):
            return load_setting(self.settings, "DUPEFILTER_CLASS", "")
        return None

    def require_dupefilter(self) -> None:
        """Refuse a crawl that does not use the filter."""
        if self.filter_class is None:
            fault = f"DUPEFILTER_CLASS = {self.settings['DUPEFILTER_CLASS']!r}: a crawl with this class does not use"
            raise ConfigError(f"{fault} the filter; {self.way_to_filter}, and run this again")

    @cached_property
    def dupefilter(self) -> BloomRFPDupeFilter:
        """The crawl's dupefilter, unopened; this package's if the crawl has another package's."""
        kind = self.filter_class or BloomRFPDupeFilter
        fingerprinter = load_object(self.settings["REQUEST_FINGERPRINTER_CLASS"])
        self.crawler.request_fingerprinter = build_from_crawler(fingerprinter, self.crawler)
        dupefilter = self.retry(lambda: kind.unopened(self.settings, self.key, self.crawler))
        weakref.finalize(self, disconnect, dupefilter.server)
        return dupefilter

    def parameters(self) -> FilterParameters:
        """Return the parameters of a filter, or of each partition's, according to the settings."""
        return self.dupefilter.parameters().of_partition(self.count)


def _require(place: Any) -> Any:
    """Return a place, unless it is not given."""
    if not place:
        raise ConfigError(f"give {_PLACE}")
    return place


def by_partition(items: Iterable[bytes], count: int) -> list[list[bytes]]:
    """Return the fingerprints of each partition."""
    found: list[list[bytes]] = [[] for _ in range(count)]
    for item in items:
        found[partition_of(item, count)].append(item)
    return found


def crawler_of(name: str | None, settings: Settings, *, is_optional: bool = False) -> Crawler:
    """Return a crawler of the named spider, or of the only one; with `is_optional`, otherwise of no spider."""
    loader = load_object(settings["SPIDER_LOADER_CLASS"]).from_settings(settings.frozencopy())
    names: list[str] = sorted(loader.list())
    if name is None and len(names) == 1:
        name = names[0]
    if name is None and is_optional:
        return Crawler(Spider, settings)
    if name not in names:
        fault = f"give {_PLACE}" if name is None else f"{name!r} is not a spider of a project"
        there = f"there are {', '.join(names)}" if names else "run it in a project, or give --key KEY"
        raise ConfigError(f"{fault}: {there}")
    return Crawler(loader.load(name), settings)
