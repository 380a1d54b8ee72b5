"""The checks of `scrapy bloom doctor`, each with its finding and the remedy.

A check yields its findings; the text that it returns is for a crawl without any. It changes nothing. A server that
refuses a check is a finding of the caller's, so checks care only for errors that mean something else.
"""

import re
import secrets
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from enum import StrEnum
from functools import cached_property, partial, wraps
from importlib import import_module
from importlib.metadata import version
from typing import Any, NamedTuple, TypeVar

from redis import exceptions
from scrapy.utils.misc import load_object
from scrapy_redis.queue import PriorityQueue
from scrapy_redis.scheduler import Scheduler
from scrapy_redis.spiders import RedisMixin

from scrapy_bloom._filter_key import FilterKey, start_key_of
from scrapy_bloom._format import as_error_rate, as_expected_pages, as_number, as_size, as_text, plural
from scrapy_bloom.cli._target import UNREADABLE, CrawlTarget
from scrapy_bloom.cli.planning import make_plan
from scrapy_bloom.dupefilter import BloomRFPDupeFilter
from scrapy_bloom.errors import BloomError, ConfigError, MismatchError, UnavailableError, WrongTypeError
from scrapy_bloom.filter import stored
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.stored import StoredFilter
from scrapy_bloom.queue.inspection import QueueState, first_request
from scrapy_bloom.queue.keys import QueueKeys, tagged
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.scripts import Script
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.start_urls import leases as start_leases
from scrapy_bloom.transport.failures import FAULTS, describe
from scrapy_bloom.transport.server_info import FILTER_COMMANDS, QUEUE_COMMANDS, evicts, is_cluster, policy

T = TypeVar("T")

# Loaded by name: modules on this level do not import each other.
_BLOOM_SCHEDULER: Any = load_object("scrapy_bloom.BloomScheduler")
_LEASED_START_URLS: type = load_object("scrapy_bloom.spiders.LeasedStartUrls")
_MISSING, _LEASES = Script("missing", "filter"), Script("leases")
_PACKAGES = ("scrapy-bloom", "Scrapy", "scrapy-redis", "redis")
_JSON = "scrapy_bloom.serializers.json"
_LOCAL = ("localhost", "127.", "::1", "unix:")
_SET_FILTER = "set ADDONS = {'scrapy_bloom.Addon': 500}, or DUPEFILTER_CLASS = 'scrapy_bloom.BloomRFPDupeFilter'"
_SET_SCHEDULER = "set SCHEDULER = 'scrapy_bloom.BloomScheduler'"
_FLAGS = ("FLUSH_ON_START", "PERSIST")
_FLUSH = "SCHEDULER_FLUSH_ON_START = True"
_START_OVER = f"start over, with {_FLUSH} for the first worker"
# Limits in seconds. A callback may block a worker for some, and a dead worker's requests wait for the whole lease.
_LEASE, _RETRY = (10.0, 3600.0), (1e-9, 600.0)
# A busy server may need the minimum for a reply; scrapy-redis's default is the maximum.
_SOCKET = 0.5, 30.0
# Pages per second that a worker is expected to fetch; layers that a check may read; names that a finding lists.
_PACE, _LAYERS, _EXAMPLES = 50, 5, 3
# The lag of a replica that is not worth a finding: seconds, bytes.
_LAG = 10, 10_000_000
# A server may have more keys than can be scanned in so many seconds.
_SCAN = 10.0


class Level(StrEnum):
    """The weight of a finding: nothing to do, advice, or a loss of pages."""

    OK = "ok"
    ADVICE = "advice"
    LOSS = "loss"


class Finding(NamedTuple):
    """A finding: its level, the fact, and the advice, which the text of an error has in itself."""

    level: Level
    text: str
    advice: str = ""


advice, loss = partial(Finding, Level.ADVICE), partial(Finding, Level.LOSS)


def refused(text: object, action: str = "") -> Finding:
    """Return a finding by which no crawl would start."""
    return loss(f"no crawl would start: {text}", action)


Findings = Generator[Finding, None, str | None]
# The address of a cluster's node with a colon, or ""; whether it has slots; its INFO with `save` and `appendfsync`, or
# the error in its place.
Node = tuple[str, bool, Any]


def findings_of(check: Findings, where: str = "") -> list[Finding]:
    """Return the findings of a check, or its result without any; the texts begin with `where`."""
    *found, healthy = _told(check)
    return [each._replace(text=where + each.text) for each in found or [healthy] if each]


def _told(check: Findings) -> Iterator[Any]:
    text = yield from check
    yield text and Finding(Level.OK, text)


