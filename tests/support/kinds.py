"""A server of each kind that a URL can name, for queues and filters."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import redis

from tests.support.clusters import running_cluster
from tests.support.sentinels import MASTER, knows_master, watching
from tests.support.servers import free_port, running
from tests.support.tls import make_certificate
from tests.support.waiting import until

PASSWORD, SENTINELS_PASSWORD = "pa55/of:the@master", "pa55-of-the-sentinel"  # of servers of a test
_QUOTED = "pa55%2Fof%3Athe%40master"

Client = Callable[[], Any]


class Place(NamedTuple):
    """A URL, and how to make a plain client of the same data."""

    url: str
    client: Client


@contextmanager
def _redis(_: Path) -> Iterator[Place]:
    with running("valkey") as server:
        yield Place(f"redis://127.0.0.1:{server.port}/1", lambda: server.client(db=1))


@contextmanager
def _unix(directory: Path) -> Iterator[Place]:
    path = str(directory / "socket")
    with running("valkey", "--unixsocket", path, "--requirepass", PASSWORD):
        url = f"unix://:{_QUOTED}@{path}?db=2"
        yield Place(url, lambda: redis.Redis(unix_socket_path=path, db=2, password=PASSWORD))


@contextmanager
def _tls(directory: Path) -> Iterator[Place]:
    certificate, port = make_certificate(directory), free_port()
    with running("redis", *certificate.options(port), "--requirepass", PASSWORD) as server:
        url = f"rediss://:{_QUOTED}@127.0.0.1:{port}?ssl_ca_certs={certificate.public}"
        yield Place(url, lambda: server.client(password=PASSWORD))


@contextmanager
def _sentinel(directory: Path) -> Iterator[Place]:
    with (
        running("valkey", "--requirepass", PASSWORD) as master,
        watching(master, directory, knows_master, PASSWORD, own_password=SENTINELS_PASSWORD) as watch,
    ):
        hosts = f"127.0.0.1:{free_port()},127.0.0.1:{watch.port}"
        url = f"redis+sentinel://:{_QUOTED}@{hosts}/{MASTER}/3?sentinel_password={SENTINELS_PASSWORD}"
        yield Place(url, lambda: master.client(db=3, password=PASSWORD))


@contextmanager
def _tls_sentinel(directory: Path) -> Iterator[Place]:
    certificate, port = make_certificate(directory), free_port()
    with (
        running("redis", *certificate.options(port), "--requirepass", PASSWORD) as master,
        watching(
            master, directory, knows_master, PASSWORD, own_password=SENTINELS_PASSWORD, encrypted=(certificate, port)
        ) as watch,
    ):
        options = f"ssl_ca_certs={certificate.public}&sentinel_password={SENTINELS_PASSWORD}"
        url = f"rediss+sentinel://:{_QUOTED}@127.0.0.1:{watch.port}/{MASTER}?{options}"
        yield Place(url, lambda: master.client(password=PASSWORD))


@contextmanager
def _cluster(_: Path) -> Iterator[Place]:
    with running_cluster(2) as nodes:
        for node in nodes:
            with node.client() as client:
                client.acl_setuser("default", enabled=True, passwords=[f"+{PASSWORD}"], reset_passwords=False)
                client.config_set("masterauth", PASSWORD)
        hosts = f"127.0.0.1:{free_port()},127.0.0.1:{nodes[1].port}"
        url = f"redis+cluster://:{_QUOTED}@{hosts}"
        yield Place(url, lambda: redis.RedisCluster(host="127.0.0.1", port=nodes[0].port, password=PASSWORD))


@contextmanager
def _tls_cluster(directory: Path) -> Iterator[Place]:
    certificate, port = make_certificate(directory), free_port()
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()), "--tls-cluster", "yes")
    with running("redis", *options, *certificate.options(port)) as server:
        with server.client() as client:
            client.cluster("addslotsrange", 0, 16383)
            until(lambda: client.cluster("info")["cluster_state"] == "ok")
        url = f"rediss+cluster://127.0.0.1:{port}/0?ssl_ca_certs={certificate.public}"
        yield Place(url, lambda: redis.RedisCluster(host="127.0.0.1", port=server.port))


KINDS = {
    "redis": _redis,
    "rediss": _tls,
    "unix": _unix,
    "redis+sentinel": _sentinel,
    "rediss+sentinel": _tls_sentinel,
    "redis+cluster": _cluster,
    "rediss+cluster": _tls_cluster,
}


@contextmanager
def running_kinds(directory: Path) -> Iterator[Callable[[str], Place]]:
    """Return a function that starts the servers of a kind at its first use."""
    started: dict[str, Place] = {}
    with ExitStack() as stack:

        def of(kind: str) -> Place:
            if kind not in started:
                own = directory / kind.replace("+", "-")  # a plus sign is a space in a query
                own.mkdir()
                started[kind] = stack.enter_context(KINDS[kind](own))
            return started[kind]

        yield of
