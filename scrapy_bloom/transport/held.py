"""A connection that is kept between calls, for calls that are made one by one.

`Redis.execute_command` takes two thirds of the CPU time of a single check: it takes a connection from the pool, polls
it, and records the command for telemetry.
"""

import contextlib
import os
import time
from typing import Any
from weakref import WeakValueDictionary

from hiredis import pack_command
from redis import Redis
from redis.exceptions import NoScriptError

from scrapy_bloom.transport.connect import Client
from scrapy_bloom.transport.failures import FAULTS

_shared: WeakValueDictionary[tuple[int, int], "HeldConnection"] = WeakValueDictionary()
# Longer ago, the server, or something on the way, may have closed the connection.
_POLL_SECONDS = 1.0


class HeldConnection:
    """A connection of a client's pool, which the callers of this process share.

    Args:
        client: the client.

    Attributes:
        connection_pool: the client's pool.
        made: connections made so far. Between two of them the server may have gone back to an earlier state.
    """

    def __init__(self, client: Redis) -> None:
        self.connection_pool = client.connection_pool
        self.made = 0
        self._kept: Any = None
        self._last = 0.0

    def execute_command(self, *command: Any, **_: object) -> Any:
        """Execute a command, and return its reply, with strings as bytes. Nothing is retried."""
        # Not kept while in use: a call of another thread, or of a signal's handler, has a connection of its own.
        connection: Any
        connection, self._kept = self._kept, None
        if connection is not None and time.monotonic() > self._last + _POLL_SECONDS and _is_stale(connection):
            self._release(connection)
            connection = None
        if connection is None:
            connection = self.connection_pool.get_connection()
            connection.register_connect_callback(self._note_connect)  # it connects again by itself if it was closed
            self.made += 1
        is_sound = False
        try:
            connection.send_packed_command((pack_command(command),))
            reply = connection.read_response(disable_decoding=True)
            # redis-py 7 and newer: a managed server has told that it is about to move.
            is_sound = not getattr(connection, "should_reconnect", bool)()
        except NoScriptError:
            is_sound = True
            raise
        finally:
            self._last = time.monotonic()
            if is_sound and self._kept is None:
                self._kept = connection
            else:
                if not is_sound:
                    connection.disconnect()
                self._release(connection)
        return reply

    def close(self) -> None:
        """Give the connection back; the next command takes one again."""
        connection, self._kept = self._kept, None
        if connection is not None:
            self._release(connection)

    __del__ = close

    def _release(self, connection: Any) -> None:
        connection.deregister_connect_callback(self._note_connect)
        self.connection_pool.release(connection)

    def _note_connect(self, _: Any) -> None:
        self.made += 1


def hold(client: Client) -> HeldConnection | None:
    """Return this process's connection for a client.

    None of a cluster, of a pool with one connection, which others need, and of a class with its own `execute_command`,
    which may do anything.
    """
    own = type(client).execute_command is not Redis.execute_command
    if not isinstance(client, Redis) or own or client.connection_pool.max_connections == 1:
        return None
    # A fork needs another one. The connection keeps the pool, whose id is unique while it is here.
    return _shared.setdefault((os.getpid(), id(client.connection_pool)), HeldConnection(client))


def _is_stale(connection: Any) -> bool:
    """Return whether a connection was closed, or holds what nobody asked for."""
    with contextlib.suppress(*FAULTS, OSError):
        if not connection.can_read():
            return False
    connection.disconnect()
    return True
