"""A proxy that fails on purpose, at chosen commands.

It does not know the meaning of commands. A connection is served one command at a time. So each fault hits a known place
of a known command, even in a pipeline, and the commands that reached the server are known exactly.
"""

import contextlib
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from io import BufferedIOBase
from itertools import repeat

from tests.support.proxy import TcpProxy, running


class Place(StrEnum):
    """The place of a fault; only after a late reply does the connection live on."""

    BEFORE = "before the request"
    REQUEST = "in mid-request"
    AFTER = "after the request"
    REPLY = "in mid-reply"
    STALL = "no reply in time"
    LATE = "late reply"


CUTS = (Place.BEFORE, Place.REQUEST, Place.AFTER, Place.REPLY)
"""The places where the connection is cut, which the client notices at once."""


Plan = Iterator[Place | None]
"""The fault for each command, None for no fault; after its end there are no more faults."""

DONE = (Place.AFTER, Place.REPLY, Place.STALL)
"""The places where the server has executed the command, and the client does not know."""

_LATE_SECONDS = 0.05
# A client's commands on connecting: a fault there is like any other before the request.
_HANDSHAKE = frozenset({b"HELLO", b"AUTH", b"CLIENT", b"SELECT"})


def at_random(source: random.Random, places: Sequence[Place], faults: int, apart: int) -> Plan:
    """Yield so many faults, on average `apart` commands from each other."""
    for _ in range(faults):
        yield from repeat(None, source.randrange(2 * apart - 1))
        yield source.choice(places)


class FaultProxy(TcpProxy):
    """Forwards to the server at `upstream`, except for the faults of `plan`.

    Faults hit the commands with these names, or else all except those of a handshake; if `naming` is set, only commands
    that contain these bytes. `done` counts the whole commands of this kind that the server has answered, and `faults`
    the failed ones.
    """

    def __init__(self, upstream: int, *names: str) -> None:
        super().__init__(upstream)
        self.plan: Plan = iter(())
        self.done: Counter[bytes] = Counter()
        self.faults = 0
        self.naming = b""
        self._names = frozenset(name.encode() for name in names)

    @property
    def resent(self) -> int:
        """The number of different commands that the server has executed more than once."""
        return sum(times > 1 for times in self.done.values())

    def fail(self, *places: Place | None) -> None:
        """Fail the next commands at these places, one after another; None passes."""
        self.plan = iter(places)

    def is_aimed_at(self, command: bytes) -> bool:
        """Return whether faults may hit this command."""
        name = command.split(b"\r\n", 3)[2].upper()
        return self.naming in command and (name in self._names if self._names else name not in _HANDSHAKE)

    def serve(self, client: socket.socket, server: socket.socket) -> None:
        """Forward one command after another, each with its reply."""
        with client.makefile("rb") as requests, server.makefile("rb") as replies:
            while self._exchange(client, server, requests, replies):
                pass

    def _exchange(
        self, client: socket.socket, server: socket.socket, requests: BufferedIOBase, replies: BufferedIOBase
    ) -> bool:
        """Forward a command and its reply; return False to end the connection."""
        command = _read(requests)
        is_aimed_at, place = self.is_aimed_at(command), None
        if is_aimed_at:
            with self.lock:
                place = next(self.plan, None)
                self.faults += place is not None
        if place is Place.BEFORE:
            return False
        if place is Place.REQUEST:
            server.sendall(command[: len(command) // 2])
            return False
        server.sendall(command)
        reply = _read(replies)
        if is_aimed_at:
            with self.lock:
                self.done[command] += 1
        return self._reply(client, requests, reply, place)

    def _reply(self, client: socket.socket, requests: BufferedIOBase, reply: bytes, place: Place | None) -> bool:
        """Send a reply, unless it is lost here; return False to end the connection."""
        if place is Place.STALL:
            while requests.read(1):  # until the client gives up
                pass
        if place is Place.LATE:
            time.sleep(_LATE_SECONDS)
        if place is Place.REPLY:
            client.sendall(reply[: len(reply) // 2])
        is_whole = place in {None, Place.LATE}
        if is_whole:
            client.sendall(reply)
        return is_whole


def proxying(upstream: int, *names: str) -> contextlib.AbstractContextManager[FaultProxy]:
    """Run a proxy for as long as the block lasts."""
    return running(FaultProxy(upstream, *names))


def _read(stream: BufferedIOBase) -> bytes:
    """Read one message of the Redis protocol, as raw bytes."""
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError
    kind, rest = line[:1], line[1:-2]
    if kind in b"*~%":
        parts = int(rest) * (2 if kind == b"%" else 1)
        return line + b"".join(_read(stream) for _ in range(parts))
    if kind not in b"$=!" or int(rest) < 0:
        return line
    body = stream.read(size := int(rest) + 2)
    if len(body) < size:
        raise ConnectionError
    return line + body
