"""Resolve the filter and the queue of an action, from a spider of the project or from named keys."""

import argparse
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.exceptions import UsageError
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings, Settings
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.project import inside_project
from scrapy_redis import defaults
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import _filter_key
from scrapy_bloom._filter_key import FilterKey, queue_of
from scrapy_bloom._format import plural
from scrapy_bloom._scrapy.connection import connect, connect_filter
from scrapy_bloom._scrapy.redis_settings import RedisSettings, is_filter_separate
from scrapy_bloom.cli._console import note
from scrapy_bloom.dupefilter import BloomRFPDupeFilter
from scrapy_bloom.errors import BloomError, ConfigError, WrongTypeError
from scrapy_bloom.filter import stored_filter
from scrapy_bloom.filter.bloom_filter import CrawlFilter, SeparateFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.stored_filter import StoredFilter
from scrapy_bloom.options import CAPACITY, ERROR_RATE, EXPANSION, TTL, Option
from scrapy_bloom.queue.inspection import QueueState, inspect
from scrapy_bloom.queue.queue_keys import key_of
from scrapy_bloom.settings import PREFIX, SERVER_SETTINGS, BloomSettings
from scrapy_bloom.storage.operation import Steps, T
from scrapy_bloom.storage.stores import RedisStore, RetryingStore, run_steps
from scrapy_bloom.transport.client import disconnect
from scrapy_bloom.transport.retry import retry_until
from scrapy_bloom.transport.server_info import is_cluster

# Errors of Scrapy and redis-py for settings that they cannot use.
UNREADABLE = (ImportError, NameError, AttributeError, TypeError, ValueError, KeyError)
_TARGET = "the name of a spider of the project, or --key KEY"


def add_target_options(parser: argparse.ArgumentParser, *, spider: bool = True) -> None:
    """Add the options that name a filter; with `spider`, a spider's name is the first argument."""
    if spider:
        parser.add_argument("spider", nargs="?", metavar="SPIDER", help="a spider of the project")
    parser.add_argument("--key", metavar="KEY", help="the key of the filter (default: the spider's)")
    parser.add_argument("--queue", metavar="KEY", help="the key of the queue (default: the spider's)")
    parser.add_argument(
        "--redis-url", metavar="URL", help="the URL of the server, of filter and queue (default: from the settings)"
    )


