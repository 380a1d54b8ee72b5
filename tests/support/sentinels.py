"""Real Sentinels, which watch a master of a test."""

import contextlib
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

from devtools.waiting import until
from tests.support.servers import BINARIES, Server, free_port

MASTER = "crawl"


class Watch:
    """A Sentinel process."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self._process = process

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Accept connections in the block, as its kernel does, and answer none."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def client(self) -> redis.Redis:
        """Make a client of the Sentinel itself."""
        return redis.Redis(port=self.port)


@contextlib.contextmanager
def watching(
    master: Server, directory: Path, knows: Callable[[redis.Redis], bool], password: str | None = None
) -> Iterator[Watch]:
    """A Sentinel that decides alone; the password is the master's."""
    port = free_port()
    config = directory / f"sentinel-{port}.conf"
    config.write_text(
        f"port {port}\n"
        "bind 127.0.0.1\n"
        f"dir {directory}\n"
        f"sentinel monitor {MASTER} 127.0.0.1 {master.port} 1\n"
        f"sentinel down-after-milliseconds {MASTER} 500\n"
        f"sentinel failover-timeout {MASTER} 3000\n" + (f"sentinel auth-pass {MASTER} {password}\n" if password else "")
    )
    command = [str(BINARIES["valkey"]), str(config), "--sentinel"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    watch = Watch(port, process)
    try:
        with watch.client() as client:
            until(lambda: _answers(client, knows))
        yield watch
    finally:
        process.kill()
        process.wait()


def _answers(client: redis.Redis, knows: Callable[[redis.Redis], bool]) -> bool:
    try:
        return knows(client)
    except redis.RedisError:
        return False


def knows_master(client: redis.Redis) -> bool:
    """Return whether a Sentinel has heard of its master lately."""
    masters: Any = client.sentinel_masters()
    state = masters[MASTER]
    return not state["is_sdown"] and not state["is_odown"] and not state["is_disconnected"]


def knows_a_replica(client: redis.Redis) -> bool:
    """Return whether a Sentinel could promote another server."""
    return bool(client.sentinel_slaves(MASTER))
