"""A filter waits for its unreachable server, and logs it once.

The faults are real: servers that are killed, loading or replicas. `test_waits` has other states of a server.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from devtools.waiting import until
from scrapy_bloom import BloomFilter, UnavailableError
from tests.support.retries import USES, assert_waited_once, filter_at, said, when_away
from tests.support.servers import KINDS, Server, running

# Redis unreachable, and back.


@contextmanager
def durable(kind: str, *options: str) -> Iterator[Server]:
    """A server that keeps all data when it is killed."""
    with running(kind, "--appendonly", "yes", "--appendfsync", "always", *options) as server:
        yield server


@pytest.mark.parametrize("kind", KINDS)
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