def known(read: Callable[[], T]) -> T | None:
    """Return the result, or None if a setting or stored data is invalid, which one of the checks reports."""
    try:
        return read()
    except UnavailableError:
        raise
    except (BloomError, *UNREADABLE):
        return None


def skipped(error: Exception, where: str = "") -> Finding:
    """Return the finding of a check that the server denied."""
    cause = error.__context__ if isinstance(error.__context__, FAULTS) else error
    return advice(f"{where}not checked: {describe(cause)}", "run it as a user with the permission")


class Crawl(CrawlTarget):
    """The examined crawl. A property is None if settings or data do not determine it; `idle` is that of the options."""

    idle: float

    def kind(self, setting: str, base: type = object, default: Any = None) -> bool | None:
        """Return whether a setting names a subclass, or None if it cannot be imported."""
        kind = known(lambda: load_object(self.settings.get(setting) or default))
        return kind and isinstance(kind, type) and issubclass(kind, base)

    @property
    def uses_filter(self) -> bool:
        """True if the crawl uses the filter, according to its settings."""
        return not self.has_spider or bool(self.kind("DUPEFILTER_CLASS", BloomRFPDupeFilter))

    @property
    def leases(self) -> bool:
        """True if workers lease requests."""
        return bool(self.kind("SCHEDULER", _BLOOM_SCHEDULER))

    @property
    def shares(self) -> bool:
        """True if workers share a queue."""
        return bool(self.kind("SCHEDULER", Scheduler))

    @cached_property
    def config(self) -> BloomSettings | None:
        """The BLOOMFILTER_* settings, if the crawl uses the filter."""
        return known(lambda: BloomSettings.from_settings(self.settings)) if self.uses_filter else None

    @cached_property
    def filter_key(self) -> str | None:
        """The key of the filter; under Scrapy's scheduler each crawl may have its own."""
        return known(lambda: self.key)

    @cached_property
    def found(self) -> StoredFilter | None:
        """The stored filter, or None: there is none, or it cannot be used."""
        return known(self.read_filter) if self.filter_key else None

    @cached_property
    def sized(self) -> FilterParameters | None:
        """The parameters of the stored filter, or else those of the settings."""
        return self.found.parameters if self.found else known(self.parameters)

    @cached_property
    def queues(self) -> list[str]:
        """The keys of the queue and of the queues that use the filter."""
        return known(lambda: self.queues_of(self.found)) or []

    @cached_property
    def states(self) -> list[QueueState]:
        """The states of the readable queues."""
        return [state for name in self.queues if (state := known(partial(self.inspect_queue, name)))]

    @property
    def waiting(self) -> int:
        """The number of pending requests."""
        return sum(state.waiting for state in self.states)

    @cached_property
    def nodes(self) -> list[Node]:
        """The server, or all nodes that the cluster knows."""
        if not is_cluster(self.client):
            return [("", True, _info(self.client, exceptions.ResponseError))]
        manager, options, nodes = self.client.nodes_manager, self.client.get_connection_kwargs(), []
        for name, told in _nodes_of(self.client).items():
            host, _, port = name.rpartition(":")
            if not {"noaddr", "handshake"} & set(told["flags"].split(",")):
                client = manager.create_redis_node(*manager.remap_host_port(host, int(port)), **options)
                nodes.append((f"{name}: ", bool(told["slots"]), _info(client, FAULTS)))
                client.connection_pool.disconnect()
        return nodes

    @property
    def start_key(self) -> str | None:
        """The key of the start URLs if the spider leases them, or None."""
        if not issubclass(self.crawler.spidercls, _LEASED_START_URLS):
            return None
        return start_key_of(self.settings, self.crawler.spidercls)

    def scan(self, pattern: str) -> tuple[list[str], str]:
        """Return the matching keys, and a note if not all keys were scanned."""
        end, found = time.monotonic() + _SCAN, []
        for key in self.client.scan_iter(match=pattern, count=1000):
            found.append(as_text(key))
            if time.monotonic() > end:
                return found, f" (among the keys scanned in {_SCAN:g} s)"
        return found, ""


Check = Callable[[Crawl], Findings]


def _nodes_of(cluster: Any) -> dict[str, Any]:
    """Return CLUSTER NODES of the first master that answers."""
    for node in cluster.get_primaries():
        with suppress(exceptions.ConnectionError, exceptions.TimeoutError):
            return cluster.get_redis_connection(node).cluster("NODES")  # type: ignore[no-any-return]  # redis-py: Any
    raise exceptions.ConnectionError("no master of the cluster answers")


def _info(client: Any, faults: Any) -> Any:
    try:
        info = client.info()
        # A managed server denies CONFIG. One at a time: CONFIG GET takes several names since Redis 7.
        with suppress(exceptions.ResponseError):
            info |= client.config_get("save") | client.config_get("appendfsync")
    except faults as error:
        return error
    return info


