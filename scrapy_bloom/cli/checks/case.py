"""The checks of `scrapy bloom doctor`, in their order: each takes what it looks at from the case, and yields findings.

A check that is refused is a finding, and the others go on. A new one is a function and a row of a table.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from importlib import import_module
from typing import Any

from redis import exceptions
from scrapy.utils.job import job_dir
from scrapy.utils.misc import load_object
from scrapy_redis import defaults
from scrapy_redis.queue import PriorityQueue
from scrapy_redis.scheduler import Scheduler
from scrapy_redis.spiders import RedisMixin

from scrapy_bloom._filter_key import FilterKey
from scrapy_bloom.cli import key_contents
from scrapy_bloom.cli._target import UNREADABLE, CrawlTarget
from scrapy_bloom.cli.checks import configuration, contents, leftovers, server
from scrapy_bloom.cli.checks.findings import Finding, advice, loss, ok, refused
from scrapy_bloom.cli.importing.import_state import ImportKeys
from scrapy_bloom.cli.report import FilterReport, build_report
from scrapy_bloom.dupefilter import BloomRFPDupeFilter
from scrapy_bloom.errors import BloomError, ConfigError, MismatchError, RefusedError, UnavailableError, WrongTypeError
from scrapy_bloom.filter import stored_filter
from scrapy_bloom.filter.layer import NO_IDENTITY
from scrapy_bloom.filter.opening import foreign_string
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.inspection import QueueState, first_request
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.start_urls import leases
from scrapy_bloom.storage import shards
from scrapy_bloom.storage.shards import InspectShard
from scrapy_bloom.transport.failures import FAULTS, describe
from scrapy_bloom.transport.retry import retry_until
from scrapy_bloom.transport.server_info import is_cluster

# At the level of the commands, which import nothing from there.
_BLOOM_SCHEDULER: Any = load_object("scrapy_bloom.BloomScheduler")
_LEASED_START_URLS: type = load_object("scrapy_bloom.spiders.LeasedStartUrls")


class Case:
    """A crawl as the checks look at it: each thing is read once, and is None where the settings do not tell it."""

    def __init__(self, target: CrawlTarget, idle: float) -> None:
        self.target = target
        self.idle = idle
        self.settings = target.settings

    @cached_property
    def dupefilter(self) -> type | None:
        """The DUPEFILTER_CLASS."""
        return _loaded(self.settings["DUPEFILTER_CLASS"])

    @cached_property
    def scheduler(self) -> type | None:
        """The SCHEDULER."""
        return _loaded(self.settings["SCHEDULER"])

    @property
    def has_our_scheduler(self) -> bool:
        """True if requests are leased."""
        return _is_a(self.scheduler, _BLOOM_SCHEDULER)

    @property
    def is_shared(self) -> bool:
        """True if workers share a queue."""
        return _is_a(self.scheduler, Scheduler)

    @property
    def is_filtered(self) -> bool:
        """True if the filter is used, as far as the settings tell."""
        return not self.target.has_spider or _is_a(self.dupefilter, BloomRFPDupeFilter)

    @cached_property
    def config(self) -> BloomSettings | None:
        """The BLOOMFILTER_* settings."""
        with suppress(BloomError):
            return BloomSettings.from_settings(self.settings)
        return None

    @cached_property
    def key(self) -> str | None:
        """The key of the filter; under Scrapy's scheduler each crawl may have one of its own."""
        try:
            if self.is_shared and self.config is None and self.target.named_key is None:
                return FilterKey.for_workers(self.settings, self.target.spider).name
            return self.target.key
        except UnavailableError:
            raise
        except (BloomError, *UNREADABLE):
            return None

    @property
    def has_set_key(self) -> bool:
        """True if the settings name a key, and no crawl makes one up."""
        return self.is_shared or bool(self.settings.get("SCHEDULER_DUPEFILTER_KEY"))

    @cached_property
    def wanted(self) -> FilterParameters | None:
        """The parameters that the settings want the filter to have."""
        with suppress(BloomError, *UNREADABLE):
            return self.target.parameters
        return None

    @cached_property
    def look(self) -> FilterReport | BloomError | None:
        """The filter that is stored, or the error by which it cannot be used."""
        try:
            return None if self.key is None else self.target.run_steps(build_report(self.key))
        except (MismatchError, RefusedError, WrongTypeError) as error:
            return error

    @property
    def found(self) -> FilterReport | None:
        """The filter that is stored, or None: there is none, or it cannot be used."""
        return self.look if isinstance(self.look, FilterReport) else None

    @property
    def parameters(self) -> FilterParameters | None:
        """The parameters of the filter: those that are stored, or else those of the settings."""
        return self.wanted if self.found is None else self.found.stored.parameters

    @property
    def queues(self) -> list[str]:
        """The keys of the queues: the one that is named, or the spider's; and those that the filter is kept for."""
        known: list[str] = []
        if self.is_shared or self.target.named_queue is not None:
            with suppress(BloomError):
                known = self.target.queues
        return list(dict.fromkeys([*known, *(self.found.stored.users if self.found else [])]))

    @cached_property
    def looks(self) -> list[QueueState | BloomError]:
        """The queues as they are, or for each the error by which it cannot be read."""
        found: list[QueueState | BloomError] = []
        for name in self.queues:
            try:
                found.append(self.target.inspect_queue(name))
            except (RefusedError, WrongTypeError) as error:
                found.append(error)
        return found

    @property
    def states(self) -> list[QueueState]:
        """The queues that can be read."""
        return [look for look in self.looks if isinstance(look, QueueState)]

    @property
    def waiting(self) -> int:
        """Requests that wait in the queues."""
        return sum(state.waiting for state in self.states)

    @cached_property
    def serializer(self) -> str | None:
        """The name of the SCHEDULER_SERIALIZER, or None: pickle."""
        serializer = self.settings["SCHEDULER_SERIALIZER"]
        return _name(serializer) if serializer else None

    @property
    def start_key(self) -> str | None:
        """The key of the start URLs, where the spider leases them.

        Raises:
            ConfigError: it has a percent sign that is not that of `%(name)s`.
        """
        kind: Any = self.target.crawler.spidercls
        if not issubclass(kind, _LEASED_START_URLS):
            return None
        setting, template = "redis_key", kind.redis_key
        if template is None:
            setting = "REDIS_START_URLS_KEY"
            template = self.settings.get(setting, defaults.START_URLS_KEY)
        try:
            return str(template % {"name": self.target.spider})
        except (KeyError, TypeError, ValueError):
            raise ConfigError(
                f"{setting} = {template!r}: may have %(name)s in it for the spider's name, and no other percent sign; "
                f"set a name like {defaults.START_URLS_KEY!r}"
            ) from None

    @cached_property
    def address(self) -> str | None:
        """The server's address and database, without any password."""
        with suppress(BloomError, *UNREADABLE):
            return self.target.server
        return None

    @cached_property
    def refusal(self) -> Finding | None:
        """The finding of a server that refuses every command, and of an address that cannot be used; or None.

        Raises:
            UnavailableError: Redis is away.
        """
        try:
            retry_until(lambda: _ping(self.target.client), self.target.wait)
        except UnavailableError:
            raise
        except (BloomError, *UNREADABLE) as error:
            return refused("server", describe(error))
        return None


