"""The permissions that a user lacks, by trying each command in a way that changes nothing."""

import secrets
from collections.abc import Sequence
from typing import Any

from redis import exceptions

from scrapy_bloom.admin.doctor.finding import Finding, loss, ok
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.transport.permissions import FILTER_COMMANDS, QUEUE_COMMANDS

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


def examine(client: Any, user: str, key: str, queue: str | None) -> Finding:
    """Return what the user lacks on the filter's keys, and on the queue's where there is one."""
    # A name that nobody has used: some of the commands would change what is there.
    nobody = f"doctor-{secrets.token_hex(8)}"
    rules = _missing(client, FILTER_COMMANDS, f"{key}:{nobody}", (f"~{key}", f"~{key}:*"))
    if queue is not None:
        probe = QueueKeys(queue).leases(nobody)
        patterns = (f"~{queue}", f"~{probe.partition(':leases:')[0]}:*")
        rules += _missing(client, QUEUE_COMMANDS, probe, patterns)
    if not rules:
        return ok(_CHECK, f"the user {user!r} may do all that a crawl does")
    rule = f"ACL SETUSER {user} {' '.join(dict.fromkeys(rules))}"
    return loss(
        _CHECK, f"the user {user!r} lacks permissions that a crawl needs", f"let the server's admin say: {rule}"
    )


def _missing(client: Any, commands: Sequence[str], probe: str, patterns: Sequence[str]) -> list[str]:
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
