"""A proxy that adds latency in both directions.

It keeps the throughput: bytes leave with the intervals at which they arrived, however many are on the way. The proxy
runs in a separate process, so that neither side waits for it.
"""

import contextlib
import ctypes
import multiprocessing
import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import redis

from devtools.proxy import CHUNK, TcpProxy, running, shut

PINGS = 300
CALIBRATIONS = 20
# The allowed relative error of a ping.
CLOSE = 0.02
# Linux may wake a sleeper up to 50 us late unless the timer slack is smaller.
_SET_TIMER_SLACK, _NANOSECONDS = 29, 1


class Delay:
    """A running proxy of another process: its port, and the seconds of delay in each direction."""

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
def delaying(upstream: int, seconds: float) -> Iterator[Delay]:
    """Run a proxy to a local port with this delay during the block."""
    context = multiprocessing.get_context("spawn")
    held = context.Value("d", seconds, lock=False)
    ours, its = context.Pipe()
    process = context.Process(target=_serve, args=(upstream, held, its), daemon=True)
    process.start()
    # Only the process holds the other end now, so this end notices if the process ends.
    its.close()
    try:
        yield Delay(ours.recv(), held)
    finally:
        process.terminate()
        process.join()
        ours.close()


class _DelayProxy(TcpProxy):
    """Forwards all bytes `held.value` seconds after their arrival."""

    def __init__(self, upstream: int, held: Any) -> None:
        super().__init__(upstream)
        self._held = held

    def serve(self, client: socket.socket, server: socket.socket) -> None:
        """Forward both ways at once, until both have ended."""
        replies = threading.Thread(target=self._forward, args=(server, client), daemon=True)
        replies.start()
        self._forward(client, server)
        replies.join()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        """Forward one way. Another thread sends, so that the bytes leave with the intervals of their arrival."""
        waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        sending = threading.Thread(target=_send_when_due, args=(waiting, source, target), daemon=True)
        sending.start()
        part = b"first"
        while part:
            try:
                part = source.recv(CHUNK)
            except OSError:
                part = b""
            waiting.put((time.monotonic() + self._held.value, part))
        sending.join()


def _send_when_due(
    waiting: queue.SimpleQueue[tuple[float, bytes]], source: socket.socket, target: socket.socket
) -> None:
    """Send the parts that wait, each when it is due, until the empty one, which ends the stream."""
    while True:
        due, part = waiting.get()
        time.sleep(max(0.0, due - time.monotonic()))
        if not part:
            shut(target, socket.SHUT_WR)
            return
        try:
            target.sendall(part)
        except OSError:
            # The target is gone: end the source, too.
            shut(source, socket.SHUT_RD)


def _serve(upstream: int, held: Any, told: Connection) -> None:
    """Forward until this process or its parent ends."""
    with contextlib.suppress(AttributeError, OSError):
        # Further threads inherit it.
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, _NANOSECONDS)
    with running(_DelayProxy(upstream, held)) as proxy:
        told.send(proxy.port)
        with contextlib.suppress(EOFError):
            told.recv()