def examine(case: Case) -> Iterator[Finding]:
    """Yield the findings of all checks."""
    for check in OF_SETTINGS:
        yield from check(case)
    if case.refusal is not None:
        yield case.refusal
    else:
        for name, check in OF_SERVER.items():
            yield from _allowed(name, check, case)
    yield leftovers.files(["", job_dir(case.settings) or ""])


def _versions(case: Case) -> Iterator[Finding]:  # noqa: ARG001  # of every crawl the same
    yield configuration.versions()


def _settings(case: Case) -> Iterator[Finding]:
    """Find all settings that are refused, and not only the first, as a crawl would."""
    texts = dict.fromkeys(_refusals(case))
    yield from [refused("settings", text) for text in texts] or [ok("settings", "none is refused")]


def _refusals(case: Case) -> Iterator[str]:
    if case.target.refusal is not None:
        yield str(case.target.refusal)
    for attempt in _attempts(case):
        try:
            attempt()
        except (BloomError, *UNREADABLE) as error:
            yield describe(error)


def _attempts(case: Case) -> Iterator[Callable[[], object]]:
    """Yield the ways in which a crawl reads its settings; without a spider a key is to be named, and that is all."""
    if case.is_filtered:
        yield lambda: BloomSettings.from_settings(case.settings)
    if case.target.has_spider and case.has_our_scheduler and case.dupefilter is not None:
        yield lambda: _BLOOM_SCHEDULER.check_settings(case.settings)
    if case.target.has_spider and case.is_shared:
        yield lambda: FilterKey.for_workers(case.settings, case.target.spider)
    elif case.has_set_key or not case.target.has_spider:
        yield lambda: case.target.key
    yield lambda: case.start_key


