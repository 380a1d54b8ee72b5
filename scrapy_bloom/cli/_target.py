"""The crawl that the options and the settings of an action name: its settings, its filter and its queue."""

import argparse
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.exceptions import UsageError
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings, Settings
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.project import inside_project
from scrapy_redis import defaults
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom._filter_key import FilterKey, queue_of
from scrapy_bloom._format import plural
from scrapy_bloom._scrapy.components import load_setting
from scrapy_bloom._scrapy.connection import connect
from scrapy_bloom.cli._console import note
from scrapy_bloom.dupefilter import BloomRFPDupeFilter
from scrapy_bloom.errors import BloomError, ConfigError, WrongTypeError
from scrapy_bloom.filter import stored
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.stored import StoredFilter
from scrapy_bloom.options import CAPACITY, ERROR_RATE, EXPANSION, TTL, Option
from scrapy_bloom.queue.inspection import QueueState, inspect
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.transport.client import disconnect
from scrapy_bloom.transport.retry import retry_until
from scrapy_bloom.transport.server_info import is_cluster

# Errors of Scrapy and redis-py for settings that they cannot use.
UNREADABLE = (ImportError, NameError, AttributeError, TypeError, ValueError, KeyError)
_PLACE = "the name of a spider of the project, or --key KEY"

T = TypeVar("T")


def add_target_options(parser: argparse.ArgumentParser, *, spider: bool = True) -> None:
    """Add the options that name a filter; with `spider`, a spider's name is the first argument."""
    if spider:
        parser.add_argument("spider", nargs="?", metavar="SPIDER", help="a spider of the project")
    parser.add_argument("--key", metavar="KEY", help="the key of the filter (default: the spider's)")
    parser.add_argument("--queue", metavar="KEY", help="the key of the queue (default: the spider's)")
    parser.add_argument(
        "--redis-url", metavar="URL", help="the URL of the server, of filter and queue (default: from the settings)"
    )


