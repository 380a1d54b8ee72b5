"""Check the configuration of the server, its replicas, and the permissions of the user."""

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from redis import exceptions
from scrapy_redis import defaults

from scrapy_bloom._format import as_size
from scrapy_bloom.cli.checks.case import Case, Finding, advice, loss, ok
from scrapy_bloom.errors import BloomError
from scrapy_bloom.queue.queue_keys import QueueKeys
from scrapy_bloom.storage.filter_hash import Load
from scrapy_bloom.storage.filter_keys import can_spread, forgotten_key
from scrapy_bloom.transport.failures import describe
from scrapy_bloom.transport.retry import retry_until
from scrapy_bloom.transport.server_info import (
    FILTER_COMMANDS,
    FORGET_COMMANDS,
    QUEUE_COMMANDS,
    Info,
    evicts,
    is_cluster,
    policy,
)
from scrapy_bloom.transport.slots import each_node

# Harmless arguments, for commands that take more than a key. The server refuses some of them, but only after it has
# checked the permission.
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "BITFIELD": ("GET", "u1", 0),
    "GETRANGE": (0, 0),
    "HDEL": ("field",),
    "HEXISTS": ("field",),
    "HGET": ("field",),
    "HINCRBY": ("field", "none"),
    "HSET": ("field", "value", "none"),
    "PEXPIREAT": (0,),
    "ZADD": ("XX", 0, "member"),
    "ZMSCORE": ("member",),
    "ZRANGE": (0, 0),
    "ZREM": ("member",),
    "ZSCORE": ("member",),
}
_WITHOUT_KEY: dict[str, tuple[Any, ...]] = {
    "EVAL": ("return 1", 0),
    "EVALSHA": ("0" * 40, 0),  # the hash of no script
    "PING": (),
    "TIME": (),
}
# HSETNX has no harmless arguments: a script undoes the write.
_SCRIPTS = {"HSETNX": "redis.call('HSETNX', KEYS[1], 'field', '') redis.call('UNLINK', KEYS[1])"}


def check_nodes(case: Case) -> Iterator[Finding]:
    """Check each node of the server: eviction, memory, persistence, replication."""
    parameters = case.parameters
    is_new = case.found is None or not case.found.has_layers
    new_bytes = parameters.memory_bytes if parameters is not None and is_new else 0
    expires = parameters is not None and bool(parameters.ttl)
    for server, client in case.target.clients.items():
        has_filter = client is case.target.filter_client
        for node in retry_until(partial(nodes_of, client), case.target.wait):
            needed = _share(client, node, case.key, new_bytes) if has_filter and new_bytes else 0
            where = "".join(f"{part}: " for part in (server, node.name) if part)
            for finding in node.examine(needed, expires=expires and has_filter):
                yield replace(finding, text=where + finding.text)


def _share(client: Any, node: "Node", key: str | None, memory_bytes: int) -> int:
    """Return the bytes of a new filter that a node is to store."""
    if not node.name or key is None:
        return memory_bytes
    if node.is_replica:
        return 0
    if can_spread(key):
        return math.ceil(memory_bytes / len(client.get_primaries()))
    return memory_bytes if client.get_node_from_key(key).name == node.name else 0


def check_permissions(case: Case) -> Iterator[Finding]:
    """Check the user's permissions for the commands and keys of the filter and of the first queue."""
    # Keys drawn by crawls have this prefix.
    key = case.key or defaults.DUPEFILTER_KEY.partition(":")[0]
    # Some probes would change existing data, so they use a new key.
    nobody = f"doctor-{secrets.token_hex(8)}"
    for server, client in case.target.clients.items():
        rules: list[str] = []
        denials: dict[str, str | None] = {}
        if client is case.target.filter_client:
            commands = FILTER_COMMANDS + (FORGET_COMMANDS if _forgets(case) else ())
            of_filter = _denials(client, commands, f"{key}:{nobody}")
            rules += _missing_rules(of_filter, (f"~{key}", f"~{key}:*"))
            denials |= of_filter
        if case.queues and (not server or client is case.target.queue_client):
            queue = case.queues[0]
            probe = QueueKeys(queue).leases(nobody)
            patterns = (f"~{queue}", f"~{probe.partition(':leases:')[0]}:*")
            of_queue = _denials(client, QUEUE_COMMANDS, probe)
            rules += _missing_rules(of_queue, patterns)
            denials |= of_queue
        unknown = [command for command, denial in denials.items() if denial == "unknown"]
        if unknown:
            text = f"{server or 'the server'} does not know {', '.join(unknown)}"
            yield loss("permissions", text, "use Redis 6.2 or newer, or Valkey")
        yield _permissions(client, rules, f" on {server}" if server else "")