def _classes(case: Case) -> Iterator[Finding]:
    if not case.target.has_spider:
        return
    is_ours = None if case.dupefilter is None else case.is_filtered
    yield configuration.dupefilter(_name(case.settings["DUPEFILTER_CLASS"]), is_ours=is_ours)
    is_ours = None if case.scheduler is None else case.has_our_scheduler
    yield configuration.scheduler(_name(case.settings["SCHEDULER"]), is_ours=is_ours, is_shared=case.is_shared)
    spider = case.target.crawler.spidercls
    pops = issubclass(spider, RedisMixin) and not issubclass(spider, _LEASED_START_URLS)
    yield configuration.spider(f"{spider.__module__}.{spider.__qualname__}", pops=pops and case.has_our_scheduler)
    if case.is_shared:
        is_there = _is_there(case.settings["SCHEDULER_SERIALIZER"])
        yield configuration.serializer(case.serializer, case.address, is_there=is_there)
        with suppress(ConfigError):
            yield from configuration.shared_queue(case.settings["SCHEDULER_QUEUE_KEY"], case.target.sharers)


def _chosen(case: Case) -> Iterator[Finding]:
    """Find values that are allowed, and that hurt."""
    if not case.target.has_spider:
        return
    flushes, persists = (_flag(case, f"SCHEDULER_{name}") for name in ("FLUSH_ON_START", "PERSIST"))
    yield from configuration.flush(flushes=flushes, persists=persists, is_shared=case.is_shared)
    if case.config is not None and case.is_filtered:
        if case.has_our_scheduler:
            yield configuration.lease(case.config.lease)
        yield from configuration.timeouts(case.config.retry_timeout, _connection(case), case.config.lease)


def _server(case: Case) -> Iterator[Finding]:
    is_new = case.found is None or not case.found.has_layers
    new_bytes = case.parameters.memory_bytes if case.parameters is not None and is_new else 0
    expires = case.parameters is not None and bool(case.parameters.ttl)
    for node in retry_until(lambda: server.nodes_of(case.target.client), case.target.wait):
        yield from server.examine(node, new_bytes, expires=expires)


def _slots(case: Case) -> Iterator[Finding]:
    if case.key is not None and is_cluster(case.target.client):
        yield from (contents.slots(case.key, queue) for queue in case.queues)


def _filter(case: Case) -> Iterator[Finding]:
    if case.key is None:
        whose = "see settings" if case.has_set_key else "each crawl makes one up, which its log names; give it by --key"
        yield ok("filter", f"no key is known: {whose}")
        return
    try:
        yield from _stored_filter(case, case.key)
    except (MismatchError, RefusedError, WrongTypeError) as error:
        yield loss("filter", f"no worker would start: {error}", "")


def _stored_filter(case: Case, key: str) -> Iterator[Finding]:
    if isinstance(case.look, BloomError):
        raise case.look
    if case.found is None or not case.found.has_layers:
        _refuse_strangers(case, key)
    if case.found is None:
        yield contents.no_filter(key_contents.inspect_key(case.target.store, key))
    else:
        yield from contents.stored_filter(case.found, case.wanted if case.target.has_spider else None)
    half = case.target.run_steps(stored_filter.read(ImportKeys.of(key).filling))
    if half is not None:
        yield contents.half_import(half.key)


def _refuse_strangers(case: Case, key: str) -> None:
    """Raise a WrongTypeError where something foreign is where a new filter would have its bits."""
    if case.parameters is None:
        return
    keys = case.parameters.first_layer(key, NO_IDENTITY, 0, 0.0).shard_keys
    inspections = case.target.store.execute([InspectShard(key) for key in keys])
    for name, inspection in zip(keys, inspections, strict=True):
        if inspection.kind == shards.FOREIGN:
            raise foreign_string(name)


