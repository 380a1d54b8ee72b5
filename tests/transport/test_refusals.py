"""Permanent refusals: each is an immediate error with advice and without a password."""

import logging
from collections.abc import Callable, Iterator

import pytest
import redis
from scrapy import Request
from scrapy.settings import Settings

from scrapy_bloom import (
    BloomFilter,
    BloomRFPDupeFilter,
    RefusedError,
    UnavailableError,
)
from scrapy_bloom.transport import held
from tests.support.retries import (
    PASSWORD,
    said,
    told,
)
from tests.support.servers import EACH_KIND, Server, running


@pytest.fixture(params=EACH_KIND)
def guarded(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of this test's own with a password."""
    with running(request.param, "--requirepass", PASSWORD) as server:
        yield server


def assert_refused_at_once(error: RefusedError, advice: str, caplog: pytest.LogCaptureFixture) -> None:
    """Assert that the error came without a wait, with advice, and that no password is shown."""
    assert advice in str(error)
    assert said(caplog, "Redis is unreachable") == []
    assert PASSWORD not in told(error) + caplog.text


@pytest.mark.parametrize("password", [f"{PASSWORD}-mistaken", None])
def test_refused_at_the_start(
    password: str | None, guarded: Server, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong password, or none, is an immediate error with advice."""
    caplog.set_level(logging.DEBUG)
    with guarded.client(password=password) as client, pytest.raises(RefusedError) as caught:
        BloomFilter(client, key, capacity=1000)
    assert_refused_at_once(caught.value, "password of the client", caplog)


def lock_out(admin: redis.Redis) -> None:
    """Change the password for all clients."""
    admin.config_set("requirepass", f"{PASSWORD}-changed")
    admin.client_kill_filter(_type="normal", skipme=True)


def forbid(admin: redis.Redis) -> None:
    """Deny HSET to all users."""
    admin.acl_setuser("default", enabled=True, commands=["-hset"], reset=False)


def fill_up(admin: redis.Redis) -> None:
    """Set maxmemory below the memory in use."""
    admin.config_set("maxmemory", 1)


TURNS: dict[str, tuple[Callable[[redis.Redis], None], str]] = {
    "password changed": (lock_out, "password of the client"),
    "permission taken": (forbid, "allow EVAL, "),
    "memory full": (fill_up, "maxmemory"),
}


@pytest.mark.parametrize("turn", TURNS)
def test_refused_in_the_middle(
    turn: str, guarded: Server, key: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that starts to refuse is an immediate error, for additions, and the start of others."""
    caplog.set_level(logging.DEBUG)
    # An idle connection is polled: the server that has closed it is there.
    monkeypatch.setattr(held, "_POLL_SECONDS", 0.0)
    refuse, advice = TURNS[turn]
    with guarded.client(password=PASSWORD) as admin, guarded.client(password=PASSWORD) as client:
        bloom = BloomFilter(client, key, capacity=1000)
        bloom.add("x")
        refuse(admin)
        calls: list[Callable[[], object]] = [lambda: bloom.add("a"), lambda: BloomFilter(client, f"{key}:other")]
        for call in calls:
            with pytest.raises(RefusedError) as caught:
                call()
            assert_refused_at_once(caught.value, advice, caplog)
    assert PASSWORD not in repr(bloom)


def test_password_of_a_server_that_is_away(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """No password is shown while a server is waited for, nor after the timeout."""
    caplog.set_level(logging.DEBUG)
    with running("valkey", "--requirepass", PASSWORD) as server:
        settings = {
            "REDIS_URL": server.url.replace("//", f"//:{PASSWORD}@"),
            "SCHEDULER_DUPEFILTER_KEY": key,
            "BLOOMFILTER_CAPACITY": 1000,
            "BLOOMFILTER_RETRY_TIMEOUT": 0.2,
        }
        dupefilter = BloomRFPDupeFilter.from_settings(Settings(settings))
        server.kill()
        with pytest.raises(UnavailableError) as caught:
            dupefilter.request_seen(Request("http://shop.test/1"))
        assert said(caplog, "Redis is unreachable")
        shown = (dupefilter, dupefilter.filter, dupefilter.filter.parameters, dupefilter.config)
        assert PASSWORD not in told(caught.value) + caplog.text + "".join(map(repr, shown))