def versions(_: Crawl) -> Findings:
    """Report the versions of the packages."""
    yield from ()
    return ", ".join(f"{package} {version(package)}" for package in _PACKAGES)


def settings(crawl: Crawl) -> Findings:
    """Report all refused settings, where a crawl would report the first one only."""
    given, texts = crawl.settings, [str(crawl.refusal)] if crawl.refusal else []
    reads: list[Callable[[], object]] = [lambda: crawl.start_key]
    if crawl.uses_filter:
        reads.append(lambda: BloomSettings.from_settings(given))
    if crawl.has_spider and crawl.leases and crawl.kind("DUPEFILTER_CLASS") is not None:
        reads.append(lambda: load_object(given["SCHEDULER"]).check_settings(given))
    if crawl.has_spider and crawl.shares:
        reads.append(lambda: FilterKey.of_workers(given, crawl.crawler.spidercls, is_clustered=False))
    elif crawl.has_spider:
        reads.append(lambda: FilterKey.of_process(given, crawl.crawler.spidercls))
    for read in reads:
        try:
            read()
        except (BloomError, *UNREADABLE) as error:
            texts.append(describe(error))
    yield from map(refused, dict.fromkeys(texts))
    return "no setting is refused"


def dupefilter(crawl: Crawl) -> Findings:
    """Check the DUPEFILTER_CLASS."""
    text = f"DUPEFILTER_CLASS = {_name_of(crawl, 'DUPEFILTER_CLASS')}"
    if crawl.kind("DUPEFILTER_CLASS") is None:
        yield refused(f"{text} cannot be imported", _SET_FILTER)
    elif not crawl.uses_filter:
        yield loss(f"{text}: another package's class, which does not use the filter", _SET_FILTER)
    return text


def scheduler(crawl: Crawl) -> Findings:
    """Check the SCHEDULER."""
    text = f"SCHEDULER = {_name_of(crawl, 'SCHEDULER')}"
    if crawl.kind("SCHEDULER") is None:
        yield refused(f"{text} cannot be imported", _SET_SCHEDULER)
    elif not crawl.shares:
        yield advice(f"{text}: workers share nothing, each process crawls by itself", _SET_SCHEDULER)
    elif not crawl.leases:
        harm = "loses requests at Ctrl-C, with a lost reply, and when Redis is unreachable or a worker dies"
        yield loss(f"{text}: {harm}", _SET_SCHEDULER)
    return text


def spider(crawl: Crawl) -> Findings:
    """Check that no start URL is popped."""
    kind = crawl.crawler.spidercls
    if crawl.leases and issubclass(kind, RedisMixin) and not issubclass(kind, _LEASED_START_URLS):
        text = "pops its start URLs, like scrapy-redis's RedisSpider: a dead worker loses those it has popped"
        yield loss(f"{_path(kind)} {text}", "import RedisSpider or RedisCrawlSpider from scrapy_bloom")
    return _path(kind)


def flush(crawl: Crawl) -> Findings:
    """Check that no starting worker deletes the data of others."""
    flushes, persists = (known(partial(crawl.settings.getbool, f"SCHEDULER_{name}")) for name in _FLAGS)
    kept = ", though SCHEDULER_PERSIST = True keeps it for the next crawl" if persists else ""
    if flushes and crawl.shares:
        text = f"{_FLUSH}: each starting worker deletes queue and filter, with the requests of other workers{kept}"
        yield loss(text, "remove it; to start over, run `scrapy bloom clear` before the first worker starts")
    elif flushes:
        yield advice(f"{_FLUSH}: the crawl deletes the filter at its start{kept}", "remove it after one crawl")
    return None


def lease(crawl: Crawl) -> Findings:
    """Check BLOOMFILTER_LEASE."""
    if crawl.config is None or not crawl.leases:
        return None
    text, (least, most) = f"BLOOMFILTER_LEASE = {crawl.config.lease:g}", _LEASE
    if crawl.config.lease < least:
        harm = "a blocking callback or a busy machine makes a live worker look dead, and its pages are fetched twice"
        yield advice(f"{text}: {harm}", f"set {least:g} or more")
    elif crawl.config.lease > most:
        yield advice(f"{text}: a dead worker's requests wait for so long", f"set {most:g} or less")
    return text


