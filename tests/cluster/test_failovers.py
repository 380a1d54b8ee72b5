"""Processes add the same items to a filter while a Sentinel replaces its master, again and again."""

import contextlib
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.sentinels import MASTER, knows_a_replica, watching
from devtools.servers import until_replicated
from devtools.waiting import until
from scrapy_bloom import FromSentinel
from tests.support.additions import BATCH, PROCESSES, adding
from tests.support.scenario import tell
from tests.support.servers import KINDS, Server, running

ITEMS = 200_000
FAILOVERS = 2
DOWN_AFTER_MILLISECONDS = 2000
# The last batch of each process that the dead master executed, and the batch in doubt.
AT_A_KILL = 2 * PROCESSES * BATCH


class Pair:
    """A master and its replica, and the Sentinel that watches both."""

    def __init__(self, master: Server, replica: Server, sentinel: int) -> None:
        self.master = master
        self.replica = replica
        self.sentinel = sentinel

    def fail_over(self) -> None:
        """Kill the master, and start it again as a replica of the new one."""
        until_replicated(self.master, self.replica)
        self.master.kill()
        until(lambda: _role(self.replica) == "master")
        self.master, self.replica = self.replica, self.master
        self.replica.start()
        with self.replica.client() as client:
            client.replicaof("127.0.0.1", self.master.port)
        until_replicated(self.master, self.replica)
        until(self._is_known)

    def _is_known(self) -> bool:
        with redis.Redis(port=self.sentinel) as client:
            replicas: Any = client.sentinel_slaves(MASTER)
            return any(each["port"] == self.replica.port and not each["is_sdown"] for each in replicas)


def _role(server: Server) -> str:
    with server.client() as client:
        return str(client.info("replication")["role"])


@contextlib.contextmanager
def watched(kind: str, directory: Path) -> Iterator[Pair]:
    """Run a pair and its Sentinel in the block."""
    with contextlib.ExitStack() as stack:
        options = ("--repl-diskless-sync-delay", "0")
        master, replica = (stack.enter_context(running(kind, *options)) for _ in range(2))
        with replica.client() as client:
            client.replicaof("127.0.0.1", master.port)
        until_replicated(master, replica)
        watch = stack.enter_context(watching(master, directory, knows_a_replica))
        with watch.client() as client:
            # A busy machine may keep a server waiting for half a second, which `watching` allows.
            client.sentinel_set(MASTER, "down-after-milliseconds", DOWN_AFTER_MILLISECONDS)
        yield Pair(master, replica, watch.port)


def connect(port: int) -> Any:
    """Make a client of the Sentinel's master."""
    return FromSentinel.from_url(f"redis://127.0.0.1:{port}", service_name=MASTER)


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_kills_at_random(kind: str, seed: int, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each item is new to a process, and few are new to two."""
    moments = sorted(random.Random(seed).sample(range(ITEMS // 10, ITEMS * 3 // 4), FAILOVERS))
    with watched(kind, tmp_path) as pair, adding(partial(connect, pair.sentinel), key, ITEMS) as additions:
        for moment in moments:
            additions.wait_for(moment)
            pair.fail_over()
        outcome = additions.finish()
    tell(capsys, f"Sentinel and {kind}, {FAILOVERS} kills: {outcome}")
    assert outcome.lost == 0
    assert outcome.twice <= FAILOVERS * AT_A_KILL
    assert outcome.slowest.cpu < max(0.25, outcome.slowest.longest / 2)
