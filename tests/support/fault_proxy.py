"""A proxy between clients and a Redis server that fails on purpose.

It does not know the meaning of commands. A connection is served one command at a time. So each fault hits a known place
of a known command, even in a pipeline, and the commands that reached the server are known exactly.
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


class Proxy(ThreadingTCPServer):
    """Forwards to the server at `upstream`, except for the faults of `plan`.

    Faults hit the commands with these names, or else all except those of a handshake; if `naming` is set, only commands
    that contain these bytes. `done` counts the whole commands of this kind that the server has answered, and `faults`
    the failed ones. A late reply is sent after `late_seconds`, or when `late` is set.
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
        """The address for clients."""
        return f"redis://127.0.0.1:{self.port}"

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

    def next_fault(self) -> Place | None:
        """Take the fault for the next command from the plan."""
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
        # Either side may close at any time.
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.server.upstream)) as upstream:
            upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            with upstream.makefile("rb") as replies:
                while self._sync(upstream, replies):
                    pass

    def _sync(self, upstream: socket.socket, replies: BufferedIOBase) -> bool:
        """Forward a command and its reply; return False to end the connection."""
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
