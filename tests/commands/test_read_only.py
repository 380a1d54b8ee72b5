"""Reading a filter on a server that takes no writes: a replica or a full server."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from scrapy_bloom import BloomFilter
from tests.support import command
from tests.support.servers import KINDS, Server, running
from tests.support.waiting import until

KEY = "pages"
KNOWN = [f"https://example.com/{number}" for number in range(3000)]
FORGOTTEN = "https://example.com/forgotten"
# More than one layer.
OPTIONS: dict[str, Any] = {"capacity": 100, "error_rate": 1e-9, "retry_timeout": 0.0}


@contextlib.contextmanager
def replica_of(server: Server, kind: str) -> Iterator[Server]:
    with running(kind, "--replicaof", "127.0.0.1", str(server.port)) as replica, replica.client() as client:
        until(lambda: client.info("replication")["master_link_status"] == "up")
        yield replica


@pytest.fixture(scope="module", params=[(state, kind) for state in ("replica", "full") for kind in KINDS], ids="-".join)
def read_only(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that holds a filter and takes no writes."""
    state, kind = request.param
    with running(kind, "--repl-diskless-sync-delay", "0") as server, server.client() as client:
        bloom = BloomFilter(client, KEY, **OPTIONS)
        bloom.add_many([*KNOWN, FORGOTTEN])
        assert bloom.forget(FORGOTTEN)
        if state == "replica":
            with replica_of(server, kind) as replica:
                yield replica
        else:
            client.config_set("maxmemory", 1)
            yield server


def test_check(read_only: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """`scrapy bloom check` and `info` answer on a server that refuses writes."""
    place = ("--key", KEY, "--redis-url", read_only.url)
    assert command.call("check", *place, KNOWN[0], KNOWN[-1]) == 0
    assert command.call("check", *place, "https://example.com/new") == 1
    assert command.call("check", *place, FORGOTTEN) == 1
    assert command.call("info", *place) == 0
    printed = capsys.readouterr()
    assert ("forgotten: it would be new" in printed.out, "1 item to be new again" in printed.out) == (True, True)
    assert printed.err == ""


def test_forget(read_only: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """`scrapy bloom forget` reports the server's refusal, and no page as forgotten."""
    place = ("--key", KEY, "--redis-url", read_only.url, "-s", "BLOOMFILTER_RETRY_TIMEOUT=0")
    assert command.call("forget", *place, KNOWN[0]) == 2
    printed = capsys.readouterr()
    assert (printed.out, "Redis refused a command" in printed.err) == ("", True)
    assert command.call("check", *place, KNOWN[0]) == 0


@pytest.mark.parametrize("read_only", [("replica", kind) for kind in KINDS], ids="-".join, indirect=True)
def test_a_replica_is_not_away(read_only: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A writing action reports a replica as such, not as unreachable."""
    assert command.call("clear", "--key", KEY, "--redis-url", read_only.url, "--yes") == 2
    said = capsys.readouterr().err
    assert "it is a replica" in said
    assert "unreachable" not in said
    assert command.call("check", "--key", KEY, "--redis-url", read_only.url, KNOWN[0]) == 0
