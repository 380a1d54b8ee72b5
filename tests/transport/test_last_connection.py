"""Threads that share too few connections take turns; a busy pool is no outage."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from devtools.waiting import until
from scrapy_bloom.transport.client import transport_for
from scrapy_bloom.transport.commands import Command
from tests.support.servers import Server


class Wrapped(redis.Redis):
    """A client whose commands pass through user code."""

    def execute_command(self, *args: object, **kwargs: object) -> object:
        return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]


@pytest.fixture(params=[redis.Redis, Wrapped])
def alone(request: pytest.FixtureRequest, valkey: Server) -> Iterator[Any]:
    """A client with one connection."""
    with request.param(host="127.0.0.1", port=valkey.port, max_connections=1) as client:
        yield client


def blocked(client: redis.Redis, key: str) -> bool:
    """Return whether a client waits for a list."""
    return int(client.info("clients")["blocked_clients"]) > 0 and not client.exists(key)


def test_turns(alone: Any, valkey: Server, key: str) -> None:
    """A command waits for the end of another thread's."""
    said: list[Any] = []
    slow = threading.Thread(target=lambda: said.append(transport_for(alone).execute([Command("BLPOP", key, 60)])))
    with valkey.client() as client:
        slow.start()
        until(lambda: blocked(client, key))
        release = threading.Timer(0.1, client.rpush, (key, "x"))
        release.start()
        assert transport_for(alone).execute([Command("ECHO", "y")]) == [b"y"]
        slow.join()
        release.join()
    ((popped,),) = said
    assert [*popped] == [key.encode(), b"x"]


def test_turn_that_never_comes(alone: Any, valkey: Server, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command waits for a bounded time, and is not sent in part."""
    monkeypatch.setattr("scrapy_bloom.transport.connections._MAX_TURN_SECONDS", 0.05)
    slow = threading.Thread(target=lambda: transport_for(alone).execute([Command("BLPOP", key, 60)]))
    with valkey.client() as client:
        slow.start()
        until(lambda: blocked(client, key))
        with pytest.raises(redis.ConnectionError, match="Too many connections"):
            transport_for(alone).execute([Command("RPUSH", key, "never")])
        assert not client.exists(key)
        client.rpush(key, "x")
        slow.join()