def _forgets(case: Case) -> bool:
    """Return whether the crawl forgets requests of failed pages, or a request was forgotten."""
    if case.config is not None and case.config.forget_failed:
        return True
    with suppress(BloomError):
        return case.key is not None and case.target.store.execute([Load(forgotten_key(case.key))])[0].kind != "none"
    return False


def _permissions(client: Any, rules: Sequence[str], where: str) -> Finding:
    check, pool = "permissions", getattr(client, "connection_pool", None)
    user = str(getattr(pool, "connection_kwargs", {}).get("username") or "default")
    if not rules:
        return ok(check, f"the user {user!r} has all permissions of a crawl{where}")
    rule = f"ACL SETUSER {user} {' '.join(dict.fromkeys(rules))}"
    return loss(check, f"the user {user!r} lacks permissions that a crawl needs{where}", f"as an admin, run {rule}")


def _denials(client: Any, commands: Sequence[str], probe: str) -> dict[str, str | None]:
    """Try commands on a key that does not exist."""
    return {command: _denial(client, command, probe) for command in commands}


def _missing_rules(denied: Mapping[str, str | None], patterns: Sequence[str]) -> list[str]:
    """Return the missing ACL rules, with the key patterns if no command on the probe key is allowed."""
    rules = [f"+{command.lower()}" for command, denial in denied.items() if denial == "command"]
    reaches_keys = any(denial is None for command, denial in denied.items() if command not in _WITHOUT_KEY)
    return rules if reaches_keys else [*patterns, *rules]


def _denial(client: Any, command: str, key: str) -> str | None:
    """Try a command; return "command" or "key" if the user lacks the permission for it, "unknown", or None."""
    try:
        if command in _SCRIPTS:
            client.execute_command("EVAL", _SCRIPTS[command], 1, key)
        elif command in _WITHOUT_KEY:
            client.execute_command(command, *_WITHOUT_KEY[command])
        else:
            client.execute_command(command, key, *_ARGUMENTS.get(command, ()))
    except exceptions.ResponseError as error:
        text = str(error)
        is_denied = isinstance(error, exceptions.NoPermissionError)
        if is_denied or "ACL failure" in text or "can't run this command" in text:
            return "key" if " key" in text else "command"
        # Redis 6 cites the error of a script.
        if text.lower().startswith("unknown") or "Unknown Redis command" in text:
            return "unknown"
    return None


# The lag of a replica that is not worth a finding.
_MAX_LAG_SECONDS = 10
_MAX_LAG_BYTES = 10_000_000


@dataclass(frozen=True)
class Node:
    """A server, or a node of a cluster.

    Attributes:
        name: the address of a cluster's node; empty for a server.
        is_replica: the node is a replica, or a former master without slots.
        info: its INFO, with its `save` and `appendfsync`.
        fault: the reason why it cannot be asked, or nothing.
    """

    name: str = ""
    is_replica: bool = False
    info: Info = field(default_factory=dict)
    fault: str = ""

    def examine(self, memory_bytes: int, *, expires: bool) -> list[Finding]:
        """Check a node that needs room for `memory_bytes`; with `expires`, keys have a TTL."""
        if not self.fault:
            return examine(self.info, memory_bytes, expires=expires, is_replica=self.is_replica)
        text = f"cannot be asked ({self.fault})"
        if self.is_replica:
            return [advice("server", f"the replica {text}", "start it: a failover to it is impossible")]
        return [loss("server", f"the master {text}", "start it, or let a replica take over: a crawl waits")]


def nodes_of(client: Any) -> list[Node]:
    """Return the server, or all nodes of a cluster, which may be unreachable."""
    if not is_cluster(client):
        return [Node(info=_read(client))]
    return [_node(*each) for each in each_node(client)]


def _node(name: str, is_replica: bool, client: Any) -> Node:
    try:
        return Node(name, is_replica, _read(client))
    except (exceptions.ConnectionError, exceptions.TimeoutError, OSError) as error:
        return Node(name, is_replica, fault=describe(error))
    finally:
        client.connection_pool.disconnect()


def _read(client: Any) -> Info:
    return {**client.info(), **_config(client)}


def examine(info: Info, memory_bytes: int, *, expires: bool, is_replica: bool = False) -> list[Finding]:
    """Check the INFO of a node that needs room for `memory_bytes`; with `expires`, keys have a TTL.

    `is_replica` says that the node is to be one, in a cluster.
    """
    product = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version", "of an unknown version")
    return [
        ok("server", f"{product} {version}"),
        _eviction(info, expires=expires),
        _memory(info, memory_bytes),
        _persistence(info),
        *([_link(info)] if is_replica and info.get("role") == "slave" else _replication(info)),
    ]


