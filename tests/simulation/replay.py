"""Replay simulated operations on real servers: `python -m tests.simulation.replay`.

Each distinct pair of a state and an operation is tried once: of queues, of filters and of start URLs. A difference is a
mistake of the simulation's server, or of a script.
"""

import argparse
import hashlib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from devtools import servers
from devtools.servers import Address
from scrapy_bloom.queue import operations as ops
from scrapy_bloom.storage.stores import MemoryStore
from tests.simulation import further, signatures
from tests.simulation.cases import StartCase, StoreCase
from tests.simulation.crawl import simulate
from tests.simulation.plan import KINDS, plan_for
from tests.support.queue_memory import QueueMemory
from tests.support.queue_replay import QueueCase, frozen, neighbours
from tests.support.replay import Case, replay
from tests.support.start_memory import StartMemory

# Differences that are printed.
_SHOWN = 10


class Recorder:
    """Keeps each distinct pair of state and operation; `met` counts all pairs.

    With each pair it keeps the state with a further operation, since crawls alone seldom reach a script's mistakes.
    """

    def __init__(self) -> None:
        self.met = 0
        self._turn = 0
        self._seen: set[bytes] = set()
        self._cases: list[Case] = []

    def note(self, memory: Any, operation: Any) -> None:
        """Record an operation, and the part of a server that it meets."""
        self.met += 1
        if isinstance(memory, QueueMemory):
            if self._is_new(signatures.of_queue(memory, operation)):
                self._add_queue(frozen(memory), operation)
        elif isinstance(memory, StartMemory):
            case = StartCase.of(memory, operation)
            if self._is_new(signatures.of_start(case)):
                self._add(case, *(each for each in further.of_start(case) if self._is_new(signatures.of_start(each))))
        elif isinstance(memory, MemoryStore):
            its = StoreCase.of(memory, operation)
            if self._is_new(signatures.of_store(its)):
                others = further.of_store(its, self._turn)
                self._add(its, *(each for each in others if self._is_new(signatures.of_store(each))))

    def take(self) -> list[Case]:
        """Return the cases that were not taken yet."""
        cases, self._cases = self._cases, []
        return cases

    def _add_queue(self, state: bytes, operation: ops.QueueOperation) -> None:
        cases = [QueueCase.of(state, operation)]
        for beside, other in neighbours(state, operation, self._turn):
            case = QueueCase.of(beside, other)
            if self._is_new(signatures.of_queue(case.memory, other)):
                cases.append(case)
        self._add(*cases)

    def _add(self, *cases: Case) -> None:
        self._turn += 1
        self._cases += cases

    def _is_new(self, signature: object) -> bool:
        # Of a million signatures two have the same digest with a probability of 2e-12.
        digest = hashlib.blake2b(repr(signature).encode(), digest_size=10).digest()
        if digest in self._seen:
            return False
        self._seen.add(digest)
        return True


def recorded(recorder: Recorder, crawls: int) -> Iterator[list[Case]]:
    """Run so many crawls, of each kind in turn, and yield the new distinct cases of each."""
    for number in range(crawls):
        seed, kind = divmod(number, len(KINDS))
        simulate(plan_for(KINDS[kind], seed), recorder.note)
        yield recorder.take()


def main() -> int:
    """Replay crawls on servers; return 1 if one of them differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.replay", description=main.__doc__)
    parser.add_argument("--crawls", type=int, default=len(KINDS))
    parser.add_argument("--port", type=int, help="server with an empty database 1; by default, servers of its own")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.port:
            addresses = {"server": Address(options.port)}
        else:
            addresses = {kind: stack.enter_context(servers.running(kind)).address for kind in servers.available()}
        clients = {name: stack.enter_context(address.client(db=1)) for name, address in addresses.items()}
        return _replay(clients, options.crawls)


def _replay(clients: dict[str, Any], crawls: int) -> int:
    begin, recorder, kinds, differences = time.monotonic(), Recorder(), Counter[str](), 0
    for cases in recorded(recorder, crawls):
        kinds.update(map(_name_of, cases))
        for name, client in clients.items():
            for _, difference in replay(client, "replay", cases):
                if difference:
                    differences += 1
                    if differences <= _SHOWN:
                        print(f"DIFFERENCE on {name}: {difference}\n", flush=True)
    took = time.monotonic() - begin
    print(
        f"{crawls:,} crawls carried out {recorder.met:,} operations; {kinds.total():,} distinct ones with their states "
        f"were replayed on {', '.join(clients)} in {took:.0f} s: {differences:,} differences"
    )
    print(", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common()))
    return int(differences > 0)


def _name_of(case: Any) -> str:
    operation = case.operation
    return str(operation.script if isinstance(case, StartCase) else type(operation).__name__)


if __name__ == "__main__":
    sys.exit(main())