def timeouts(crawl: Crawl) -> Findings:
    """Check BLOOMFILTER_RETRY_TIMEOUT and the client's socket_timeout."""
    if crawl.config is None:
        return None
    retry, lease = crawl.config.retry_timeout, crawl.config.lease
    text = f"BLOOMFILTER_RETRY_TIMEOUT = {retry:g}"
    if not _RETRY[0] <= retry <= _RETRY[1]:
        harm = "fails at once" if retry == 0 else "waits in silence for so long"
        text = f"{text}: a worker that starts while Redis is unreachable"
        yield advice(f"{text} {harm}", f"set up to {_RETRY[1]:g} seconds")
    connection = known(lambda: crawl.client.get_connection_kwargs()) or {}  # noqa: PLW0108  # a client may be unusable
    seconds, harm = connection.get("socket_timeout", _SOCKET[0]), ""
    if seconds is None or seconds > _SOCKET[1]:
        harm = f"a hanging server blocks the worker {'for ever' if seconds is None else 'for so long'}"
    elif seconds < _SOCKET[0]:
        harm = "a busy server counts as unreachable, and commands are sent again"
    elif seconds >= lease >= _LEASE[0]:
        harm = f"a worker that waits so long for a reply counts as dead (BLOOMFILTER_LEASE = {lease:g})"
    if harm:
        yield advice(
            f"socket_timeout = {seconds}: {harm}", "remove it from REDIS_PARAMS and REDIS_URL: its default is 5"
        )
    return text


def server(crawl: Crawl) -> Findings:
    """Report the version of each node, or why it cannot be asked."""
    for where, has_slots, info in crawl.nodes:
        if isinstance(info, exceptions.ResponseError):
            yield skipped(info, where)
        elif isinstance(info, Exception) and has_slots:
            remedy = "start it, or let a replica take over: a crawl waits"
            yield loss(f"{where}the master cannot be asked ({describe(info)})", remedy)
        elif isinstance(info, Exception):
            text = f"{where}the replica cannot be asked ({describe(info)})"
            yield advice(text, "start it: a failover to it is impossible")
        else:
            name = "Valkey" if "valkey_version" in info else "Redis"
            yield Finding(Level.OK, f"{where}{name} {info.get(f'{name.lower()}_version', 'of an unknown version')}")
    return None


def on_nodes(examine: Callable[[Crawl, str, bool, Any], Findings]) -> Check:
    """Return a check of each node that tells its INFO."""

    @wraps(examine)
    def check(crawl: Crawl) -> Findings:
        for node in (node for node in crawl.nodes if isinstance(node[-1], dict)):
            yield from findings_of(examine(crawl, *node), node[0])
        return None

    return check


@on_nodes
def eviction(crawl: Crawl, _where: str, _has_slots: bool, info: Any) -> Findings:
    """Check that a full server evicts neither the filter nor the queue."""
    text, harm = f"maxmemory-policy is {policy(info)}", ""
    if evicts(info, expires=False):
        harm = "any key: with the queue its pending requests are lost, and with the filter pages are fetched again"
    elif evicts(info, expires=True) and crawl.sized and crawl.sized.ttl:
        harm = "keys with a TTL, as BLOOMFILTER_TTL sets one, and pages are fetched again"
    if harm:
        yield loss(f"{text}: a full server evicts {harm}", "set maxmemory-policy noeviction")
    return text if info.get("maxmemory") else f"none: maxmemory is not set (policy {policy(info)})"


@on_nodes
def memory(crawl: Crawl, where: str, _has_slots: bool, info: Any) -> Findings:
    """Check that a new filter has room on the node of its key."""
    limit, used, needed = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0)), 0
    is_new = crawl.found is None or crawl.found.is_empty
    if crawl.sized and is_new and (not where or f"{crawl.client.get_node_from_key(crawl.key).name}: " == where):
        needed = crawl.sized.sizes()[0].memory_bytes
    more = f"; the filter needs {as_size(needed)} more" if needed else ""
    if limit and used + needed > limit:
        remedy = "raise maxmemory, or set a smaller BLOOMFILTER_CAPACITY: without room a crawl waits"
        yield advice(f"maxmemory is {as_size(limit)}, {as_size(used)} are used{more}", remedy)
    return (f"{as_size(used)} of {as_size(limit)} used" if limit else f"{as_size(used)} used, without a limit") + more


_SECOND = "at most one second"
_LOSSES = {"always": "nothing", "everysec": _SECOND, None: f"{_SECOND}, unless it is no; the server hides it"}


