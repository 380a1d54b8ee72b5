"""Servers for tests: a test of a kind that is not installed is skipped, and fails where CI=true."""

import os
from contextlib import AbstractContextManager

import pytest
import redis

from devtools import servers
from devtools.servers import BINARIES, KINDS, Server, free_port
from tests.support.selection import long_unless
from tests.support.waiting import until

__all__ = ["BINARIES", "EACH_KIND", "KINDS", "Server", "expires_at", "free_port", "running", "until_replicated"]

# As parameters. `make test` tries Redis by the filter's own tests and the replays; only `make test-all` by the others.
EACH_KIND = long_unless(lambda kind: kind == "valkey", KINDS)


def running(kind: str, *options: str) -> AbstractContextManager[Server]:
    """A server for as long as the block lasts."""
    if kind not in servers.available():
        reason = f"no {kind} server on this machine: install Debian's redis-server"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return servers.running(kind, *options)


def expires_at(client: redis.Redis, name: str) -> int:
    """Return a key's expiry as Unix time in milliseconds, or 0; Redis 6 gives it to 10 seconds only."""
    try:
        return max(int(client.pexpiretime(name)), 0)
    except redis.ResponseError:
        left, (seconds, _) = int(client.pttl(name)), client.time()
        return max(round(left + seconds * 1000, -4), 0) if left >= 0 else 0


def until_replicated(master: Server, replica: Server) -> None:
    """Wait until a replica has all data that its master has now."""
    with master.client() as client, replica.client() as other:
        written = client.info("replication")["master_repl_offset"]
        until(lambda: _received(other) >= written)


def _received(replica: redis.Redis) -> int:
    state = replica.info("replication")
    return int(state["slave_repl_offset"]) if state.get("master_link_status") == "up" else -1
