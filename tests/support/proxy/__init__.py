"""TCP proxies between clients and a Redis server on this machine, each with a policy of its own.

`faults` fails at chosen commands, `link` is far, slow, cut or rerouted.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import TypeVar

from devtools.servers import Address

CHUNK = 65_536


class TcpProxy(ThreadingTCPServer):
    """Listens on a free port, and connects each client to the server at the port `upstream`.

    A policy is a subclass with its own `serve`. A new connection leads to the current `upstream`; open connections stay
    where they are until it ends, which closes them.
    """

    # Bytes that the kernel receives for a connection before the proxy reads them; None: the kernel's default.
    receive_buffer: int | None = None

    def __init__(self, upstream: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection, bind_and_activate=False)
        if self.receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer)
        self.server_bind()
        self.server_activate()
        self.upstream = upstream
        self.port: int = self.socket.getsockname()[1]
        self.address = Address(self.port)
        self.lock = threading.Lock()
        self._open: set[tuple[socket.socket, socket.socket]] = set()
        self._has_ended = False

    @property
    def url(self) -> str:
        """The address for clients, as REDIS_URL takes it."""
        return self.address.url

    def serve(self, client: socket.socket, server: socket.socket) -> None:
        """Forward a connection until it ends. Either side may close at any time: an OSError ends it, too."""
        raise NotImplementedError

    def cut(self) -> None:
        """Cut all connections."""
        with self.lock:
            doomed = list(self._open)
        for sides in doomed:
            for side in sides:
                shut(side)

    @contextlib.contextmanager
    def connecting(self, client: socket.socket, server: socket.socket) -> Iterator[None]:
        """Let `cut` cut a connection during the block."""
        sides = (client, server)
        with self.lock:
            if self._has_ended:
                raise ConnectionAbortedError
            self._open.add(sides)
        try:
            yield
        finally:
            with self.lock:
                self._open.remove(sides)


class _Connection(BaseRequestHandler):
    server: TcpProxy

    def handle(self) -> None:
        client: socket.socket = self.request
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.server.upstream)) as upstream,
            self.server.connecting(client, upstream),
        ):
            for side in (client, upstream):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
            self.server.serve(client, upstream)


P = TypeVar("P", bound=TcpProxy)


@contextlib.contextmanager
def running(proxy: P) -> Iterator[P]:
    """Run a proxy for as long as the block lasts; its connections are closed then."""
    with proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
            with proxy.lock:
                proxy._has_ended = True
            proxy.cut()


def shut(side: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Shut a side of a connection, which may be closed already."""
    with contextlib.suppress(OSError):
        side.shutdown(how)
