"""Fixtures: servers that live as long as a test process, and a key prefix for each test."""

import os
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import wraps
from typing import Any

import hypothesis
import pytest
import redis

from scrapy_bloom import BloomFilter, MemoryBloomFilter
from tests.support.make_filter import MakeFilter
from tests.support.servers import KINDS, Server, running

# A background shell makes the tests, and all processes that they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# CI machines are shared and slow: a slow example is no finding.
hypothesis.settings.register_profile(
    "default", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("default")

# Every way to reach the same filter: the twin, both servers, both protocols, both kinds of replies.
CONNECTIONS = {
    "memory": None,
    "valkey": ("valkey", {}),
    "valkey-resp3": ("valkey", {"protocol": 3}),
    "valkey-decoded": ("valkey", {"decode_responses": True}),
    "redis": ("redis", {"protocol": 2}),
    "redis-resp3-decoded": ("redis", {"protocol": 3, "decode_responses": True}),
}


# The garbage collector may finalize the socket of an unclosed connection first: a ResourceWarning in some later test.
_pools: list[redis.ConnectionPool] = []
_make_pool = redis.ConnectionPool.__init__


@wraps(_make_pool)
def _make_noted_pool(pool: redis.ConnectionPool, *args: Any, **kwargs: Any) -> None:
    _make_pool(pool, *args, **kwargs)
    _pools.append(pool)


redis.ConnectionPool.__init__ = _make_noted_pool  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def pools_are_closed() -> Iterator[None]:
    """Close the connections of all clients that a test makes."""
    _pools.clear()  # the pools of modules and sessions are theirs to close
    yield
    for pool in _pools:
        pool.disconnect()
    _pools.clear()


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


@pytest.fixture(params=KINDS)
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


@pytest.fixture(params=CONNECTIONS)
def make_filter(request: pytest.FixtureRequest, servers: Callable[[str], Server], key: str) -> Iterator[MakeFilter]:
    """Makes filters that share only their data; there is a single filter in memory."""
    connection = CONNECTIONS[request.param]
    if connection is None:
        yield MemoryBloomFilter
        return
    kind, options = connection
    clients: list[redis.Redis] = []

    def make(**kwargs: Any) -> BloomFilter:
        clients.append(servers(kind).client(**options))
        return BloomFilter(clients[-1], key, **kwargs)

    yield make
    for client in clients:
        client.close()
