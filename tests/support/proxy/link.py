"""A link between clients and a server: far, slow, cut, or rerouted.

Clients keep one address while servers change behind it, as behind a load balancer or a virtual address. It knows no
protocol.
"""

import contextlib
import queue
import socket
import threading
import time
from dataclasses import dataclass

from tests.support.proxy import CHUNK, TcpProxy, running, shut

# A slow link takes so many pieces a second.
_PIECES = 20
# So small that a client waits for a slow link, and not the kernel in its place.
_BUFFER = 32_768

_Waiting = queue.SimpleQueue[tuple[float, bytes]]


@dataclass
class Link:
    """The state of a link in both directions.

    `rate` limits the bytes a second of a connection, either way. `delay` is the seconds added either way; they keep the
    throughput. The next `lost_replies` replies are dropped, and their connections cut.
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

    def serve(self, client: socket.socket, server: socket.socket) -> None:
        """Forward both ways at once."""
        replies = threading.Thread(target=self._forward, args=(server, client), kwargs={"is_reply": True}, daemon=True)
        replies.start()
        self._forward(client, server)
        replies.join()

    def _forward(self, source: socket.socket, target: socket.socket, *, is_reply: bool = False) -> None:
        """Forward one way. Another thread sends, so that the bytes leave with the intervals of their arrival."""
        waiting = _Waiting()
        sending = threading.Thread(target=_send_when_due, args=(waiting, source, target), daemon=True)
        sending.start()
        data = b"first"
        while data:
            rate, delay = self.link.rate, self.link.delay
            try:
                data = source.recv(CHUNK if rate is None else max(1, int(rate / _PIECES)))
            except OSError:
                data = b""
            if data and is_reply and self._loses_reply():
                data = b""
            if rate is not None:
                time.sleep(len(data) / rate)
            waiting.put((time.monotonic() + delay, data))
        sending.join()

    def _loses_reply(self) -> bool:
        """Return whether the current reply is lost."""
        with self.lock:
            is_lost = self.link.lost_replies > 0
            self.link.lost_replies -= is_lost
        return is_lost


def _send_when_due(waiting: _Waiting, source: socket.socket, target: socket.socket) -> None:
    """Send the data that waits, each part when it is due, until the empty one, which ends the connection."""
    while True:
        due, data = waiting.get()
        time.sleep(max(0.0, due - time.monotonic()))
        if not data:
            break
        try:
            target.sendall(data)
        except OSError:
            break
    shut(source)
    shut(target)


def forwarding(upstream: int) -> contextlib.AbstractContextManager[LinkProxy]:
    """Run a link for as long as the block lasts."""
    return running(LinkProxy(upstream))
