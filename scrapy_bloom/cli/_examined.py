"""The crawl that `doctor` examines, its findings, and the checks of its server.

A check yields its findings, each with the remedy, and at last the text for a crawl without any. It changes nothing. A
server that refuses a check is a finding of the caller's, so checks care only for errors that mean something else.
"""

import re
import secrets
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from functools import cached_property, partial, wraps
from typing import Any, NamedTuple, Self, TypeVar

from redis import exceptions
from scrapy.settings import Settings
from scrapy.utils.misc import load_object
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom.cli._target import UNREADABLE, CrawlTarget
from scrapy_bloom.errors import BloomError, UnavailableError
from scrapy_bloom.filter.info import StoredFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.inspection import QueueState
from scrapy_bloom.queue.keys import start_key_of, tagged
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.text import as_size, as_text
from scrapy_bloom.transport.connect import is_cluster
from scrapy_bloom.transport.failures import FAULTS, FILTER_COMMANDS, QUEUE_COMMANDS, describe
from scrapy_bloom.transport.server_info import evicts, policy

T = TypeVar("T")

# Loaded by name: modules on this level do not import each other.
_BLOOM_SCHEDULER: Any = load_object("scrapy_bloom.BloomScheduler")
LEASED_START_URLS: type = load_object("scrapy_bloom.spiders.LeasedStartUrls")
# A server may have more keys than can be scanned in so many seconds.
_SCAN = 10.0
# The lag of a replica that is not worth a finding: seconds, bytes.
_LAG = 10, 10_000_000
# The loss by a restart, by `appendfsync`.
_SECOND = "at most one second"
_LOSSES = {"always": "nothing", "everysec": _SECOND, None: f"{_SECOND}, unless it is no; the server hides it"}
# Arguments that change nothing, and that redis-py can route. Other commands get the name of a key that does not exist,
# and after it up to two words. A server first refuses a wrong number of arguments, then a missing permission, and then
# words in place of numbers.
_ALONE: dict[str, tuple[Any, ...]] = {"EVAL": ("return 1", 0), "EVALSHA": ("0" * 40, 0), "PING": (), "TIME": ()}
_LIST_COMMANDS = ("LLEN", "LRANGE", "LTRIM")
_WORDS: dict[str, list[tuple[str, ...]]] = {"HSET": [("x", "x", "x")], "SET": [("x", "x")]}


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


# The findings of a check, and its text for a crawl without any.
Findings = Iterator[Finding | str]


def findings_of(check: Findings, where: str = "") -> list[Finding]:
    """Return the findings of a check, or its text without any; the texts begin with `where`."""
    told = [*check]
    found = [each for each in told if isinstance(each, Finding)]
    found = found or [Finding(Level.OK, text) for text in told if isinstance(text, str)]
    return [each._replace(text=where + each.text) for each in found]


def known(read: Callable[[], T]) -> T | None:
    """Return the result, or None if a setting or stored data is invalid, which one of the checks reports."""
    try:
        return read()
    except UnavailableError:
        raise
    except (BloomError, *UNREADABLE):
        return None


class Node(NamedTuple):
    """A node: its address with a colon, or "" outside a cluster; whether it has slots; its INFO.

    INFO has `save` and `appendfsync`, too; an error may stand in its place.
    """

    where: str
    has_slots: bool
    info: Any


