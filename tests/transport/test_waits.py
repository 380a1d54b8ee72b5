"""A reachable server that cannot execute a command now is waited for, like an unreachable one."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from devtools.waiting import until
from scrapy_bloom import UnavailableError
from tests.support.retries import assert_waited_once, filter_at, when_away
from tests.support.servers import KINDS, Server, running

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


@pytest.fixture(params=KINDS)
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