def _measures(case: Case) -> Iterator[Finding]:
    if case.parameters is None:
        return
    yield configuration.error_rate(case.parameters)
    yield configuration.capacity(case.waiting, case.parameters)
    workers = sum(not worker.is_silent for state in case.states for worker in state.workers)
    yield from configuration.ttl(case.waiting, workers, case.parameters)


def _queues(case: Case) -> Iterator[Finding]:
    kind = _loaded(case.settings.get("SCHEDULER_QUEUE_CLASS") or defaults.SCHEDULER_QUEUE_CLASS)
    may_be_list = case.is_shared and not case.has_our_scheduler and not _is_a(kind, PriorityQueue)
    for look in case.looks:
        if isinstance(look, QueueState):
            yield from contents.queue(look, may_be_list=may_be_list)
            if case.target.has_spider:
                yield from configuration.first_request(first_request(case.target.client, look.key), case.serializer)
        elif isinstance(look, WrongTypeError):
            yield refused("queue", str(look))
        else:
            yield _not_looked("queue", look)


def _leases(case: Case) -> Iterator[Finding]:
    for state in case.states:
        yield leftovers.leases(case.target.client, state.key, partial(_workers, case, state.key))


def _workers(case: Case, queue: str) -> list[str]:
    return [worker.name for worker in case.target.inspect_queue(queue).workers]


def _start_urls(case: Case) -> Iterator[Finding]:
    key = None
    with suppress(ConfigError):
        key = case.start_key
    if key is not None and case.has_our_scheduler:
        yield from contents.start_urls(leases.inspect(case.target.client, key))


def _permissions(case: Case) -> Iterator[Finding]:
    pool = getattr(case.target.client, "connection_pool", None)
    user = str(getattr(pool, "connection_kwargs", {}).get("username") or "default")
    # The keys that crawls make up begin so.
    key = case.key or defaults.DUPEFILTER_KEY.partition(":")[0]
    yield server.permissions(case.target.client, user, key, next(iter(case.queues), None))


def _leftover_filters(case: Case) -> Iterator[Finding]:
    yield leftovers.filters(case.target.client, case.idle)


def _allowed(name: str, check: Callable[[Case], Iterable[Finding]], case: Case) -> Iterator[Finding]:
    """Yield the findings of a check, or that this user may not look."""
    try:
        yield from check(case)
    except (exceptions.ResponseError, RefusedError) as error:
        yield _not_looked(name, error)


def _not_looked(name: str, error: Exception) -> Finding:
    return advice(name, f"not looked for: {describe(error)}", "ask with a user who may")


def _ping(client: Any) -> None:
    """Try a command; whether the user may use it is another check."""
    with suppress(exceptions.NoPermissionError):
        client.ping()


def _connection(case: Case) -> dict[str, object]:
    """Return the options of the client's connections, as far as it tells them."""
    with suppress(BloomError, *FAULTS, *UNREADABLE):
        return dict(case.target.client.get_connection_kwargs())
    return {}


def _flag(case: Case, name: str) -> bool:
    """Return a setting that is on or off; one that cannot be read is refused elsewhere."""
    with suppress(ValueError):
        return case.settings.getbool(name)
    return False


def _loaded(setting: Any) -> type | None:
    """Return the class that a setting names, or None: it cannot be imported."""
    with suppress(*UNREADABLE):
        kind: type = load_object(setting)
        return kind
    return None


def _is_a(kind: type | None, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def _is_there(serializer: Any) -> bool:
    if serializer and isinstance(serializer, str):
        try:
            import_module(serializer)
        except ImportError:
            return False
    return True


def _name(setting: Any) -> str:
    return setting if isinstance(setting, str) else getattr(setting, "__qualname__", str(setting))


OF_SETTINGS: tuple[Callable[[Case], Iterable[Finding]], ...] = (_versions, _settings, _classes, _chosen)
# By the name that a check has which may not look.
OF_SERVER: dict[str, Callable[[Case], Iterable[Finding]]] = {
    "server": _server,
    "slots": _slots,
    "filter": _filter,
    "capacity": _measures,
    "queue": _queues,
    "leases": _leases,
    "start URLs": _start_urls,
    "permissions": _permissions,
    "leftover filters": _leftover_filters,
}