@on_nodes
def persistence(_crawl: Crawl, _where: str, _has_slots: bool, info: Any) -> Findings:
    """Check how much a restart of the server loses."""
    file, status = ("AOF", "aof_last_write") if info.get("aof_enabled") else ("snapshots", "rdb_last_bgsave")
    text = f"AOF with appendfsync {info.get('appendfsync')}"
    if info.get(f"{status}_status", "ok") != "ok":
        yield loss(f"the server cannot write its {file}", "read the server's log: the disk may be full")
    elif file == "AOF" and info.get("appendfsync") == "no":
        harm = "a crash of the machine loses the writes that the kernel still buffers, half a minute or more"
        yield advice(f"{text}: {harm}", "set appendfsync everysec")
    elif file == "AOF":
        return f"{text}: a restart loses {_LOSSES.get(info.get('appendfsync'), _LOSSES[None])}"
    elif "rdb_last_save_time" in info and info.get("save", True):  # if a server hides it, it is assumed to save
        yield advice("RDB: a restart after a crash loses all writes since the last snapshot", "set appendonly yes")
    else:
        yield loss("none: a restart of the server loses the queue and the filter", "set appendonly yes")
    return None


@on_nodes
def replication(_crawl: Crawl, _where: str, has_slots: bool, info: Any) -> Findings:
    """Check that the server is a master, and its replicas are in step."""
    text, master = "", f"{info.get('master_host')}:{info.get('master_port')}"
    if info.get("role") == "slave" and has_slots:
        yield loss("the server is a replica and takes no writes", "set REDIS_URL to the master")
    elif info.get("role") == "slave" and info.get("master_link_status") != "up":
        yield advice(f"a replica without a link to its master {master}", "check the master and the network")
    elif info.get("role") == "slave":
        text = f"a replica of {master}"
    for replica in (value for name, value in info.items() if re.fullmatch(r"slave\d+", name)):
        behind, lag = max(0, int(info["master_repl_offset"]) - int(replica["offset"])), int(replica["lag"])
        text = f"the replica {replica['ip']}:{replica['port']} is "
        if replica["state"] != "online":
            yield advice(text + replica["state"], "wait until it is online, or read its log")
        elif lag > _LAG[0] or behind > _LAG[1]:
            harm = f"{as_size(behind)} and {lag} s behind: a failover would lose these writes"
            yield advice(text + harm, "check its network and its load")
        text += f"{as_size(behind)} behind"
    return text


def slots(crawl: Crawl) -> Findings:
    """Check that a cluster has the filter in the slot of its queues."""
    if not (crawl.filter_key and crawl.queues and is_cluster(crawl.client)):
        return None
    for name in crawl.queues:
        try:
            RequestQueue(crawl.client, name, crawl.filter_key)
        except ConfigError as error:
            yield refused(error)
    return "the filter and the queue are in one slot, and so on one node"


def filter_(crawl: Crawl) -> Findings:
    """Check the stored filter, or the place of a new one."""
    if (key := crawl.filter_key) is None:
        return "unknown key: see settings, or give the one in the crawl's log by --key"
    try:
        found = crawl.read_filter()
        if found and crawl.has_spider and (wanted := known(crawl.parameters)):
            wanted.verify(key, found.parameters.to_json())
    except (MismatchError, WrongTypeError) as error:
        yield refused(error)
        return None
    if found:
        return (yield from _stored(crawl, found))
    shard = re.compile(re.escape(tagged(key)) + r":[0-9a-f]{16}:\d+:\d+")
    if shards := [*filter(shard.fullmatch, crawl.scan(_escape(tagged(key)) + ":*")[0])]:
        text = f"its hash was evicted or deleted, and {plural(len(shards), 'shard')} of it are useless without it: all"
        remedy = "see the server's checks. A running worker makes a new filter, and deletes these"
        yield loss(f"{text} pages are fetched again", remedy)
    return "none yet: the first worker creates it"


def _stored(crawl: Crawl, found: StoredFilter) -> Findings:
    info, parameters = found.info, found.parameters
    if action := found.unfinished:
        yield refused(f"incomplete: `scrapy bloom {action}` is filling it, or was stopped", "run that again")
    if lost := info.lost_shards + int(_MISSING.call(crawl.client, [found.key], [found.id])):
        text = f"{lost:,} of {plural(info.shards, 'shard')} evicted or deleted: their pages are fetched again"
        yield loss(text, "see the server's checks; workers go on with empty ones")
    if found.ttl is not None and not parameters.ttl and not found.is_empty:
        text = f"it expires in {found.ttl:,.0f} s, by somebody's EXPIRE: then all pages are fetched again"
        yield loss(text, f"run PERSIST {found.key}, and set BLOOMFILTER_TTL in place of that EXPIRE")
    text = f"{info.count:,} of {info.capacity:,} requests, error rate {as_error_rate(info.current_error_rate)}"
    text += f"; {info.forgotten:,} forgotten" if info.forgotten else ""
    if info.current_error_rate > info.error_rate:
        remedy = "start over with a larger BLOOMFILTER_CAPACITY, or with a BLOOMFILTER_EXPANSION that lets it grow"
        yield loss(f"too full: {text}, allowed {as_number(info.error_rate)}; new pages are missed", remedy)
    elif info.layers > _LAYERS and not parameters.ttl:
        yield advice(f"{text}, {info.layers} layers", "set a larger BLOOMFILTER_CAPACITY for the next crawl")
    return text