def _config(client: Any) -> Info:
    try:
        # One at a time: CONFIG GET takes several names since Redis 7.
        return {**client.config_get("save"), **client.config_get("appendfsync")}
    except exceptions.ResponseError:  # a managed server lacks or denies CONFIG
        return {}


def _eviction(info: Info, *, expires: bool) -> Finding:
    check, name = "eviction", policy(info)
    if not info.get("maxmemory"):
        return ok(check, f"none: maxmemory is not set (policy {name})")
    if evicts(info, expires=expires):
        evicted = (
            "any key: with the queue its pending requests are lost, and with the filter pages are fetched again"
            if evicts(info, expires=False)
            else "keys with a TTL, as BLOOMFILTER_TTL sets one, and pages are fetched again"
        )
        return loss(
            check,
            f"maxmemory-policy is {name}: a full server evicts {evicted}",
            "set maxmemory-policy noeviction",
        )
    return ok(check, f"maxmemory-policy is {name}")


def _memory(info: Info, memory_bytes: int) -> Finding:
    check, limit, used = "memory", int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if limit and used + memory_bytes > limit:
        return advice(
            check,
            f"maxmemory is {as_size(limit)}, {as_size(used)} are used; the filter needs {as_size(memory_bytes)} more",
            "raise maxmemory, or set a smaller BLOOMFILTER_CAPACITY: without room a crawl waits",
        )
    room = f"{as_size(used)} of {as_size(limit)} used" if limit else f"{as_size(used)} used, without a limit"
    return ok(check, f"{room}; the filter needs {as_size(memory_bytes)} more" if memory_bytes else room)


def _persistence(info: Info) -> Finding:
    check = "persistence"
    if info.get("aof_enabled"):
        if info.get("aof_last_write_status", "ok") != "ok":
            return loss(check, "the server cannot write its AOF", "read the server's log: the disk may be full")
        return _appendfsync(info.get("appendfsync"))
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return loss(check, "the server cannot write its snapshots", "read the server's log: the disk may be full")
    # A server that hides its `save` is assumed to take snapshots.
    if "rdb_last_save_time" in info and info.get("save", True):
        return advice(
            check,
            "RDB: a restart after a crash loses all writes since the last snapshot",
            "set appendonly yes",
        )
    return loss(check, "none: a restart of the server loses the queue and the filter", "set appendonly yes")


def _appendfsync(policy: str | None) -> Finding:
    check, text = "persistence", f"AOF with appendfsync {policy}"
    match policy:
        case "no":
            return advice(
                check,
                f"{text}: a crash of the machine loses the writes that the kernel still buffers, half a minute or more",
                "set appendfsync everysec",
            )
        case "always":
            return ok(check, f"{text}: a restart loses nothing")
        case "everysec":
            return ok(check, f"{text}: a restart loses at most one second")
    return ok(check, "AOF: a restart loses at most one second, unless appendfsync is no; the server hides it")


def _replication(info: Info) -> list[Finding]:
    check = "replication"
    if info.get("role") == "slave":
        return [loss(check, "the server is a replica and takes no writes", "set REDIS_URL to the master")]
    replicas = [value for name, value in info.items() if name.startswith("slave") and isinstance(value, Mapping)]
    return [_replica(check, replica, int(info.get("master_repl_offset", 0))) for replica in replicas]


def _link(info: Info) -> Finding:
    """Check the link of a cluster's replica to its master."""
    check, master = "replication", f"{info.get('master_host')}:{info.get('master_port')}"
    if info.get("master_link_status") == "up":
        return ok(check, f"a replica of {master}")
    return advice(check, f"a replica without a link to its master {master}", "check the master and the network")


def _replica(check: str, replica: Info, offset: int) -> Finding:
    where = f"{replica.get('ip')}:{replica.get('port')}"
    behind, lag = max(0, offset - int(replica.get("offset", 0))), int(replica.get("lag", 0))
    if replica.get("state") != "online":
        return advice(
            check, f"the replica {where} is {replica.get('state')}", "wait until it is online, or read its log"
        )
    if behind > _MAX_LAG_BYTES or lag > _MAX_LAG_SECONDS:
        return advice(
            check,
            f"the replica {where} is {as_size(behind)} and {lag} s behind: a failover would lose these writes",
            "check its network and its load",
        )
    return ok(check, f"the replica {where} is {as_size(behind)} behind")
