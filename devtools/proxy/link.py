"""A link between clients and a server: slow, held, cut, or rerouted.

Clients keep one address while servers change behind it, as behind a load balancer or a virtual address. It knows no
protocol.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from devtools.proxy import CHUNK, TcpProxy, running, shut

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


class LinkProxy(TcpProxy):
    """Forwards at the speed of its `link`."""

    receive_buffer = _BUFFER

    def __init__(self, upstream: int) -> None:
        super().__init__(upstream)
        self.link = Link()
        self.delayed = self.lost = 0  # delayed messages to the server, and dropped replies
        self._gate = threading.Lock()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold all data to the server for as long as the block lasts; replies still come."""
        with self._gate:
            yield

    def serve(self, client: socket.socket, server: socket.socket) -> None:
        """Forward both ways at once."""
        replies = threading.Thread(target=self._reply, args=(client, server), daemon=True)
        replies.start()
        try:
            while data := client.recv(CHUNK):
                self._send(server, data)
        finally:
            shut(server)
            replies.join()

    def _send(self, server: socket.socket, data: bytes) -> None:
        """Forward a client's data."""
        if delay := self.link.delay:
            time.sleep(delay)
            with self.lock:
                self.delayed += 1
        for piece in self._pieces(data):
            with self._gate:
                server.sendall(piece)

    def _reply(self, client: socket.socket, server: socket.socket) -> None:
        """Forward the server's data until either side ends, or a reply is lost."""
        with contextlib.suppress(OSError):
            while (data := server.recv(CHUNK)) and not self._loses_reply():
                for piece in self._pieces(data):
                    client.sendall(piece)
        shut(client)
        shut(server)

    def _loses_reply(self) -> bool:
        """Return whether the current reply is lost."""
        with self.lock:
            is_lost = self.link.lost_replies > 0
            self.link.lost_replies -= is_lost
            self.lost += is_lost
        return is_lost

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


def forwarding(upstream: int) -> contextlib.AbstractContextManager[LinkProxy]:
    """Run a link for as long as the block lasts."""
    return running(LinkProxy(upstream))