class CrawlTarget:
    """A crawl that never starts. A property raises the error of the setting that it needs.

    Args:
        options: those of `add_target_options`.
        settings: the project's settings.
        waits: retry an unreachable server as a crawl does.
        may_be_refused: keep the error of an add-on that refuses the settings as `refusal`, instead of raising it.

    Attributes:
        crawler: it has the spider's class and the settings of the add-ons.
        settings: the crawler's.
        has_spider: the target is a spider of the project; otherwise only keys are known.
        spider: the name of the spider, or "".
        wait: seconds for which an unreachable server is retried.
        refusal: the error of an add-on, or None.
    """

    def __init__(
        self, options: argparse.Namespace, settings: Settings, *, waits: bool = False, may_be_refused: bool = False
    ) -> None:
        spider = options.spider
        self._named_key, self._named_queue = options.key, options.queue
        if options.redis_url:
            settings = settings.copy()
            settings.set("REDIS_URL", options.redis_url, priority="cmdline")
        self._project = settings
        self.has_spider = spider is not None or (options.key is None and inside_project())
        if not (self.has_spider or options.key or options.queue):
            raise UsageError(f"give {_PLACE}", print_help=False)
        self.crawler = Crawler(_spider_class(spider, settings) if self.has_spider else Spider, settings)
        self.settings: BaseSettings = self.crawler.settings
        self.spider: str = getattr(self.crawler.spidercls, "name", None) or ""
        self.refusal: BloomError | None = None
        try:
            self.crawler.addons.load_settings(self.settings)
        except BloomError as error:
            if not may_be_refused:
                raise
            self.refusal = error
        self.wait = BloomSettings.from_settings(self.settings).retry_timeout if waits else 0.0

    def retry(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which may call Redis."""
        return retry_until(work, self.wait)

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
        if "path" in where:
            address = f"unix:{where['path']}"
        elif "host" in where:
            address = f"{where['host']}:{where.get('port', 6379)}"
        else:
            address = type(self.client).__name__
        return f"{address}, database {where.get('db', 0) or 0}"

    @property
    def is_shared(self) -> bool:
        """True if the scheduler's workers share a queue."""
        return issubclass(load_setting(self.settings, "SCHEDULER", "scrapy_bloom.BloomScheduler"), Scheduler)

    @cached_property
    def key(self) -> str:
        """The key of the filter."""
        if self._named_key is not None:
            return str(self._named_key)
        if not self.has_spider:
            raise UsageError(f"give {_PLACE}", print_help=False)
        if self.is_shared:
            return FilterKey.of_workers(
                self.settings, self.crawler.spidercls, is_clustered=is_cluster(self.client)
            ).name
        if self.has_fixed_key:
            return FilterKey.of_process(self.settings, self.crawler.spidercls).name
        raise ConfigError(
            f"SCHEDULER = {self.settings['SCHEDULER']!r}: each crawl has its own filter, whose key is in its log; give "
            "that key by --key, or set SCHEDULER = 'scrapy_bloom.BloomScheduler' for a filter at "
            f"{defaults.SCHEDULER_DUPEFILTER_KEY!r}"
        )

    @property
    def has_fixed_key(self) -> bool:
        """True if the settings determine the filter's key, and crawls draw none."""
        return self.is_shared or any(map(self.settings.get, ("SCHEDULER_DUPEFILTER_KEY", "JOBDIR")))

    @property
    def queue(self) -> str | None:
        """The key of the queue, or None if no spider names it, or the spider's scheduler shares none."""
        if self._named_queue is not None:
            return str(self._named_queue)
        return queue_of(self.settings, self.crawler.spidercls) if self.has_spider and self.is_shared else None

    def require_queue(self) -> str:
        """Return the key of the queue.

        Raises:
            UsageError: no queue is known.
        """
        if self.queue is None:
            raise UsageError("give the name of a spider of the project, or --queue KEY", print_help=False)
        return self.queue

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
        """Return the filter's parameters according to the settings."""
        return self.dupefilter.parameters()

    def read_filter(self) -> StoredFilter | None:
        """Return the stored filter, or None if the key is empty."""
        return self.retry(lambda: stored.read(self.client, self.key))

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

    def inspect_queue(self, key: str) -> QueueState:
        """Return the state of a queue."""
        return self.retry(lambda: inspect(self.client, key))

    def request_queue(self, state: QueueState) -> RequestQueue:
        """Return a queue, with the filter of its workers, or else the crawl's; if none is known, with an absent one.

        Raises:
            ConfigError: the queue and the filter are in different slots of the cluster.
        """
        is_known = self._named_key is not None or self.has_spider
        key = state.filter or (self.key if is_known else QueueKeys(state.key).dupefilter)
        return RequestQueue(self.client, state.key, key)

    def queues_of(self, found: StoredFilter | None) -> list[str]:
        """Return the keys of the queue, if it is known, and of the queues that use a filter."""
        users = found.info.users if found else ()
        return list(dict.fromkeys([*([self.queue] if self.queue else []), *users]))

    def warn_about_queued(self, found: StoredFilter) -> None:
        """Warn about unfetched requests, which the filter knows, and which are not exported with it."""
        for state in map(self.inspect_queue, self.queues_of(found)):
            if number := state.waiting + state.leased + state.dead_letters + state.failed:
                requests = plural(number, "unfetched request")
                note(
                    f"the filter knows {requests} of the queue {state.key!r}, which is not exported: a crawl elsewhere "
                    "with this filter misses these pages, so finish the crawl first"
                )

    @property
    def queue_sharers(self) -> list[str]:
        """The names of the project's other spiders with the same queue."""
        queue, loader = queue_of(self.settings, self.crawler.spidercls), _spiders(self._project)
        others = [name for name in sorted(loader.list()) if name != self.spider]
        return [name for name in others if self._has_queue(loader.load(name), queue)]

    def _has_queue(self, kind: type[Spider], queue: str) -> bool:
        """Return whether another spider has this queue, under a scheduler that shares queues.

        A spider that sets no scheduler gets this crawl's, which an add-on may have set.
        """
        settings = self._project.copy()
        kind.update_settings(settings)
        is_set = settings.getpriority("SCHEDULER") != SETTINGS_PRIORITIES["default"]
        try:
            scheduler = load_object((settings if is_set else self.settings)["SCHEDULER"])
            return issubclass(scheduler, Scheduler) and queue_of(settings, kind) == queue
        except (BloomError, *UNREADABLE):
            # The spider's crawl would not start.
            return False


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
        raise UsageError(f"give {_PLACE}; there are {', '.join(names) or 'no spiders'}", print_help=False)
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
        parser.add_argument(_flag(option.name), metavar="N", help=meaning)


def with_options(parameters: FilterParameters, options: argparse.Namespace) -> FilterParameters:
    """Return the parameters, overridden by the command line.

    Raises:
        ConfigError: a value, or its combination with the settings, is invalid.
    """
    given = {each.name: getattr(options, each.name) for each in _PARAMETERS if getattr(options, each.name) is not None}
    return FilterParameters(**{**parameters.arguments(), **given})


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
