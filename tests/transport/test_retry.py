"""A filter waits for its unreachable server, and logs it once.

The faults are real: servers that are killed, loading, replicas, busy, full, silent, or back in an older state.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from scrapy_bloom import BloomFilter, UnavailableError
from tests.support.dupefilters import build, page
from tests.support.retries import USES, assert_waited_once, filter_at, said, when_away
from tests.support.servers import EACH_KIND, Server, running
from tests.support.waiting import until

# Redis unreachable, and back.


@contextmanager
def durable(kind: str, *options: str) -> Iterator[Server]:
    """A server that keeps all data when it is killed."""
    with running(kind, "--appendonly", "yes", "--appendfsync", "always", *options) as server:
        yield server


@pytest.mark.parametrize("kind", EACH_KIND)
def test_killed_and_back(kind: str, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """An addition waits until a killed server is back, and all answers are right."""
    with durable(kind) as server, filter_at(server.port, key, cache_size=0) as bloom:
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


def test_not_up_yet(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A filter opened before its server is up waits for it, but not for longer than the retry timeout."""
    with running("valkey") as server:
        server.kill()
        with (
            pytest.raises(UnavailableError, match=r"\(BLOOMFILTER_RETRY_TIMEOUT\) = 0\.2"),
            filter_at(server.port, key, retry_timeout=0.2),
        ):
            pass
        caplog.clear()
        with when_away(server.start), filter_at(server.port, key) as bloom:
            assert bloom.add("a")
        assert_waited_once(caplog)


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


def test_loading(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A loading server is unreachable; it has executed no command."""
    # Microseconds per command while loading; after each 1,024 the server accepts connections.
    with durable("valkey", "--key-load-delay", "100") as server, ExitStack() as stack:
        client = stack.enter_context(server.client(retry=Retry(NoBackoff(), 0)))
        with filter_at(server.port, key, cache_size=0) as bloom:
            bloom.add("a")
            pipeline = client.pipeline(transaction=False)
            for number in range(12_000):
                pipeline.set(f"{key}:ballast:{number}", number)
            pipeline.execute()
            server.kill()
            starting = threading.Thread(target=server.start)
            starting.start()
            until(lambda: is_loading(client))
            assert not bloom.add("a")
            assert bloom.add("b")
            starting.join()
        assert_waited_once(caplog, "BusyLoadingError")


def is_loading(client: redis.Redis) -> bool:
    """Return whether a server is up, and still loading."""
    try:
        client.ping()
    except redis.exceptions.BusyLoadingError:
        return True
    except redis.ConnectionError:
        return False
    raise AssertionError("the server has loaded before anyone could ask it")


def test_masterdown(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A replica that has lost its master and refuses to serve stale data counts as unreachable."""
    with running("valkey") as server, server.client() as client:
        client.config_set("replica-serve-stale-data", "no")
        client.config_set("replica-read-only", "no")
        with filter_at(server.port, key, cache_size=0) as bloom:
            bloom.add("a")
            # Its master does not answer, so the replica keeps its data.
            with socket.create_server(("127.0.0.1", 0)) as silent:
                client.replicaof("127.0.0.1", silent.getsockname()[1])
                with when_away(lambda: client.replicaof("NO", "ONE")):
                    assert not bloom.add("a")
            assert bloom.add("b")
        assert_waited_once(caplog, "MasterDownError")


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

        def kill() -> None:
            with contextlib.suppress(redis.ResponseError):  # the script is dead already
                admin.script_kill()

        script = threading.Thread(target=run)
        script.start()
        try:
            until(lambda: is_busy(server))
            yield kill
        finally:
            kill()
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
            if path.is_dir():
                path.rmdir()
                admin.save()

        admin.bgsave()
        until(lambda: admin.info("persistence")["rdb_last_bgsave_status"] == "err")
        try:
            yield save
        finally:
            save()


@contextlib.contextmanager
def without_replicas(server: Server) -> Iterator[Callable[[], object]]:
    """It must have a replica, and has none."""
    with server.client() as admin:
        admin.config_set("min-replicas-to-write", 1)

        def give_up() -> None:
            admin.config_set("min-replicas-to-write", 0)

        try:
            yield give_up
        finally:
            give_up()


STATES: dict[str, tuple[State, str]] = {
    "busy": (busy, "BUSY"),
    "failing to save": (failing_to_save, "MISCONF"),
    "without replicas": (without_replicas, "NOREPLICAS"),
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
            assert not bloom.add("a")
        assert bloom.add("b")
    assert_waited_once(caplog, code)


def test_one_client_too_many(own: Server, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server without free client slots is waited for, and has executed no command."""
    with own.client() as admin, filter_at(own.port, key, cache_size=0) as bloom:
        bloom.add("a")
        admin.client_kill_filter(_type="normal", skipme=True)
        until(lambda: len(admin.client_list()) == 1)
        most = admin.config_get("maxclients")["maxclients"]
        admin.config_set("maxclients", 1)
        with when_away(lambda: admin.config_set("maxclients", most)):
            assert not bloom.add("a")
    assert_waited_once(caplog, "max number of clients")


def test_a_busy_server_that_stays_so(own: Server, key: str) -> None:
    """The error after a refusal past the timeout quotes the refusal."""
    with (
        filter_at(own.port, key, retry_timeout=0.2) as bloom,
        busy(own),
        pytest.raises(UnavailableError, match=r"RETRY_TIMEOUT\) = 0\.2: .*BUSY"),
    ):
        bloom.add("a")


# A server returns to an older state, as from a snapshot. The filter's id is the same in both states: the caller's
# number shows the rollback.


def test_under_scrapy_redis(key: str) -> None:
    """Under scrapy-redis's scheduler lost pages are new again, cached ones included; others stay seen."""
    with running("valkey") as server, server.client() as client:
        dupefilter = build(server, key)
        dupefilter.request_seen(page(0))
        client.save()
        assert not any(dupefilter.request_seen(page(number)) for number in range(1, 50))
        server.kill()
        server.start()
        assert not dupefilter.request_seen(page(50))
        assert not any(dupefilter.request_seen(page(number)) for number in range(1, 50))
        assert all(dupefilter.request_seen(page(number)) for number in range(51))