class Crawl(CrawlTarget):
    """The examined crawl, or a partition of it. A property is None if settings or data do not determine it.

    The cached ones are those of a partition: read them from one of `partitions`.

    Attributes:
        leases: workers lease requests.
        shares: workers share a queue.
        config: the BLOOMFILTER_* settings, if the crawl uses the filter.
    """

    def __init__(self, options: Namespace, settings: Settings) -> None:
        super().__init__(options, settings, may_be_refused=True)
        self.idle, self.project = options.idle, settings
        self._scanned: dict[str, tuple[list[str], str]] = {}
        self.leases = bool(self.kind("SCHEDULER", _BLOOM_SCHEDULER))
        self.shares = bool(self.kind("SCHEDULER", Scheduler))
        self.config = known(lambda: BloomSettings.from_settings(self.settings)) if self.uses_filter else None

    def kind(self, setting: str, base: type = object, default: Any = None) -> bool | None:
        """Return whether a setting names a subclass, or None if it cannot be imported."""
        kind = known(lambda: load_object(self.settings.get(setting) or default))
        return kind and isinstance(kind, type) and issubclass(kind, base)

    @cached_property
    def count(self) -> int:
        """The number of partitions, or 1 if the settings do not determine it."""
        return known(lambda: super(Crawl, self).count) or 1

    @property
    def partitions(self) -> list[Self]:
        """The crawl in each partition, or itself if its keys are unknown."""
        return known(lambda: super(Crawl, self).partitions) or [self]

    @property
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
        queue = known(lambda: self.queue)
        return [queue] if queue else []

    @cached_property
    def states(self) -> list[QueueState]:
        """The states of the readable queues."""
        return [state for name in self.queues if (state := known(partial(self.inspect_queue, name)))]

    @property
    def waiting(self) -> int:
        """The number of pending requests in all partitions."""
        return sum(state.waiting for part in self.partitions for state in part.states)

    @property
    def start_key(self) -> str | None:
        """The key of the start URLs if the spider leases them, or None."""
        is_fed = issubclass(self.crawler.spidercls, LEASED_START_URLS)
        return start_key_of(self.settings, self.spider) if is_fed else None

    @cached_property
    def nodes(self) -> list[Node]:
        """The server, or all nodes that the cluster knows."""
        if not is_cluster(self.client):
            return [Node("", True, _info(self.client, exceptions.ResponseError))]
        manager, options, nodes = self.client.nodes_manager, self.client.get_connection_kwargs(), []
        for name, told in _nodes_of(self.client).items():
            host, _, port = name.rpartition(":")
            if not {"noaddr", "handshake"} & set(told["flags"].split(",")):
                client = manager.create_redis_node(*manager.remap_host_port(host, int(port)), **options)
                nodes.append(Node(f"{name}: ", bool(told["slots"]), _info(client, FAULTS)))
                client.connection_pool.disconnect()
        return nodes

    def scan(self, pattern: str) -> tuple[list[str], str]:
        """Return the matching keys, and a note if not all keys were scanned. All partitions share the result."""
        if pattern not in self._scanned:
            end, found, note = time.monotonic() + _SCAN, list[str](), ""
            for key in self.client.scan_iter(match=pattern, count=1000):
                found.append(as_text(key))
                if time.monotonic() > end:
                    note = f" (among the keys scanned in {_SCAN:g} s)"
                    break
            self._scanned[pattern] = found, note
        return self._scanned[pattern]


def in_partitions(examine: Callable[[Crawl], Findings]) -> Callable[[Crawl], Findings]:
    """Return a check of each partition; where all is well, the text of the first one stands for the others."""

    @wraps(examine)
    def check(crawl: Crawl) -> Findings:
        for number, part in enumerate(crawl.partitions):
            try:
                found = part.retry(partial(findings_of, examine(part), part.where))
            except UnavailableError as error:
                if not part.where:
                    raise
                found = [unreachable(error)]
            yield from (each for each in found if number == 0 or each.level is not Level.OK)

    return check


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


def skipped(error: Exception, where: str = "") -> Finding:
    """Return the finding of a check that the server denied."""
    cause = error.__context__ if isinstance(error.__context__, FAULTS) else error
    return advice(f"{where}not checked: {describe(cause)}", "run it as a user with the permission")


def unreachable(error: UnavailableError) -> Finding:
    """Return the finding of a check of a node that does not answer."""
    return loss(f"not checked: {error.cause}", "run it again when all nodes of the cluster answer")


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


def on_nodes(examine: Callable[[Crawl, Node], Findings]) -> Callable[[Crawl], Findings]:
    """Return a check of each node that tells its INFO."""

    @wraps(examine)
    def check(crawl: Crawl) -> Findings:
        for node in crawl.nodes:
            if isinstance(node.info, dict):
                yield from findings_of(examine(crawl, node), node.where)

    return check


@on_nodes
def eviction(crawl: Crawl, node: Node) -> Findings:
    """Check that a full server evicts neither the filter nor the queue."""
    text, harm, remedy = f"maxmemory-policy is {policy(node.info)}", "", "set maxmemory-policy noeviction"
    if evicts(node.info, expires=False):
        harm = "any key: with the queue its pending requests are lost, and with the filter pages are fetched again"
    elif evicts(node.info, expires=True) and (sized := crawl.partitions[0].sized) and sized.ttl:
        harm = "keys with a TTL, as BLOOMFILTER_TTL sets one, and pages are fetched again"
    if harm:
        yield loss(f"{text}: a full server evicts {harm}", remedy)
    yield text if node.info.get("maxmemory") else f"none: maxmemory is not set (policy {policy(node.info)})"


@on_nodes
def memory(crawl: Crawl, node: Node) -> Findings:
    """Check that a new filter has room on the node of its key."""
    limit, used = (int(node.info.get(name, 0)) for name in ("maxmemory", "used_memory"))
    new = [part for part in crawl.partitions if part.sized and (part.found is None or part.found.is_empty)]
    if node.where:
        new = [part for part in new if f"{crawl.client.get_node_from_key(part.key).name}: " == node.where]
    needed = sum(part.sized.sizes()[0].memory_bytes for part in new if part.sized)
    more = f"; the filter needs {as_size(needed)} more" if needed else ""
    if limit and used + needed > limit:
        remedy = "raise maxmemory, or set a smaller BLOOMFILTER_CAPACITY: without room a crawl waits"
        yield advice(f"maxmemory is {as_size(limit)}, {as_size(used)} are used{more}", remedy)
    yield (f"{as_size(used)} of {as_size(limit)} used" if limit else f"{as_size(used)} used, without a limit") + more


