"""Check a server's own settings, and the permissions of the user."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from redis import exceptions

from scrapy_bloom._format import as_size
from scrapy_bloom.cli.checks.findings import Finding, advice, loss, ok
from scrapy_bloom.queue.queue_keys import QueueKeys
from scrapy_bloom.transport.permissions import FILTER_COMMANDS, QUEUE_COMMANDS
from scrapy_bloom.transport.server_info import Info, evicts, nodes, policy

_CHECK = "permissions"
# Of commands that take more than a key: arguments that have no effect on a key that is not there. Some are refused for
# what they say, which a server does after it has looked for the permission.
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
    "ZRANGE": (0, 0),
    "ZREM": ("member",),
    "ZSCORE": ("member",),
}
_WITHOUT_KEY: dict[str, tuple[Any, ...]] = {"EVAL": ("return 1", 0), "PING": (), "TIME": ()}
# The one that writes whatever it is given, and takes it back.
_SCRIPTS = {"HSETNX": "redis.call('HSETNX', KEYS[1], 'field', '') redis.call('UNLINK', KEYS[1])"}


def permissions(client: Any, user: str, key: str, queue: str | None) -> Finding:
    """Return what the user lacks on the filter's keys, and on the queue's where there is one."""
    # A name that nobody has used: some of the commands would change what is there.
    nobody = f"doctor-{secrets.token_hex(8)}"
    rules = _missing_commands(client, FILTER_COMMANDS, f"{key}:{nobody}", (f"~{key}", f"~{key}:*"))
    if queue is not None:
        probe = QueueKeys(queue).leases(nobody)
        patterns = (f"~{queue}", f"~{probe.partition(':leases:')[0]}:*")
        rules += _missing_commands(client, QUEUE_COMMANDS, probe, patterns)
    if not rules:
        return ok(_CHECK, f"the user {user!r} may do all that a crawl does")
    rule = f"ACL SETUSER {user} {' '.join(dict.fromkeys(rules))}"
    return loss(
        _CHECK, f"the user {user!r} lacks permissions that a crawl needs", f"let the server's admin say: {rule}"
    )


def _missing_commands(client: Any, commands: Sequence[str], probe: str, patterns: Sequence[str]) -> list[str]:
    """Return the rules that a user lacks; one who may use no command at all may lack the keys as well."""
    denied = {command: _denial(client, command, probe) for command in commands}
    rules = [f"+{command.lower()}" for command, what in denied.items() if what == "command"]
    reaches_keys = any(what is None for command, what in denied.items() if command not in _WITHOUT_KEY)
    return rules if reaches_keys else [*patterns, *rules]


def _denial(client: Any, command: str, key: str) -> str | None:
    """Return what a user may not use, the command or the key, or None."""
    try:
        if command in _SCRIPTS:
            client.execute_command("EVAL", _SCRIPTS[command], 1, key)
        elif command in _WITHOUT_KEY:
            client.execute_command(command, *_WITHOUT_KEY[command])
        else:
            client.execute_command(command, key, *_ARGUMENTS.get(command, ()))
    except exceptions.NoPermissionError as error:
        return "key" if " key" in str(error) else "command"
    except exceptions.ResponseError as error:
        if "ACL failure" not in str(error) and "can't run this command" not in str(error):
            return None
        return "key" if " key" in str(error) else "command"
    return None


# Seconds, and bytes, by which a replica may be behind.
_MAX_LAG_SECONDS = 10
_MAX_BEHIND_BYTES = 10_000_000


def nodes_of(client: Any) -> list[Info]:
    """Return the INFO of each node, with its `save` and its `appendfsync`."""
    return [{**info, **_config(client, address)} for address, info in nodes(client)]


def examine(info: Info, memory_bytes: int, *, expires: bool) -> list[Finding]:
    """Return what INFO says of a node; a filter takes `memory_bytes` there, and its keys may have an expiry."""
    return [
        ok("server", _name(info)),
        _eviction(info, expires=expires),
        _memory(info, memory_bytes),
        _persistence(info),
        *_replication(info),
    ]


def _config(client: Any, address: Mapping[str, Any]) -> Info:
    try:
        # One at a time: CONFIG GET takes several names from Redis 7 on.
        return {**client.config_get("save", **address), **client.config_get("appendfsync", **address)}
    except exceptions.ResponseError:  # a managed server has no CONFIG, or denies it
        return {}


def _name(info: Info) -> str:
    product = "Valkey" if "valkey_version" in info else "Redis"
    return f"{product} {info.get('valkey_version') or info.get('redis_version', 'of an unknown version')}"


def _eviction(info: Info, *, expires: bool) -> Finding:
    check, name = "eviction", policy(info)
    if not info.get("maxmemory"):
        return ok(check, f"nothing is evicted: no maxmemory (policy {name})")
    if evicts(info, expires=expires):
        evicted = (
            "any key: requests that wait are lost with the queue, and pages are fetched again with the filter"
            if evicts(info, expires=False)
            else "keys with an expiry, which BLOOMFILTER_TTL sets, and pages are fetched again"
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
            f"maxmemory is {as_size(limit)}, {as_size(used)} are used; the filter takes {as_size(memory_bytes)} more",
            "raise maxmemory, or set a smaller BLOOMFILTER_CAPACITY: a crawl waits where there is no room",
        )
    room = f"{as_size(used)} of {as_size(limit)} are used" if limit else f"{as_size(used)} are used, without a limit"
    return ok(check, f"{room}; the filter takes {as_size(memory_bytes)} more" if memory_bytes else room)


def _persistence(info: Info) -> Finding:
    check = "persistence"
    if info.get("aof_enabled"):
        if info.get("aof_last_write_status", "ok") != "ok":
            return loss(check, "the server cannot write its AOF", "see its log: the disk may be full")
        return _appendfsync(info.get("appendfsync"))
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return loss(check, "the server cannot write its snapshots", "see its log: the disk may be full")
    if "rdb_last_save_time" in info and _has_snapshots(info):
        return advice(
            check,
            "RDB: a restart after a crash loses what was queued and marked since the last snapshot",
            "set appendonly yes",
        )
    return loss(check, "none: a restart of the server loses queue and filter", "set appendonly yes")


def _appendfsync(policy: str | None) -> Finding:
    check = "persistence"
    match policy:
        case "no":
            return advice(
                check,
                "AOF with appendfsync no: a crash of the machine loses what its system has not written, half a minute "
                "and more",
                "set appendfsync everysec",
            )
        case "always":
            return ok(check, "AOF with appendfsync always: a restart loses nothing")
        case "everysec":
            return ok(check, "AOF with appendfsync everysec: a restart loses a second at most")
    return ok(check, "AOF: a restart loses a second at most, unless appendfsync is no, which this server does not tell")


def _has_snapshots(info: Info) -> bool:
    """Return whether snapshots are made; a server that does not tell its `save` is believed to."""
    return bool(info.get("save", True))


def _replication(info: Info) -> list[Finding]:
    check = "replication"
    if info.get("role") == "slave":
        return [loss(check, "this server is a replica, and takes no writes", "set REDIS_URL to the master")]
    replicas = [value for name, value in info.items() if name.startswith("slave") and isinstance(value, Mapping)]
    return [_replica(check, replica, int(info.get("master_repl_offset", 0))) for replica in replicas]


def _replica(check: str, replica: Info, offset: int) -> Finding:
    where = f"{replica.get('ip')}:{replica.get('port')}"
    behind, lag = max(0, offset - int(replica.get("offset", 0))), int(replica.get("lag", 0))
    if replica.get("state") != "online":
        return advice(
            check, f"the replica {where} is {replica.get('state')}", "wait until it is online, or see its log"
        )
    if behind > _MAX_BEHIND_BYTES or lag > _MAX_LAG_SECONDS:
        return advice(
            check,
            f"the replica {where} is {as_size(behind)} and {lag} s behind: a failover would lose that",
            "see its network and its load",
        )
    return ok(check, f"the replica {where} is {as_size(behind)} behind")
