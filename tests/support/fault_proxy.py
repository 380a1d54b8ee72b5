"""A proxy between clients and a Redis server that fails on purpose; it sees commands and replies, not what they mean.

A connection is served one command at a time, so that each fault is at one known place of one known command, of those
in a pipeline too, and that what reached the server is known exactly.
"""

import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from io import BufferedIOBase
from itertools import repeat
from socketserver import StreamRequestHandler, ThreadingTCPServer


class Place(StrEnum):
    """The place of a fault in the exchange of command and reply; only after a late reply the connection goes on."""

    BEFORE = "before the request"
    REQUEST = "in mid-request"
    AFTER = "after the request"
    REPLY = "in mid-reply"
    STALL = "no reply in time"
    LATE = "late reply"


CUTS = (Place.BEFORE, Place.REQUEST, Place.AFTER, Place.REPLY)
"""The places where the connection is cut, of which the client hears at once."""


Plan = Iterator[Place | None]
"""What happens to each command that comes, None for nothing; when it ends, nothing happens any more."""

DONE = (Place.AFTER, Place.REPLY, Place.STALL)
"""The places where the server has carried the command out, and the client does not know."""

_LATE_SECONDS = 0.05
# What a client sends when it connects: a fault there is one like any other before the request.
_HANDSHAKE = frozenset({b"HELLO", b"AUTH", b"CLIENT", b"SELECT"})


def at_random(source: random.Random, places: Sequence[Place], faults: int, apart: int) -> Plan:
    """So many faults, on average `apart` commands from each other."""
    for _ in range(faults):
        yield from repeat(None, source.randrange(2 * apart - 1))
        yield source.choice(places)


class Proxy(ThreadingTCPServer):
    """Listens on a free port and passes everything on to the server at `upstream`, but for what `plan` says.

    Faults are aimed at the commands with these names, or else at all but those of a handshake; where `naming` is set,
    only at those that have these bytes in them. `done` counts, of what faults are aimed at, the whole commands that the
    server has answered; `faults` how many commands were failed. A late reply is sent after `late_seconds`, or
    when `late` is set.
    """

    daemon_threads = True

    def __init__(self, upstream: int, *names: str) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.upstream = upstream
        self.port: int = self.socket.getsockname()[1]
        self.plan: Plan = iter(())
        self.done: Counter[bytes] = Counter()
        self.faults = 0
        self.naming = b""
        self.late = threading.Event()
        self.late_seconds = _LATE_SECONDS
        self._names = frozenset(name.encode() for name in names)
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """The address at which clients find it."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def resent(self) -> int:
        """Different commands that the server has carried out more than once."""
        return sum(times > 1 for times in self.done.values())

    def fail(self, *places: Place | None) -> None:
        """Fail the next commands so, one after another; None passes."""
        self.plan = iter(places)

    def is_aimed_at(self, command: bytes) -> bool:
        """Return whether faults may hit this command."""
        name = command.split(b"\r\n", 3)[2].upper()
        return self.naming in command and (name in self._names if self._names else name not in _HANDSHAKE)

    def next_fault(self) -> Place | None:
        """Take from the plan what happens to the command that has come."""
        with self._lock:
            place = next(self.plan, None)
            self.faults += place is not None
        return place

    def note_done(self, command: bytes) -> None:
        """Count a command that the server has answered."""
        with self._lock:
            self.done[command] += 1


@contextlib.contextmanager
def proxying(upstream: int, *names: str) -> Iterator[Proxy]:
    """A proxy for as long as the block lasts."""
    with Proxy(upstream, *names) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.late.set()
            proxy.shutdown()
            thread.join()


class _Connection(StreamRequestHandler):
    disable_nagle_algorithm = True
    server: Proxy

    def handle(self) -> None:
        # Either side may go at any time.
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.server.upstream)) as upstream:
            upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            with upstream.makefile("rb") as replies:
                while self._sync(upstream, replies):
                    pass

    def _sync(self, upstream: socket.socket, replies: BufferedIOBase) -> bool:
        """Pass a command on and its reply back; False: the connection ends."""
        command = _read(self.rfile)
        is_aimed_at = self.server.is_aimed_at(command)
        place = self.server.next_fault() if is_aimed_at else None
        if place is Place.BEFORE:
            return False
        if place is Place.REQUEST:
            upstream.sendall(command[: len(command) // 2])
            return False
        upstream.sendall(command)
        reply = _read(replies)
        if is_aimed_at:
            self.server.note_done(command)
        if place is Place.LATE:
            self.server.late.wait(self.server.late_seconds)
        if place in {None, Place.LATE}:
            self.wfile.write(reply)
        elif place is Place.REPLY:
            self.wfile.write(reply[: len(reply) // 2])
        elif place is Place.STALL:
            while self.rfile.read(1):  # until the client gives up
                pass
        return place in {None, Place.LATE}


def _read(stream: BufferedIOBase) -> bytes:
    """One message of the Redis protocol, as it is on the wire."""
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