@on_nodes
def persistence(_: Crawl, node: Node) -> Findings:
    """Check how much a restart of the server loses."""
    info, fsync = node.info, node.info.get("appendfsync")
    file, status = ("AOF", "aof_last_write") if info.get("aof_enabled") else ("snapshots", "rdb_last_bgsave")
    if info.get(f"{status}_status", "ok") != "ok":
        yield loss(f"the server cannot write its {file}", "read the server's log: the disk may be full")
    elif file == "AOF" and fsync == "no":
        harm = "a crash of the machine loses the writes that the kernel still buffers, half a minute or more"
        yield advice(f"AOF with appendfsync no: {harm}", "set appendfsync everysec")
    elif file == "AOF":
        yield f"AOF with appendfsync {fsync}: a restart loses {_LOSSES.get(fsync, _LOSSES[None])}"
    elif "rdb_last_save_time" in info and info.get("save", True):  # if a server hides it, it is assumed to save
        yield advice("RDB: a restart after a crash loses all writes since the last snapshot", "set appendonly yes")
    else:
        yield loss("none: a restart of the server loses the queue and the filter", "set appendonly yes")


@on_nodes
def replication(_: Crawl, node: Node) -> Findings:
    """Check that the server is a master, and its replicas are in step."""
    info, master = node.info, f"{node.info.get('master_host')}:{node.info.get('master_port')}"
    if info.get("role") == "slave" and node.has_slots:
        yield loss("the server is a replica and takes no writes", "set REDIS_URL to the master")
    elif info.get("role") == "slave" and info.get("master_link_status") != "up":
        yield advice(f"a replica without a link to its master {master}", "check the master and the network")
    elif info.get("role") == "slave":
        yield f"a replica of {master}"
    for replica in (value for name, value in info.items() if re.fullmatch(r"slave\d+", name)):
        behind, lag = max(0, int(info["master_repl_offset"]) - int(replica["offset"])), int(replica["lag"])
        text = f"the replica {replica['ip']}:{replica['port']} is "
        if replica["state"] != "online":
            yield advice(text + replica["state"], "wait until it is online, or read its log")
        elif lag > _LAG[0] or behind > _LAG[1]:
            harm = f"{as_size(behind)} and {lag} s behind: a failover would lose these writes"
            yield advice(text + harm, "check its network and its load")
        yield f"{text}{as_size(behind)} behind"


def permissions(crawl: Crawl) -> Findings:
    """Check the user's permissions for the commands and keys of a crawl."""
    client, rules, unknown = crawl.client, list[str](), list[str]()
    needed = dict[str, tuple[str, ...]]()
    for part in crawl.partitions:
        needed[part.filter_key or f"{crawl.spider.name}:dupefilter"] = FILTER_COMMANDS
        needed.update(dict.fromkeys(part.queues[:1], QUEUE_COMMANDS))
    is_list = not any(map(crawl.settings.getbool, ("REDIS_START_URLS_AS_SET", "REDIS_START_URLS_AS_ZSET")))
    if crawl.leases and is_list and (start := known(lambda: crawl.start_key)):
        needed[start] = _LIST_COMMANDS
    for key, commands in needed.items():
        nobody = f"{tagged(key)}:doctor-{secrets.token_hex(8)}"
        denials = {command: _denial(client, command, nobody) for command in commands}
        rules += [f"~{key}"] * (_denial(client, "TYPE", key) == "key")
        rules += [f"~{tagged(key)}:*"] * ("key" in denials.values())
        rules += [f"+{command.lower()}" for command, denial in denials.items() if denial == "command"]
        unknown += [command for command, denial in denials.items() if denial == "unknown"]
    if any(f"+{command.lower()}" in rules for command in _LIST_COMMANDS):
        rules += ["+lpush", "+rpush"]  # not tried, since they would write
    user = client.get_connection_kwargs().get("username") or "default"
    if unknown:
        yield loss(f"the server does not know {', '.join(unknown)}", "use Redis 6.2 or newer, or Valkey")
    if rules:
        rule = f"ACL SETUSER {user} {' '.join(dict.fromkeys(rules))}"
        yield loss(f"the user {user!r} lacks permissions that a crawl needs", f"as an admin, run {rule}")
    yield f"the user {user!r} has all permissions of a crawl"


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
