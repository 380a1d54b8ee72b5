"""The line to a server: commands go out together and replies come back in their order; it knows no command.

It packs commands and reads replies itself, over redis-py's connections: of a check that goes through redis-py's
execute_command or pipeline, most of the time in the process is theirs (`python -m benchmarks micro`).
"""

import inspect
import time
from collections.abc import Sequence
from typing import Any, Protocol

import hiredis
from redis import Redis, ResponseError

from scrapy_bloom.errors import ConfigError

_pack: Any = hiredis.pack_command  # its types are of tuples of one argument

# Seconds within which a server on the same machine, or on a fast network, answers a check.
_SOON = 50e-6
# Round trips to one that does not answer so soon, before it is watched for again.
_LONGEST_REST = 63

# A command as it goes over a connection.
Wire = bytes


def pack(*args: str | bytes | float) -> Wire:
    """A command of these arguments."""
    packed: Wire = _pack(args)
    return packed


def unpack(command: Wire) -> list[bytes]:
    """The arguments of a command."""
    reader = hiredis.Reader()
    reader.feed(command)
    arguments: list[bytes] = reader.gets()
    return arguments


def as_bytes(value: str | bytes) -> bytes:
    """Text or bytes as they go over a connection: in UTF-8."""
    return value.encode() if isinstance(value, str) else value


def as_text(value: Any) -> str:
    """A reply's text, with and without decode_responses."""
    return value.decode() if isinstance(value, bytes) else str(value)


class Client(Protocol):
    """What is needed of a Redis client: `redis.Redis`, `redis.RedisCluster` and what behaves like them."""

    def execute_command(self, *args: Any) -> Any:
        """Send one command and return its reply."""


class Line(Protocol):
    """Carries commands to a server and replies back, without sending anything twice."""

    def send(self, commands: Sequence[Wire], *, atomic: bool = False) -> list[Any]:
        """Carry out commands in their order, all or none if they are `atomic`; raises the first error among replies."""


# What replies of ours are made of, as they go over a connection.
_ASCII = bytes(range(32, 127))


def fit(client: Any) -> Any:
    """The client; raises ConfigError where it cannot work, before anything is sent, and shows no more than its type."""
    execute = getattr(client, "execute_command", None)
    if execute is None or inspect.iscoroutinefunction(execute):
        raise ConfigError(
            f"server = {type(client).__module__}.{type(client).__qualname__}: must be a client that answers when it is "
            "called; pass a redis.Redis or redis.RedisCluster, in settings REDIS_PARAMS = {'redis_cls': 'redis.Redis'}"
        )
    encoder = client.get_encoder() if hasattr(client, "get_encoder") else None
    if encoder is not None and encoder.decode_responses and not _keeps_ascii(encoder.encoding):
        raise ConfigError(
            f"encoding = {encoder.encoding!r}: must be one in which ASCII is ASCII, where replies are decoded; pass "
            "encoding='utf-8', or decode_responses=False (REDIS_ENCODING, REDIS_DECODE_RESPONSES and REDIS_PARAMS in "
            "settings)"
        )
    return client


def _keeps_ascii(encoding: str) -> bool:
    try:
        return _ASCII.decode(encoding) == _ASCII.decode("ascii")
    except (LookupError, ValueError):
        return False


def line(client: Any) -> Line:
    """The line of a client: one round trip for all commands, where one connection of a pool takes them all.

    Raises ConfigError for a client that cannot work.
    """
    fit(client)
    is_plain = type(client).execute_command is Redis.execute_command and client.connection is None
    return _Direct(client) if is_plain else _OneByOne(client)


_MULTI, _EXEC = pack("MULTI"), pack("EXEC")


class _Direct:
    """The line of a `redis.Redis`, over a connection from its pool each time."""

    def __init__(self, client: Redis) -> None:
        self._pool: Any = client.connection_pool
        self._rest = 0
        self._pause = 0

    def send(self, commands: Sequence[Wire], *, atomic: bool = False) -> list[Any]:
        if not atomic:
            return self._exchange(commands)
        done: list[Any] = self._exchange([_MULTI, *commands, _EXEC])[-1]
        _raise_first(done)
        return done

    def _exchange(self, commands: Sequence[Wire]) -> list[Any]:
        connection = self._pool.get_connection()
        try:
            connection.send_packed_command([b"".join(commands)])
            self._watch(connection)
            replies = [_read(connection) for _ in commands]
        except BaseException:
            # The replies that were not read would be taken for those of the next commands.
            connection.disconnect()
            raise
        finally:
            self._pool.release(connection)
        _raise_first(replies)
        return replies

    def _watch(self, connection: Any) -> None:
        """Look for the reply without sleeping where it comes soon: being woken takes longer than it takes to come."""
        if self._rest > 0:
            self._rest -= 1
            return
        end = time.perf_counter() + _SOON
        while not (is_there := connection.can_read()) and time.perf_counter() < end:
            pass
        self._rest = self._pause = 0 if is_there else min(2 * self._pause + 1, _LONGEST_REST)


class _OneByOne:
    """The line of any other client, a cluster's above all: one round trip each.

    redis-py's pipeline for a cluster keeps no order between nodes, and sends commands again when a reply was lost, in
    silence, which cannot be turned off.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def send(self, commands: Sequence[Wire], *, atomic: bool = False) -> list[Any]:  # noqa: ARG002  # none after a failed one
        replies = []
        for command in commands:
            name, *rest = unpack(command)
            replies.append(self._client.execute_command(name.decode(), *rest))
        return replies


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def _raise_first(replies: Sequence[Any]) -> None:
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise reply
