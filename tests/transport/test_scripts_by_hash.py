"""Scripts are sent by their hashes to servers that know them, else in full."""

from collections.abc import Iterator

import pytest
import redis

from scrapy_bloom.transport import scripts
from scrapy_bloom.transport.retry import disable_client_retries
from scrapy_bloom.transport.scripts import Script
from tests.support.faults import FaultProxy, Place, proxying
from tests.support.servers import EACH_KIND, Server, running

PUSH = "return redis.call('RPUSH', KEYS[1], ARGV[1])"
FAILING = "redis.call('RPUSH', KEYS[1], 'x') return redis.call('INCR', KEYS[1])"


@pytest.fixture(scope="module", params=EACH_KIND)
def own(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server whose scripts no other test loads."""
    with running(request.param) as server:
        yield server


@pytest.fixture
def proxy(own: Server) -> Iterator[FaultProxy]:
    """A proxy of a server that knows no script yet."""
    with own.client() as admin:
        admin.script_flush()
    with proxying(own.port, "EVAL", "EVALSHA") as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[redis.Redis]:
    """A client over the proxy."""
    with redis.Redis("127.0.0.1", proxy.port) as client:
        yield disable_client_retries(client)


@pytest.fixture
def push(monkeypatch: pytest.MonkeyPatch) -> Script:
    """A script that appends to a list, which shows how often it was executed."""
    return script_of(PUSH, monkeypatch)


def script_of(text: str, monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.setattr(scripts, "_lines_of", lambda _: text)
    return Script("of this test")


def sent(proxy: FaultProxy) -> list[str]:
    """Return the names of the commands that have reached the server, and forget them."""
    names = [command.split(b"\r\n", 3)[2].decode() for command in proxy.done.elements()]
    proxy.done.clear()
    return names


def test_the_text_goes_once(push: Script, client: redis.Redis, proxy: FaultProxy, own: Server, key: str) -> None:
    """A server that does not know a script gets its text in the same call, and executes it once."""
    assert [push.call(client, [key], [number]) for number in range(2)] == [1, 2]
    assert sent(proxy) == ["EVALSHA", "EVAL", "EVALSHA"]
    with own.client() as admin:
        admin.script_flush()
    assert [push.call(client, [key], [number]) for number in range(2)] == [3, 4]
    assert sent(proxy) == ["EVALSHA", "EVAL", "EVALSHA"]


def test_lost_reply(push: Script, client: redis.Redis, proxy: FaultProxy, own: Server, key: str) -> None:
    """A script whose reply is lost is not sent again, neither by its hash nor in full."""
    push.call(client, [key], ["1"])
    proxy.fail(Place.AFTER)
    with pytest.raises(redis.ConnectionError):
        push.call(client, [key], ["2"])
    with own.client() as admin:
        assert admin.lrange(key, 0, -1) == [b"1", b"2"]
        admin.script_flush()
        proxy.fail(None, Place.AFTER)
        with pytest.raises(redis.ConnectionError):
            push.call(client, [key], ["3"])
        assert admin.lrange(key, 0, -1) == [b"1", b"2", b"3"]


def user(own: Server, proxy: FaultProxy, name: str, denied: str) -> redis.Redis:
    """Return a client whose user may use all commands but one."""
    with own.client() as admin:
        admin.acl_setuser(name, enabled=True, passwords=["+x"], keys="*", commands=["+@all", f"-{denied}"])
    return redis.Redis("127.0.0.1", proxy.port, username=name, password="x")  # noqa: S106  # of this test


@pytest.mark.parametrize(("denied", "error"), [("get", "WRONGTYPE"), ("incr", r"permission|can't run")])
def test_errors_of_a_script(
    denied: str, error: str, proxy: FaultProxy, own: Server, key: str, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that fails, or lacks a permission inside, raises, and is not run again."""
    failing = script_of(FAILING, monkeypatch)
    with user(own, proxy, key, denied) as client, own.client() as admin:
        for number in (1, 2):
            with pytest.raises(redis.ResponseError, match=error):
                failing.call(client, [key], [])
            assert admin.llen(key) == number


def test_a_user_who_may_not_use_hashes(push: Script, proxy: FaultProxy, own: Server, key: str) -> None:
    """Where an ACL allows EVAL alone, the text is sent with each call."""
    with user(own, proxy, key, "evalsha") as client:
        assert [push.call(client, [key], [number]) for number in range(2)] == [1, 2]
    assert sent(proxy) == ["EVALSHA", "EVAL"] * 2
