"""A proxy that adds latency in both directions.

It keeps the throughput: bytes leave with the intervals at which they arrived, however many are on the way. The proxy
runs in a separate process, so that neither side waits for it.
"""

import contextlib
import ctypes
import multiprocessing
import select
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import redis

PINGS = 300
CALIBRATIONS = 20
# The allowed relative error of a ping.
CLOSE = 0.02
_CHUNK = 1 << 16
# Linux may wake a sleeper up to 50 us late unless the timer slack is smaller.
_SET_TIMER_SLACK, _NANOSECONDS = 29, 1


class Proxy:
    """A running proxy: its port, and the seconds of delay in each direction."""

    def __init__(self, port: int, held: Any) -> None:
        self.port = port
        self._held = held

    def calibrate(self, upstream: int, seconds: float) -> float:
        """Adjust the delay until a ping takes `2 * seconds` longer than a direct ping; return the ping's time.

        The delay shrinks by the time that forwarding itself takes.
        """
        self._held.value = seconds
        for _ in range(CALIBRATIONS):
            # On a busy machine both pings vary.
            wanted, found = ping(upstream) + 2 * seconds, ping(self.port)
            if abs(found / wanted - 1) < CLOSE:
                break
            self._held.value = max(0.0, self._held.value + (wanted - found) / 2)
        return ping(self.port)


def ping(port: int) -> float:
    """Return the median seconds of a PING."""
    with redis.Redis(port=port) as client:
        client.ping()
        took = []
        for _ in range(PINGS):
            started = time.perf_counter()
            client.ping()
            took.append(time.perf_counter() - started)
    return median(took)


@contextmanager
def delaying(upstream: int, seconds: float) -> Iterator[Proxy]:
    """Run a proxy to a local port with this delay during the block."""
    context = multiprocessing.get_context("spawn")
    held = context.Value("d", seconds, lock=False)
    ours, its = context.Pipe()
    process = context.Process(target=_serve, args=(upstream, held, its), daemon=True)
    process.start()
    # Only the process holds the other end now, so this end notices if the process ends.
    its.close()
    try:
        yield Proxy(ours.recv(), held)
    finally:
        process.terminate()
        process.join()
        ours.close()


class _Way:
    """One direction of a connection: the bytes from `source` that are not yet due at `target`."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source = source
        self.target = target
        # An empty part is the end of the stream.
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.is_read = False
        self.is_blocked = False

    def read(self, held: float) -> None:
        """Receive available bytes."""
        try:
            came = self.source.recv(_CHUNK)
        except OSError:
            came = b""
        self.is_read = not came
        self.waiting.append((time.monotonic() + held, came))

    def write(self) -> None:
        """Forward the bytes that are due, as far as the target accepts them."""
        self.is_blocked = False
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            due, part = self.waiting.popleft()
            try:
                if not part:
                    self.target.shutdown(socket.SHUT_WR)
                    continue
                taken = self.target.send(part)
            except BlockingIOError:
                taken = 0
            except OSError:
                # The target is gone: close the source too.
                with contextlib.suppress(OSError):
                    self.source.shutdown(socket.SHUT_RD)
                continue
            if taken < len(part):
                self.waiting.appendleft((due, part[taken:]))
                self.is_blocked = True
                return

    @property
    def is_over(self) -> bool:
        """Whether the stream has ended and all bytes are forwarded."""
        return self.is_read and not self.waiting


def _serve(upstream: int, held: Any, told: Connection) -> None:
    """Forward until this process or its parent ends."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, _NANOSECONDS)
    ways: list[_Way] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        told.send(listening.getsockname()[1])
        while True:
            _write_due(ways)
            ways = [way for way in ways if not _is_closed(way, ways)]
            sources: list[Any] = [told, listening, *(way.source for way in ways if not way.is_read)]
            targets = [way.target for way in ways if way.is_blocked]
            readable, writable, _ = select.select(sources, targets, [], _until_next(ways))
            if told in readable:
                return
            if listening in readable:
                ways += _connected(listening, upstream)
            for way in ways:
                if way.source in readable:
                    way.read(held.value)
                if way.target in writable:
                    way.is_blocked = False


def _write_due(ways: list[_Way]) -> None:
    for way in ways:
        if not way.is_blocked:
            way.write()


def _until_next(ways: list[_Way]) -> float | None:
    due = [way.waiting[0][0] for way in ways if way.waiting and not way.is_blocked]
    return max(0.0, min(due) - time.monotonic()) if due else None


def _connected(listening: socket.socket, upstream: int) -> list[_Way]:
    """Return both directions of a client's connection."""
    client, _ = listening.accept()
    server = socket.create_connection(("127.0.0.1", upstream))
    for end in (client, server):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        end.setblocking(False)
    return [_Way(client, server), _Way(server, client)]


def _is_closed(way: _Way, ways: list[_Way]) -> bool:
    """Return whether both directions have ended; close the connection then."""
    (other,) = (each for each in ways if each.source is way.target)
    is_closed = way.is_over and other.is_over
    if is_closed:
        way.source.close()
    return is_closed
