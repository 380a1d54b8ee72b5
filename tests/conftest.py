"""Fixtures: servers that live as long as a test process, and a key prefix for each test."""

import os
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from importlib import metadata
from typing import Any

import hypothesis
import pytest
import redis

from scrapy_bloom.transport.connect import FromUrl, disconnect
from tests.support.in_process import close_clients
from tests.support.kinds import Place, running_kinds
from tests.support.servers import EACH_KIND, KINDS, Server, running
from tests.support.sockets import connections, describe, disconnect_all, open_sockets

# redis-py reads the version of its package for each connection, which takes longer than to connect.
metadata.version = cache(metadata.version)

# A background shell makes the tests, and all processes that they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# CI machines are shared and slow: a slow example is no finding.
hypothesis.settings.register_profile(
    "default", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("default")


@pytest.fixture(autouse=True)
def sockets_are_closed() -> Iterator[None]:
    """Assert that a test leaves no socket open: of a client, of an event loop, or its own."""
    before = open_sockets()
    connections.clear()
    yield
    close_clients()
    if left := open_sockets() - before:
        described = ", ".join(describe(descriptor) for descriptor, _ in left)
        disconnect_all()
        pytest.fail(f"left open: {described}", pytrace=False)


def pytest_configure(config: pytest.Config) -> None:
    """Make warnings errors in the processes that tests start, with the exceptions of these tests."""
    os.environ["PYTHONWARNINGS"] = ",".join(config.getini("filterwarnings"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print why tests were skipped, a line for each reason."""
    skipped = terminalreporter.getreports("skipped")
    for reason, number in Counter(report.longrepr[2] for report in skipped).items():
        terminalreporter.write_line(f"{number} tests were skipped: {reason.removeprefix('Skipped: ')}")


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], Server]]:
    """Return a function that starts the server of a kind at its first use."""
    started: dict[str, Server] = {}
    with ExitStack() as stack:

        def of_kind(kind: str) -> Server:
            if kind not in started:
                started[kind] = stack.enter_context(running(kind))
            return started[kind]

        yield of_kind


@pytest.fixture(params=EACH_KIND)
def server(request: pytest.FixtureRequest, servers: Callable[[str], Server]) -> Server:
    """Each kind of server in turn."""
    return servers(request.param)


@pytest.fixture
def valkey(servers: Callable[[str], Server]) -> Server:
    """Valkey alone, where the kind of server makes no difference."""
    return servers("valkey")


@pytest.fixture
def durable() -> Iterator[Server]:
    """A server of this test's own that keeps all data when it is killed."""
    with running("valkey", "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def key() -> str:
    """A key that no other test has."""
    return f"test:{os.getpid()}:{uuid.uuid4().hex}"


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A plain client of the server."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Place]]:
    """Return a function that starts the servers of a kind of URL at its first use."""
    with running_kinds(tmp_path_factory.mktemp("kinds")) as of_kind:
        yield of_kind


@pytest.fixture
def make_client(
    servers: Callable[[str], Server], places: Callable[[str], Place]
) -> Iterator[Callable[..., redis.Redis]]:
    """Makes clients of a kind of server, or of the kind that a URL names."""
    clients: list[redis.Redis] = []

    def make(kind: str, **options: Any) -> redis.Redis:
        is_url = kind not in KINDS
        clients.append(FromUrl.from_url(places(kind).url, **options) if is_url else servers(kind).client(**options))
        return clients[-1]

    yield make
    for client in clients:
        disconnect(client)
