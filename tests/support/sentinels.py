"""Real Sentinels, which watch a master and its replica."""

import contextlib
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

from tests.support.servers import BINARIES, Server, free_port, running, until_replicated
from tests.support.tls import Certificate
from tests.support.waiting import until

MASTER = "crawl"


class Watch:
    """A Sentinel process."""

    def __init__(self, port: int, process: subprocess.Popen[bytes], **options: Any) -> None:
        self.port = port
        self._process = process
        self._options = options

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
        return redis.Redis(port=self.port, **self._options)


@contextlib.contextmanager
def watching(
    master: Server,
    directory: Path,
    knows: Callable[[redis.Redis], bool],
    password: str | None = None,
    *,
    own_password: str | None = None,
    encrypted: tuple[Certificate, int] | None = None,
) -> Iterator[Watch]:
    """A Sentinel that decides alone.

    The first password is the master's. An encrypted Sentinel reaches the master at its TLS port.
    """
    port = free_port()
    config = directory / f"sentinel-{port}.conf"
    options: dict[str, Any] = {"password": own_password}
    own, kind, master_port = [f"port {port}"], "valkey", master.port
    if own_password:
        own.append(f"requirepass {own_password}")
    if encrypted:
        # The valkey of the wheel has no TLS.
        kind, (certificate, master_port) = "redis", encrypted
        own = ["port 0", "tls-replication yes", *own[1:]]
        given = certificate.options(port)
        own += [f"{name.removeprefix('--')} {value}" for name, value in zip(given[::2], given[1::2], strict=True)]
        options |= {"ssl": True, "ssl_ca_certs": str(certificate.public)}
    config.write_text(
        "\n".join(own) + "\n"
        "bind 127.0.0.1\n"
        f"dir {directory}\n"
        f"sentinel monitor {MASTER} 127.0.0.1 {master_port} 1\n"
        f"sentinel down-after-milliseconds {MASTER} 500\n"
        f"sentinel failover-timeout {MASTER} 3000\n" + (f"sentinel auth-pass {MASTER} {password}\n" if password else "")
    )
    command = [str(BINARIES[kind]), str(config), "--sentinel"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    watch = Watch(port, process, **options)
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


class Pair:
    """A master and its replica, and the Sentinel that watches both."""

    def __init__(self, master: Server, replica: Server, sentinel: int) -> None:
        self.master = master
        self.replica = replica
        self.sentinel = sentinel

    def fail_over(self) -> None:
        """Kill the master, and start it again as a replica of the new one."""
        until_replicated(self.master, self.replica)
        self.master.kill()
        until(lambda: _role(self.replica) == "master")
        self.master, self.replica = self.replica, self.master
        self.replica.start()
        with self.replica.client() as client:
            client.replicaof("127.0.0.1", self.master.port)
        until_replicated(self.master, self.replica)
        until(self._is_known)

    def _is_known(self) -> bool:
        with redis.Redis(port=self.sentinel) as client:
            replicas: Any = client.sentinel_slaves(MASTER)
            return any(each["port"] == self.replica.port and not each["is_sdown"] for each in replicas)


def _role(server: Server) -> str:
    with server.client() as client:
        return str(client.info("replication")["role"])


@contextlib.contextmanager
def watched_pair(kind: str, directory: Path) -> Iterator[Pair]:
    """Run a pair and its Sentinel in the block."""
    at_once = ("--repl-diskless-sync-delay", "0")
    with (
        running(kind, *at_once) as master,
        running(kind, *at_once, "--replicaof", "127.0.0.1", f"{master.port}") as replica,
    ):
        until_replicated(master, replica)
        with watching(master, directory, knows_a_replica) as watch:
            yield Pair(master, replica, watch.port)
