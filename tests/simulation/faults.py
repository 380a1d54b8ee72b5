"""The faults of a simulated crawl, by its plan."""

import copy
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.simulation.plan import Fault


class Faults:
    """Applies the faults in the plan of a `world`.

    Attributes:
        pending: the number of starts still to come.
    """

    def __init__(self, world: Any) -> None:
        self._world = world
        self._snapshots: dict[int, tuple[Any, ...]] = {}
        self._on_flush: list[Callable[[], None]] = []
        self._on_claim: list[Callable[[Any], None]] = []
        self.pending = 0

    def plan(self) -> None:
        """Schedule each fault at its moment."""
        for fault in self._world.plan.faults:
            self._world.hub.at(fault.at, lambda fault=fault: self._happen(fault))

    def on_flush(self) -> None:
        """Apply the faults planned for a flush to the starter that flushes."""
        while self._on_flush:
            self._on_flush.pop()()

    def on_claim(self, process: Any) -> None:
        """Apply the faults planned for a claim to the process that claims a file."""
        while self._on_claim:
            self._on_claim.pop()(process)

    def _happen(self, fault: Fault) -> None:
        world = self._world
        world.log(f"FAULT {fault}")
        if fault.kind not in ("snapshot", "lossy"):
            # Each process may notice a fault of the server.
            is_of_one = fault.kind in ("stop", "kill", "term")
            world.outcome.hits += 1 if is_of_one else max(1, len(world.alive))
        world.count_copies()
        _KINDS[fault.kind](self, fault, Random(fault.number))
        world.count_copies()

    def _away(self, fault: Fault, _: Random) -> None:
        server, end = self._world.server, self._world.hub.now + fault.seconds
        name = {"refused": "down", "hanging": "hanging", "frozen": "frozen"}.get(fault.kind, fault.kind)
        setattr(server, f"{name}_until", max(getattr(server, f"{name}_until"), end))

    def _lossy(self, fault: Fault, _: Random) -> None:
        self._world.server.loses_until = self._world.hub.now + fault.seconds

    def _stop(self, fault: Fault, chance: Random) -> None:
        if process := self._one(chance):
            self._world.log(f"stopped for {fault.seconds:g} s", process.name)
            process.stop(fault.seconds)

    def _kill(self, _: Fault, chance: Random) -> None:
        if process := self._one(chance):
            process.kill()
            directory = process.directory
            if not self._world.plan.keeps_machines and not self._world.plan.shares_directory:
                self._world.log(f"the machine of {process.name} is lost")
                for path in Path(directory).iterdir():
                    path.unlink()
            self._start_later(process, directory, chance)

    def _kill_at_restore(self, _: Fault, chance: Random) -> None:
        """Kill the next process that claims a file, a little later; its machine stays."""

        def kill(process: Any) -> None:
            if not process.is_dead:
                process.kill()
                self._start_later(process, process.directory, chance)

        seconds = 10 * self._world.plan.link.latency * chance.random()
        self._on_claim.append(lambda process: self._world.hub.after(seconds, lambda: kill(process)))

    def _term(self, _: Fault, chance: Random) -> None:
        if process := self._one(chance):
            self._world.log("SIGTERM", process.name)
            process.terminate()
            self._start_later(process, process.directory if chance.random() < 0.5 else None, chance)

    def _start_later(self, process: Any, directory: str | None, chance: Random) -> None:
        def start() -> None:
            self.pending -= 1
            self._world.start(process.spider_name, directory)

        self.pending += 1
        self._world.hub.after(chance.choice([0.1, 1, 5, 20]), start)

    def _flush(self, fault: Fault, chance: Random) -> None:
        world = self._world
        starter = world.start(world.plan.spiders[0], flush=True)
        if fault.kind == "flush and stop":
            seconds = chance.choice([0.1, 0.5, 2.0, 5.0])
            self._on_flush.append(lambda: starter.stop(seconds))
        elif fault.kind == "flush and kill":
            self._on_flush.append(starter.kill)

    def _snapshot(self, fault: Fault, _: Random) -> None:
        self._snapshots[fault.number] = _copy(self._world.server.data)

    def _lose(self, fault: Fault, _: Random) -> None:
        data = self._world.server.data
        empty: tuple[Any, ...] = ({}, {}, {}, {}, {})
        data.load(self._snapshots.get(fault.number, empty) if fault.kind == "rollback" else empty)
        self._world.has_lost_data = True
        self._world.generation += 1
        self._world.server.start_again()

    def _delete_queue(self, _: Fault, chance: Random) -> None:
        queues = [queue for queue in self._world.server.data.queues.values() if queue.queue]
        if queues:
            chance.choice(queues).queue = {}
            self._world.has_lost_data = True

    def _evict(self, _: Fault, chance: Random) -> None:
        data = self._world.server.data
        filters, choices = data.filters, []
        choices += [(filters.hashes, key) for key in filters.hashes] + [
            (filters.strings, key) for key in filters.strings
        ]
        for queue in data.queues.values():
            choices += [(queue.leases, worker) for worker, held in queue.leases.items() if held]
        if choices:
            place, key = chance.choice(choices)
            self._world.log(f"evicted: {key}")
            place.pop(key)
            filters.expiries.pop(key, None)
            self._world.has_lost_data = True
            self._world.generation += 1

    def _one(self, chance: Random) -> Any:
        alive = self._world.alive
        return chance.choice(alive) if alive else None


_KINDS: dict[str, Callable[[Faults, Fault, Random], None]] = {
    **dict.fromkeys(("refused", "hanging", "frozen", "loading", "readonly"), Faults._away),
    **dict.fromkeys(("flush", "flush and stop", "flush and kill"), Faults._flush),
    **dict.fromkeys(("data loss", "rollback"), Faults._lose),
    "lossy": Faults._lossy,
    "stop": Faults._stop,
    "kill": Faults._kill,
    "kill at restore": Faults._kill_at_restore,
    "term": Faults._term,
    "snapshot": Faults._snapshot,
    "delete queue": Faults._delete_queue,
    "evict": Faults._evict,
}


def _copy(data: Any) -> tuple[Any, ...]:
    return copy.deepcopy(data.parts())
