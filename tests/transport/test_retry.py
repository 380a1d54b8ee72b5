"""A filter waits for its unreachable server, and logs it once.

The faults are real: servers that are killed, busy, without a disk, replicas or a master, or full of clients.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from scrapy_bloom import BloomFilter, UnavailableError
from tests.support.retries import USES, assert_waited_once, filter_at, said, when_away
from tests.support.servers import EACH_KIND, Server, running
from tests.support.waiting import until

# Redis unreachable, and back.


def test_killed_and_back(durable: Server, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """An addition waits until a killed server is back, and all answers are right."""
    server = durable
    with filter_at(server.port, key, cache_size=0) as bloom:
        bloom.add_many(["a", "b"])
        server.kill()
        with when_away(server.start):
            assert bloom.add("c")
        assert_waited_once(caplog)
        assert bloom.add_many(["a", "b", "c", "d"]) == [False, False, False, True]
        caplog.clear()
        server.kill()
        with when_away(server.start):
            assert bloom.add_many(["e", "f"]) == [True, True]
        assert_waited_once(caplog)
        assert not any(map(bloom.add, "abcdef"))
        assert len(caplog.records) == 2


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_away_for_too_long(use: Callable[[BloomFilter], object], key: str, caplog: pytest.LogCaptureFixture) -> None:
    """After the retry timeout the error names the setting and its value."""
    with running("valkey") as server, filter_at(server.port, key, retry_timeout=0.3) as bloom:
        server.kill()
        begin = time.monotonic()
        with pytest.raises(UnavailableError, match=r"\(BLOOMFILTER_RETRY_TIMEOUT\) = 0\.3"):
            use(bloom)
        assert time.monotonic() - begin >= 0.3
        assert len(said(caplog, "Redis is unreachable")) == 1
        assert said(caplog, "Redis is back") == []
        server.start()
        use(bloom)


# Away, as the server says itself.


# A reachable server that cannot execute a command now is waited for, like an unreachable one.


State = Callable[[Server], contextlib.AbstractContextManager[Callable[[], object]]]
"""Brings a server into a state in the block; yields a function that ends it early."""


@contextlib.contextmanager
def busy(server: Server) -> Iterator[Callable[[], object]]:
    """A foreign script that never ends."""
    with server.client() as admin, server.client() as slow:
        # Milliseconds until it answers others BUSY. Valkey accepts this name, too.
        admin.config_set("lua-time-limit", 1)

        def run() -> None:
            with contextlib.suppress(redis.RedisError):
                slow.eval("while true do end", 0)

        script = threading.Thread(target=run)
        script.start()
        until(lambda: is_busy(server))
        yield admin.script_kill
        script.join()


def is_busy(server: Server) -> bool:
    """Return whether a server refuses all commands."""
    with server.client() as client:
        try:
            return not client.ping()
        except redis.ResponseError as error:
            return str(error).startswith("BUSY")


@contextlib.contextmanager
def failing_to_save(server: Server) -> Iterator[Callable[[], object]]:
    """A directory has the name of its snapshot; it refuses writes until a snapshot succeeds."""
    with server.client() as admin:
        admin.config_set("save", "3600 1")
        path = Path(admin.config_get("dir")["dir"], admin.config_get("dbfilename")["dbfilename"])
        path.mkdir()

        def save() -> None:
            path.rmdir()
            admin.save()

        admin.bgsave()
        until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err")
        yield save


@contextlib.contextmanager
def without_replicas(server: Server) -> Iterator[Callable[[], object]]:
    """It must have a replica, and has none."""
    with server.client() as admin:
        admin.config_set("min-replicas-to-write", 1)
        yield lambda: admin.config_set("min-replicas-to-write", 0)


@contextlib.contextmanager
def without_a_master(server: Server) -> Iterator[Callable[[], object]]:
    """A replica that has lost its master, which does not answer, and refuses to serve stale data."""
    with server.client() as admin, socket.create_server(("127.0.0.1", 0)) as silent:
        admin.config_set("replica-serve-stale-data", "no")
        admin.config_set("replica-read-only", "no")
        admin.replicaof("127.0.0.1", silent.getsockname()[1])
        yield lambda: admin.replicaof("NO", "ONE")


@contextlib.contextmanager
def with_too_many_clients(server: Server) -> Iterator[Callable[[], object]]:
    """A new client finds no place."""
    with server.client() as admin:
        admin.client_kill_filter(_type="normal", skipme=True)
        until(lambda: len(admin.client_list()) == 1)
        most = admin.config_get("maxclients")["maxclients"]
        admin.config_set("maxclients", 1)
        yield lambda: admin.config_set("maxclients", most)


STATES: dict[str, tuple[State, str]] = {
    "busy": (busy, "BUSY"),
    "failing to save": (failing_to_save, "MISCONF"),
    "without replicas": (without_replicas, "NOREPLICAS"),
    "without a master": (without_a_master, "MasterDownError"),
    # It may hang up before its words are read.
    "with too many clients": (with_too_many_clients, "ConnectionError"),
}


@pytest.fixture(params=EACH_KIND)
def own(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of this test's own."""
    with running(request.param) as server:
        yield server


@pytest.mark.parametrize("state", STATES)
def test_an_addition_waits(own: Server, state: str, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A refused addition waits; the command was not executed before."""
    bring, code = STATES[state]
    with filter_at(own.port, key, cache_size=0) as bloom:
        bloom.add("a")
        with bring(own) as end, when_away(end):
            assert bloom.add("b")
        assert not bloom.add("b")
    assert_waited_once(caplog, code)