@dataclass(frozen=True)
class CrawlTarget:
    """A crawl's settings, filter and queue.

    Attributes:
        crawler: a crawler that never starts; it has the spider's class and the settings of the add-ons.
        project: the settings before the add-ons.
        has_spider: whether the target is a spider of the project; otherwise only keys are known.
        named_key: the filter's key from the command line, or None.
        named_queue: the queue's key from the command line, or None.
        wait: seconds for which an unreachable server is retried.
        refusal: the error of an add-on that refused the settings, or None.
    """

    crawler: Crawler
    project: Settings
    has_spider: bool
    named_key: str | None = None
    named_queue: str | None = None
    wait: float = 0.0
    refusal: BloomError | None = None

    @classmethod
    def of(
        cls, options: argparse.Namespace, settings: Settings, *, wait: bool = False, may_be_refused: bool = False
    ) -> "CrawlTarget":
        """Return the target of an action's options; with `wait`, retry an unreachable server as a crawl does.

        Raises:
            BloomError: an add-on refuses the settings, unless they `may_be_refused`.
        """
        spider = getattr(options, "spider", None)
        if options.redis_url:
            settings = settings.copy()
            settings.set("REDIS_URL", options.redis_url, priority="cmdline")
            # `-s` can still name another server for the filter.
            for name in SERVER_SETTINGS:
                if settings.getpriority(name) != SETTINGS_PRIORITIES["cmdline"]:
                    settings.set(name, None, priority="cmdline")
        has_spider = spider is not None or (options.key is None and inside_project())
        crawler = Crawler(_spider_class(spider, settings) if has_spider else Spider, settings)
        refusal = None
        try:
            crawler.addons.load_settings(crawler.settings)
        except BloomError as error:
            if not may_be_refused:
                raise
            refusal = error
        seconds = BloomSettings.from_settings(crawler.settings).retry_timeout if wait else 0.0
        return cls(crawler, settings, has_spider, options.key, options.queue, seconds, refusal)

    @property
    def settings(self) -> BaseSettings:
        """The settings of the crawl."""
        return self.crawler.settings

    @property
    def spider(self) -> str:
        """The name of the spider, or an empty one."""
        return getattr(self.crawler.spidercls, "name", None) or ""

    @cached_property
    def queue_client(self) -> Any:
        """A client of the queue's server; its connections are closed with the target, or at exit."""
        client = retry_until(lambda: connect(self.settings), self.wait)
        weakref.finalize(self, disconnect, client)
        return client

    @cached_property
    def filter_client(self) -> Any:
        """A client of the filter's server, by default the queue's; closed in the same way."""
        if not self._filter_settings.prefix:
            return self.queue_client
        client = retry_until(lambda: connect_filter(self.settings), self.wait, self._filter_settings.names)
        weakref.finalize(self, disconnect, client)
        return client

    @property
    def is_separate(self) -> bool:
        """True if the filter is on another server than the queue."""
        return is_filter_separate(self.settings)

    @property
    def _filter_settings(self) -> RedisSettings:
        return RedisSettings.of_filter(self.settings)

    @property
    def filter_type(self) -> type[CrawlFilter]:
        """The class of the filter, whose errors name the settings of its server."""
        return SeparateFilter if self._filter_settings.prefix else CrawlFilter

    @cached_property
    def store(self) -> RetryingStore:
        """The store of the filter."""
        return RetryingStore(RedisStore(self.filter_client), self.wait, self._filter_settings.names)

    @cached_property
    def key(self) -> str:
        """The key of the filter."""
        if self.named_key is not None:
            return self.named_key
        if not self.has_spider:
            raise UsageError(f"give {_TARGET}", print_help=False)
        if issubclass(load_object(self.settings["SCHEDULER"]), Scheduler):
            key = FilterKey.for_workers(self.settings, self.spider)
            memory_bytes = BloomSettings.from_settings(self.settings).parameters().memory_bytes
            names = self._filter_settings.names
            return retry_until(lambda: key.on(self.filter_client, memory_bytes), self.wait, names).name
        return self._key_without_scheduler()

    @property
    def queues(self) -> list[str]:
        """The keys of the known queues: the named one, or the spider's."""
        if self.named_queue is not None:
            return [self.named_queue]
        return [queue_of(self.settings, self.spider)] if self.has_spider else []

    @cached_property
    def dupefilter(self) -> BloomRFPDupeFilter:
        """The crawl's dupefilter, unopened; this package's if the crawl has another package's."""
        kind = load_object(self.settings["DUPEFILTER_CLASS"])
        if not issubclass(kind, BloomRFPDupeFilter):
            kind = BloomRFPDupeFilter
        fingerprinter = load_object(self.settings["REQUEST_FINGERPRINTER_CLASS"])
        self.crawler.request_fingerprinter = build_from_crawler(fingerprinter, self.crawler)
        work: Callable[[], BloomRFPDupeFilter] = partial(kind.unopened, self.settings, self.key, self.crawler)
        return retry_until(work, self.wait, self._filter_settings.names)

    @property
    def parameters(self) -> FilterParameters:
        """The filter's parameters according to the settings."""
        return self.dupefilter.parameters()

    @property
    def queue_sharers(self) -> list[str]:
        """The names of the project's other spiders with the same queue."""
        queue, loader = queue_of(self.settings, self.spider), _spiders(self.project)
        others = [name for name in sorted(loader.list()) if name != self.spider]
        return [name for name in others if self._has_queue(loader.load(name), name, queue)]

    def run_steps(self, steps: Steps[T]) -> T:
        """Run steps on the server."""
        return run_steps(steps, self.store.execute)

    def inspect_queue(self, key: str) -> QueueState:
        """Return the state of a queue."""
        return retry_until(lambda: inspect(self.queue_client, key), self.wait)

    def warn_about_queued(self, queues: Iterable[str]) -> None:
        """Warn about unfetched requests of these queues: the filter knows them, and the queues are not exported."""
        for state in map(self.inspect_queue, queues):
            if number := state.waiting + state.leased + state.dead_letters:
                requests = plural(number, "unfetched request")
                note(
                    f"the filter knows {requests} of the queue {state.key!r}, which is not exported: a crawl elsewhere "
                    "with this filter misses these pages, so finish the crawl first"
                )

    def read_filter(self) -> StoredFilter | None:
        """Return the stored filter, or None if the key is empty."""
        return self.run_steps(stored_filter.read(self.key))

    def require_filter(self) -> StoredFilter:
        """Return the stored filter.

        Raises:
            WrongTypeError: the key is empty.
        """
        found = self.read_filter()
        if found is None:
            raise WrongTypeError(
                f"there is no filter at {self.key!r} on {self.server}: no crawl has used it yet, or it was cleared at "
                "the end of its crawl"
            )
        return found

    @cached_property
    def server(self) -> str:
        """The address and database of the filter's server, without any password."""
        return _address(self.filter_client)

    @cached_property
    def queue_server(self) -> str:
        """The address and database of the queue's server, without any password."""
        return _address(self.queue_client)

    @property
    def clients(self) -> dict[str, Any]:
        """The clients, by the servers' names for a report; a single server has none."""
        if not self.is_separate:
            return {"": self.filter_client}
        return {"the filter's server": self.filter_client, "the queue's server": self.queue_client}

    @property
    def servers(self) -> dict[str, str]:
        """The servers for a report: `server`, and `queue_server` if the filter has a server of its own."""
        return {"server": self.server, **({"queue_server": self.queue_server} if self.is_separate else {})}

    def _has_queue(self, kind: type[Spider], name: str, queue: str) -> bool:
        """Return whether another spider has this queue, under a scheduler that shares queues.

        A spider that sets no scheduler gets this crawl's, which an add-on may have set.
        """
        settings = self.project.copy()
        kind.update_settings(settings)
        is_set = settings.getpriority("SCHEDULER") != SETTINGS_PRIORITIES["default"]
        try:
            scheduler = load_object((settings if is_set else self.settings)["SCHEDULER"])
            return issubclass(scheduler, Scheduler) and queue_of(settings, name) == queue
        except (BloomError, *UNREADABLE):
            # The spider's crawl would not start.
            return False

    def _key_without_scheduler(self) -> str:
        """Return the key under Scrapy's own scheduler, or under an unknown one."""
        template = self.settings.get("SCHEDULER_DUPEFILTER_KEY")
        if template:
            return key_of("SCHEDULER_DUPEFILTER_KEY", template, self.spider)
        jobdir = self.settings.get("JOBDIR")
        kept = _filter_key.read_key(jobdir) if jobdir else None
        if kept is not None:
            return kept
        raise ConfigError(
            f"SCHEDULER = {self.settings['SCHEDULER']!r}: each crawl has its own filter, whose key is in its log; give "
            "that key by --key, or set SCHEDULER = 'scrapy_bloom.BloomScheduler' for a filter at "
            f"{defaults.SCHEDULER_DUPEFILTER_KEY!r}"
        )


