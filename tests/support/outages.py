"""An outage of a server in the middle of a crawl."""

import threading

from tests.support.servers import Server


class Outage:
    """Kills a server, and starts it again after some seconds."""

    def __init__(self, server: Server, seconds: float) -> None:
        self._server = server
        self._timer = threading.Timer(seconds, server.start)

    def __call__(self, _: str) -> None:
        self._server.kill()
        self._timer.start()

    def join(self) -> None:
        """Wait until the server is back."""
        self._timer.join()
