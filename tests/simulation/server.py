"""The server of a simulation: its data in memory, and a network and faults drawn by a seed."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from redis import exceptions

from scrapy_bloom.storage.operation import delete_expired
from scrapy_bloom.storage.stores import MemoryStore
from tests.simulation.clock import BEGIN, Hub, Owner
from tests.simulation.plan import Link
from tests.support.queue_memory import QueueMemory, Registration
from tests.support.start_memory import StartMemory

Step = Callable[[], Any]
Before = Callable[[Any, Any], None]


class TimedQueue(QueueMemory):
    """A queue whose heartbeats have the server's time, as the scripts write them."""

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self._hub = hub

    def __deepcopy__(self, memo: dict[int, Any]) -> "TimedQueue":
        copied = TimedQueue(self._hub)
        vars(copied).update(copy.deepcopy({name: part for name, part in vars(self).items() if name != "_hub"}, memo))
        return copied

    def described(self, worker: str) -> str:
        """Return a worker, and whether it closes the queue."""
        found = self.find(worker)
        return f"{worker} (closes it)" if found is not None and found.is_closing else worker

    def record(self, worker: str, registration: Registration) -> None:
        before = self.find(worker)
        if before is None or registration.beats != before.beats:
            now = int((BEGIN + self._hub.now) * 1000)
            registration = replace(registration, beats=max(registration.beats, now))
        super().record(worker, registration)


class Data:
    """All data of a server."""

    def __init__(self, hub: Hub) -> None:
        self.queues: dict[str, TimedQueue] = {}
        self.start_urls: dict[str, StartMemory] = {}
        self.filters = MemoryStore(lambda: BEGIN + hub.now)

    def parts(self) -> tuple[Any, ...]:
        """Return the parts of a snapshot."""
        return self.queues, self.start_urls, *self._of_filters()

    def _of_filters(self) -> tuple[Any, ...]:
        return self.filters.hashes, self.filters.strings, self.filters.expiries

    def load(self, parts: tuple[Any, ...]) -> None:
        """Load a snapshot."""
        self.queues, self.start_urls, hashes, strings, expiries = copy.deepcopy(parts)
        self.filters.hashes, self.filters.strings, self.filters.expiries = hashes, strings, expiries

    def left(self, *, filters: bool) -> dict[str, object]:
        """Return the remaining data by kind; without the filters, where they may stay."""
        found: dict[str, object] = {
            "start URLs": [key for key, urls in self.start_urls.items() if urls.waiting],
            "leased start URLs": [key for key, urls in self.start_urls.items() if urls.leased],
        }
        for name, queue in self.queues.items():
            found[f"queue {name}"] = len(queue.queue)
            found[f"workers of {name}"] = [*queue.workers]
            found[f"leases of {name}"] = {worker: len(held) for worker, held in queue.leases.items() if held}
        if filters:
            found["filters"] = [*self.filters.hashes, *self.filters.strings]
        return {name: what for name, what in found.items() if what}


class Server:
    """Executes the commands of processes, as far as link and faults allow.

    Attributes:
        incarnation: the number of starts, by which a client knows that its connections are new.
        scripts: the texts of the scripts that it knows, by their hashes.
        lost: the number of lost replies and requests.
        before: called with a part of the data, and with the next operation on it.
    """

    def __init__(self, hub: Hub, link: Link, chance: Random) -> None:
        self.data = Data(hub)
        self.incarnation = 1
        self.scripts: dict[str, str] = {}
        self.lost = 0
        self.loses_until = 0.0
        self.down_until = self.hanging_until = self.frozen_until = self.loading_until = self.readonly_until = 0.0
        self.listen: Callable[[Owner, str, Any], None] = lambda *_: None
        self.before: Before = lambda *_: None
        self._hub = hub
        self._link = link
        self._chance = chance

    def round_trip(self, name: str, steps: Sequence[Step], slowness: float = 1.0) -> list[Any]:
        """Execute steps one after another for the current process, which is blocked meanwhile.

        Raises:
            RedisError: the link or the server failed; steps may have been executed, or will be.
        """
        owner, thread = self._hub.thread()
        trip = _Trip(self, steps, lambda reply: self._hub.resume(owner, thread, reply))
        trip.send(self._chance.expovariate(1 / (self._link.latency * slowness)))
        reply = self._hub.block()
        self.listen(owner, name, reply)
        if isinstance(reply, Exception):
            raise reply
        return list(reply)

    def fate(self) -> str:
        """Draw the fate of a round trip."""
        if self._hub.now < self.loses_until and self._chance.random() < self._link.loss:
            self.lost += 1
            return self._chance.choice(["no request", "no reply", "no reply", "late"])
        return "well"

    def start_again(self) -> None:
        """Forget the scripts, and have the next command of each client come over a new connection."""
        self.incarnation += 1
        self.scripts.clear()


class _Trip:
    """One round trip: its first end counts, a reply or a fault."""

    def __init__(self, server: Server, steps: Sequence[Step], answer: Callable[[Any], None]) -> None:
        self._server = server
        self._hub, self._link, self._chance = server._hub, server._link, server._chance
        self._steps = steps
        self._answer = answer
        self._has_ended = False
        self._fate = server.fate()
        # A fault that the client notices at once, or by its timeout.
        self._is_noticed = self._chance.random() < 0.5
        self._number = len(steps)
        if self._fate != "well" and len(steps) > 1 and self._chance.random() < 0.5:
            self._number = self._chance.randrange(len(steps))
        self._replies: list[Any] = []

    def send(self, latency: float) -> None:
        """Send it on its way."""
        hub, timeout = self._hub, self._link.timeout
        self._back = latency
        if self._fate in ("well", "no reply"):
            hub.after(latency, self._arrive)
        elif self._fate == "late":
            hub.after(timeout + self._chance.random() * self._link.lateness, self._arrive)
        elif self._is_noticed:
            hub.after(latency, lambda: self._end(exceptions.ConnectionError("Connection reset by peer")))
        hub.after(timeout, lambda: self._end(exceptions.TimeoutError("Timeout reading from socket")))

    def _end(self, reply: Any) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._server.lost += isinstance(reply, exceptions.TimeoutError) and self._fate == "well"
            self._answer(reply)

    def _arrive(self) -> None:
        server, now = self._server, self._hub.now
        if now < server.frozen_until:  # executed when it resumes
            self._hub.at(server.frozen_until + self._chance.random() * 0.01, self._arrive)
        elif now < server.hanging_until:
            pass
        elif now < server.down_until:
            self._end(exceptions.ConnectionError("Connection refused"))
        elif now < server.loading_until:
            self._end(exceptions.BusyLoadingError("Redis is loading the dataset in memory"))
        elif now < server.readonly_until:
            self._end(exceptions.ReadOnlyError("You can't write against a read only replica."))
        else:
            self._carry_out()

    def _carry_out(self) -> None:
        delete_expired(self._server.data.filters)
        while len(self._replies) < self._number:
            self._replies.append(self._steps[len(self._replies)]())
            if len(self._replies) < self._number and self._chance.random() < self._link.interleaving:
                self._hub.after(self._chance.random() * 0.01, self._carry_out)
                return
        if self._fate == "well":
            self._hub.after(self._back, lambda: self._end(self._replies))
        elif self._fate == "no reply" and self._is_noticed:
            self._hub.after(self._back, lambda: self._end(exceptions.ConnectionError("Connection closed by server.")))