def _address(client: Any) -> str:
    if is_cluster(client):
        return f"the cluster of {', '.join(sorted(node.name for node in client.get_primaries()))}"
    pool = getattr(client, "connection_pool", None)
    where: dict[str, Any] = getattr(pool, "connection_kwargs", {})
    if "path" in where:
        address = f"unix:{where['path']}"
    elif "host" in where:
        address = f"{where['host']}:{where.get('port', 6379)}"
    else:
        address = type(client).__name__
    return f"{address}, database {where.get('db', 0) or 0}"


def require_file(options: argparse.Namespace, settings: Settings) -> None:
    """Refuse a spider's name in place of the file: a single argument is the file."""
    if options.spider is None and str(options.file) in _spiders(settings).list():
        raise UsageError(f"{str(options.file)!r} is a spider: give the FILE after it", print_help=False)


def crawl_settings(spider: str | None, settings: Settings) -> BaseSettings:
    """Return the settings of a spider's crawl; without a name, of the only spider or of the project."""
    name = spider or _only_spider(_spiders(settings).list())
    crawler = Crawler(_spider_class(name, settings) if name else Spider, settings)
    crawler.addons.load_settings(crawler.settings)
    return crawler.settings


def _spider_class(name: str | None, settings: Settings) -> type[Spider]:
    loader = _spiders(settings)
    names: list[str] = sorted(loader.list())
    name = _only_spider(names) if name is None else name
    if name is None:
        raise UsageError(f"give {_TARGET}; there are {', '.join(names) or 'no spiders'}", print_help=False)
    if name not in names:
        advice = f"there are {', '.join(names)}" if names else "run it in a project, or give --key KEY"
        raise UsageError(f"{name!r} is not a spider of a project: {advice}", print_help=False)
    return loader.load(name)  # type: ignore[no-any-return]  # load_object: Any


def _only_spider(names: Sequence[str]) -> str | None:
    return names[0] if len(names) == 1 else None


def _spiders(settings: Settings) -> Any:
    return load_object(settings["SPIDER_LOADER_CLASS"]).from_settings(settings.frozencopy())


_PARAMETERS: tuple[Option[Any], ...] = (CAPACITY, ERROR_RATE, EXPANSION, TTL)


def add_parameter_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that set the filter's parameters."""
    for option in _PARAMETERS:
        meaning = f"{option.meaning} (default {option.default_text})"
        parser.add_argument(_flag(option), metavar="N", help=meaning)


def given_parameters(options: argparse.Namespace, settings: BloomSettings) -> dict[str, Any]:
    """Return the parameters set on the command line, by name.

    Raises:
        ConfigError: a value, or its combination with the settings, is invalid; the text names the options.
    """
    given = {option: getattr(options, option.name) for option in _PARAMETERS}
    values = {option.name: option.read(_flag(option), value) for option, value in given.items() if value is not None}
    try:
        replace(settings, **values).parameters()
    except ConfigError as error:
        text = str(error)
        for option in _PARAMETERS:
            if option.name in values:
                text = text.replace(f"{PREFIX}{option.name.upper()} = ", f"{_flag(option)} = ")
        raise ConfigError(text) from None
    return values


def _flag(option: Option[Any]) -> str:
    return "--" + option.name.replace("_", "-")