def error_rate(crawl: Crawl) -> Findings:
    """Check the expected number of missed pages."""
    if (sized := crawl.sized) is None:
        return None
    missed, bound = make_plan(sized).expected_false_positives, "at most" if sized.ttl else "expected"
    text = f"{as_number(sized.error_rate)}: {as_expected_pages(missed)} of {sized.capacity:,} are missed, {bound}"
    if missed > 1:
        remedy = "set a smaller BLOOMFILTER_ERROR_RATE for the next crawl; `scrapy bloom plan --compare` lists them"
        yield advice(text, remedy)
    return text


def capacity(crawl: Crawl) -> Findings:
    """Check the capacity for the pending requests."""
    if (sized := crawl.sized) is None:
        return None
    text = f"{plural(crawl.waiting, 'pending request')}, capacity {sized.capacity:,}"
    if crawl.waiting > sized.capacity:
        harm = "it grows, and each check takes longer" if sized.expansion else "it cannot grow, and misses pages"
        yield advice(f"{text}: {harm}", "set a larger BLOOMFILTER_CAPACITY for the next crawl")
    return text


def ttl(crawl: Crawl) -> Findings:
    """Check the TTL for the pending requests."""
    if not (crawl.sized and crawl.sized.ttl):
        return None
    alive = sum(not worker.is_silent for state in crawl.states for worker in state.workers)
    pace = crawl.waiting / crawl.sized.ttl
    text = f"{plural(crawl.waiting, 'pending request')}, forgotten by the filter after {crawl.sized.ttl:g} s"
    if pace > _PACE * max(1, alive):
        harm = f"at less than {pace:,.0f} pages a second some are found and fetched again"
        yield advice(f"{text}: {harm}", "set a longer BLOOMFILTER_TTL for the next crawl, or start more workers")
    return f"{text}: {pace:.2g} pages a second are enough"


def queue(crawl: Crawl) -> Findings:
    """Check each queue and its workers, and that the project's other spiders have other queues."""
    if others := known(lambda: crawl.queue_sharers) if crawl.has_spider and crawl.shares else None:
        harm = "After them a crawl takes their requests, and beside them none starts"
        text = f"other spiders ({_some(others)}) have the same queue, {crawl.require_queue()!r}. {harm}"
        yield advice(text, "put %(spider)s into the SCHEDULER_QUEUE_KEY, unless you only ever run one of these spiders")
    for name in crawl.queues:
        try:
            yield from _queue(crawl, crawl.inspect_queue(name))
        except WrongTypeError as error:
            yield refused(error)
    return None


def _queue(crawl: Crawl, state: QueueState) -> Iterator[Finding]:
    is_sorted = crawl.leases or not crawl.shares
    if state.kind == "list" and (is_sorted or crawl.kind("SCHEDULER_QUEUE_CLASS", PriorityQueue, PriorityQueue)):
        remedy = "crawl its requests with the SCHEDULER that queued them, or set another SCHEDULER_QUEUE_KEY"
        yield refused(f"{state.key} is a list, of FifoQueue or LifoQueue, but workers need a sorted set", remedy)
    if state.dead_letters:
        text = f"{plural(state.dead_letters, 'dead letter')}: requests that no worker could read, or that killed "
        remedy = "start a worker with the SCHEDULER_SERIALIZER and the code that queued them, or fix the callback, and "
        text += "BLOOMFILTER_MAX_DELIVERIES workers; their pages are missing"
        yield loss(text, remedy + "run `scrapy bloom requeue`")
    if state.has_losses:
        text = f"{state.key} has lost requests that the filter takes for seen, {state.lost:,} of them counted: the key "
        yield loss(f"{text}was deleted or evicted, or the server lost data", _START_OVER)
    if state.failed and not (crawl.config and crawl.config.retry_failed):
        text = f"{plural(state.failed, 'failed request')} kept: their pages are missing"
        yield advice(text, "crawl with BLOOMFILTER_RETRY_FAILED = True, or run `scrapy bloom requeue --failed`")
    others = {worker.spider for worker in state.workers} - {_path(crawl.crawler.spidercls)}
    if others and crawl.has_spider and crawl.leases and state.key == crawl.queue:
        remedy = "put %(spider)s into the SCHEDULER_QUEUE_KEY, and the project, if two have spiders of one name"
        yield refused(f"workers of another spider, {', '.join(others)}, crawl {state.key}", remedy)
    if state.workers and crawl.filter_key and state.filter != crawl.filter_key:
        text = f"the workers of {state.key} use another filter, {state.filter!r}, than {crawl.filter_key!r}"
        yield refused(text, "set the same SCHEDULER_DUPEFILTER_KEY for all workers")
    if silent := [worker for worker in state.workers if worker.is_silent]:
        requests, names = plural(sum(each.holds for each in silent), "request"), ", ".join(each.name for each in silent)
        text = f"{plural(len(silent), 'worker')} silent for longer than the lease, with {requests}: {names}"
        yield advice(text, "start a worker: it requeues their requests")
    alive = plural(len(state.workers) - len(silent), "live worker")
    yield Finding(Level.OK, f"{state.key}: {plural(state.waiting, 'pending request')}, {alive}")


