"""A TCP forwarder between clients and a server: slow, held, cut, or rerouted.

Clients keep one address while servers change behind it, as behind a load balancer or a virtual address. It knows no
protocol.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from socketserver import BaseRequestHandler, ThreadingTCPServer

from devtools.servers import Address

_CHUNK = 65_536
# A slow link takes so many pieces a second.
_PIECES = 20
# So small that a client waits for a slow link, and not the kernel in its place.
_BUFFER = 32_768


@dataclass
class Link:
    """The state of a link in both directions.

    `rate` limits the bytes a second of a connection, either way. `delay` is the seconds added on the way to the server.
    The next `lost_replies` replies are dropped, and their connections cut.
    """

    rate: float | None = None
    delay: float = 0.0
    lost_replies: int = 0


class Forwarder(ThreadingTCPServer):
    """Listens on a free port, and forwards to the server at the port `upstream`.

    A new connection leads to the current `upstream`; open connections stay where they are.
    """

    daemon_threads = True

    def __init__(self, upstream: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection, bind_and_activate=False)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self.server_bind()
        self.server_activate()
        self.upstream = upstream
        self.link = Link()
        self.delayed = self.lost = 0  # delayed messages to the server, and dropped replies
        self.address = Address(int(self.socket.getsockname()[1]))
        self._gate = threading.Lock()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()

    @property
    def url(self) -> str:
        """The address for clients, as REDIS_URL takes it."""
        return self.address.url

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold all data to the server for as long as the block lasts; replies still come."""
        with self._gate:
            yield

    def cut(self) -> int:
        """Cut all connections, and return how many there were."""
        with self._lock:
            doomed = list(self._open)
        for side in doomed:
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
        return len(doomed) // 2

    def send(self, server: socket.socket, data: bytes) -> None:
        """Forward a client's data at the speed of the link."""
        if delay := self.link.delay:
            time.sleep(delay)
            with self._lock:
                self.delayed += 1
        for piece in self._pieces(data):
            with self._gate:
                server.sendall(piece)

    def reply(self, client: socket.socket, data: bytes) -> None:
        """Forward the server's data at the speed of the link."""
        for piece in self._pieces(data):
            client.sendall(piece)

    def loses_reply(self) -> bool:
        """Return whether the current reply is lost."""
        with self._lock:
            is_lost = self.link.lost_replies > 0
            self.link.lost_replies -= is_lost
            self.lost += is_lost
        return is_lost

    @contextlib.contextmanager
    def connected(self, *sides: socket.socket) -> Iterator[None]:
        """Register a connection for as long as the block lasts."""
        with self._lock:
            self._open.update(sides)
        try:
            yield
        finally:
            with self._lock:
                self._open.difference_update(sides)

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the pieces in which a link takes some bytes, with a pause after each."""
        rate = self.link.rate
        if rate is None:
            yield data
            return
        size = max(1, int(rate / _PIECES))
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            yield piece
            time.sleep(len(piece) / rate)


class _Connection(BaseRequestHandler):
    server: Forwarder

    def handle(self) -> None:
        client: socket.socket = self.request
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        # Either side may close at any time.
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.server.upstream)) as upstream,
            self.server.connected(client, upstream),
        ):
            upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            replies = threading.Thread(target=self._replies, args=(upstream, client), daemon=True)
            replies.start()
            try:
                while data := client.recv(_CHUNK):
                    self.server.send(upstream, data)
            finally:
                _shut(upstream)
                replies.join()

    def _replies(self, upstream: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while (data := upstream.recv(_CHUNK)) and not self.server.loses_reply():
                self.server.reply(client, data)
        _shut(client)
        _shut(upstream)


def _shut(side: socket.socket) -> None:
    with contextlib.suppress(OSError):
        side.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def forwarding(upstream: int) -> Iterator[Forwarder]:
    """Run a forwarder for as long as the block lasts."""
    with Forwarder(upstream) as forwarder:
        thread = threading.Thread(target=forwarder.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield forwarder
        finally:
            forwarder.shutdown()
            forwarder.cut()
            thread.join()