def serializer(crawl: Crawl) -> Findings:
    """Check the SCHEDULER_SERIALIZER, and that it reads the first pending request."""
    setting = crawl.settings["SCHEDULER_SERIALIZER"] or None
    if not (crawl.has_spider and crawl.shares):
        return None
    name, is_local = _name_of(crawl, "SCHEDULER_SERIALIZER") if setting else "pickle", crawl.server.startswith(_LOCAL)
    if isinstance(setting, str) and known(partial(import_module, setting)) is None:
        yield refused(f"{name} cannot be imported", "set SCHEDULER_SERIALIZER to a module")
    elif setting != _JSON and not is_local:
        text = f"{name}: anybody who can write to this Redis can execute code in the workers"
        yield advice(text, f"set SCHEDULER_SERIALIZER = {_JSON!r} when the queue is empty")
    first = first_request(crawl.client, crawl.queues[0]) if crawl.queues else None
    if first is not None and setting in (None, _JSON) and first.startswith(b"\x80") != (setting is None):
        written, read = ("JSON", "pickles") if setting is None else ("pickles", "JSON")
        text = f"the pending requests are {written}, but this crawl reads {read}: all would become dead letters"
        yield loss(text, "let workers with the old SCHEDULER_SERIALIZER finish, or start over")
    if setting == _JSON:
        return "JSON: write access to Redis is no way to execute code in the workers"
    return f"{name}, on this machine; {_JSON!r} is safer if others can write to Redis"


def leases(crawl: Crawl) -> Findings:
    """Check that all leases are those of registered workers, and that none is missing."""
    number = 0
    for name in crawl.queues:
        keys = QueueKeys(name)
        # Before the registrations: a worker registers before it leases.
        held = {key for prefix in keys.of_worker("") for key in crawl.scan(_escape(prefix) + "*")[0]}
        found = [(as_text(worker), *counts) for worker, *counts in _LEASES.call(crawl.client, [keys.crawl], [])]
        number += len(found)
        for worker, counted, exist in found:
            held.difference_update(keys.of_worker(worker))
            if counted != exist:
                text = f"{worker} has registered {plural(counted, 'lease')}, and {exist:,} are there"
                harm = "evicted or deleted; if the worker is dead, their pages are missed"
                yield loss(f"{text}: {harm}", f"see the server's checks; {_START_OVER}")
        # A worker that has left in between has no leases any more.
        if strays := sorted(key for key in held if crawl.client.exists(key)):
            text = f"leases of workers whose registration was evicted or deleted: {_some(strays)}"
            remedy = "a live worker joins again. If they stay, move them: ZUNIONSTORE {0} 2 {0} KEY, and DEL KEY"
            yield loss(text, remedy.format(name))
    return f"those of {plural(number, 'registered worker')}"


def start_urls(crawl: Crawl) -> Findings:
    """Check leases and dead letters of the start URLs."""
    if (key := known(lambda: crawl.start_key)) is None or not crawl.leases:
        return None
    state = start_leases.inspect(crawl.client, key)
    if state.dead_letters:
        text = f"{plural(state.dead_letters, 'dead letter')} at {state.dead_key!r}: make_request_from_data made "
        remedy = "fix make_request_from_data, and move them back to the start key"
        yield loss(f"{text}no request: no worker reads them again", remedy)
    if state.abandoned:
        text = f"{state.abandoned:,} of {state.key!r} leased by workers that are gone"
        yield advice(text, "start a worker of the spider: it requeues them")
    return f"{state.leased:,} of {state.key!r} leased"


# Arguments that change nothing, and that redis-py can route. Other commands get the name of a key that does not exist,
# and after it up to two words. A server first refuses a wrong number of arguments, then a missing permission, and then
# words in place of numbers.
_ALONE: dict[str, tuple[Any, ...]] = {"EVAL": ("return 1", 0), "EVALSHA": ("0" * 40, 0), "PING": (), "TIME": ()}
_WORDS: dict[str, list[tuple[str, ...]]] = {"HSET": [("x", "x", "x")], "SET": [("x", "x")]}


def permissions(crawl: Crawl) -> Findings:
    """Check the user's permissions for the commands and keys of a crawl."""
    client, rules, unknown = crawl.client, list[str](), list[str]()
    needed: dict[str, tuple[str, ...]] = {crawl.filter_key or f"{crawl.spider}:dupefilter": FILTER_COMMANDS}
    needed.update(dict.fromkeys(crawl.queues[:1], QUEUE_COMMANDS))
    for key, commands in needed.items():
        nobody = f"{tagged(key)}:doctor-{secrets.token_hex(8)}"
        denials = {command: _denial(client, command, nobody) for command in commands}
        rules += [f"~{key}"] * (_denial(client, "TYPE", key) == "key")
        rules += [f"~{tagged(key)}:*"] * ("key" in denials.values())
        rules += [f"+{command.lower()}" for command, denial in denials.items() if denial == "command"]
        unknown += [command for command, denial in denials.items() if denial == "unknown"]
    user = client.get_connection_kwargs().get("username") or "default"
    if unknown:
        yield loss(f"the server does not know {', '.join(unknown)}", "use Redis 6.2 or newer, or Valkey")
    if rules:
        rule = f"ACL SETUSER {user} {' '.join(dict.fromkeys(rules))}"
        yield loss(f"the user {user!r} lacks permissions that a crawl needs", f"as an admin, run {rule}")
    return f"the user {user!r} has all permissions of a crawl"


def _denial(client: Any, command: str, key: str) -> str | None:
    """Try a command; return "command" or "key" if the user lacks the permission for it, "unknown", or None."""
    attempts: list[tuple[Any, ...]] = [(key, *words) for words in _WORDS.get(command, [(), ("x",), ("x", "x")])]
    for arguments in [_ALONE[command]] if command in _ALONE else attempts:
        try:
            client.execute_command(command, *arguments)
        except exceptions.NoPermissionError as error:
            return "key" if " key" in str(error) else "command"
        except exceptions.ResponseError as error:
            if "wrong number of arguments" in str(error):
                continue
            return "unknown" if str(error).lower().startswith("unknown") else None
        return None
    return None


def leftover_filters(crawl: Crawl) -> Findings:
    """Check for filters of killed crawls under Scrapy's own scheduler, whose keys no setting names."""
    keys, scope = crawl.scan("*:dupefilter:*")
    drawn = [key for key in keys if re.fullmatch(r"(?s).*:dupefilter:[0-9a-f]{16}", key)]
    idle = [key for key in drawn if (crawl.client.object("idletime", key) or 0) >= crawl.idle]
    if found := [each for key in idle if (each := known(partial(stored.read, crawl.client, key)))]:
        size, names = as_size(sum(each.info.memory_bytes for each in found)), _some([each.key for each in found])
        text = f"{plural(len(found), 'filter')} of crawls killed under Scrapy's own scheduler, {size}, unused for "
        remedy = "unless a crawl is paused, run `scrapy bloom clear --yes --key KEY` for each"
        yield advice(f"{text}{crawl.idle:g} s{scope}: {names}", remedy)
    return f"none{scope}"


def _some(names: list[str]) -> str:
    return ", ".join([*names[:_EXAMPLES], *["…"] * (len(names) > _EXAMPLES)])


def _name_of(crawl: Crawl, setting: str) -> str:
    value = crawl.settings[setting]
    return repr(value if isinstance(value, str) else getattr(value, "__qualname__", str(value)))


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _escape(text: str) -> str:
    """Escape the special characters of SCAN's patterns."""
    return re.sub(r"[*?\[\]\\]", r"\\\g<0>", text)


# Checks that need no server, of any keys and of a spider; and those of a server. See `name_of`.
OF_ANY: tuple[Check, ...] = (versions, settings)
OF_SPIDER: tuple[Check, ...] = (dupefilter, scheduler, spider, flush, lease, timeouts)
OF_NODES: tuple[Check, ...] = (server, eviction, memory, persistence, replication)
OF_FILTER: tuple[Check, ...] = (slots, filter_, error_rate, capacity, ttl)
OF_SERVER = (*OF_NODES, *OF_FILTER, queue, serializer, leases, start_urls, permissions, leftover_filters)


def name_of(check: Check) -> str:
    """Return the name of a check for people."""
    return check.__name__.strip("_").replace("_", " ").replace("urls", "URLs")
