"""Virtual time: a heap of events, and processes whose blocking code runs in greenlets.

Code that would wait for a socket, an Event or `sleep` switches to the hub, which runs the next event. So a worker
really blocks while others act, and can be stopped or killed between any two of its round trips.
"""

import heapq
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from greenlet import GreenletExit, getcurrent, greenlet

from scrapy_bloom._runtime import Runtime

# Unix time at which each simulation begins, in seconds.
BEGIN = 1.7e9
# This many events at one moment are taken for an endless loop.
_MAX_EVENTS_AT_ONCE = 20_000


class Owner(Protocol):
    """A simulated process, as its clock sees it."""

    name: str
    is_dead: bool
    stopped_until: float

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Have the reactor of the process call a function."""

    def crash(self, error: BaseException) -> None:
        """End by an uncaught error."""


class BusyLoopError(Exception):
    """Raised when virtual time stands still."""


class Hub:
    """The virtual clock; `now` is in seconds since the start."""

    def __init__(self) -> None:
        self.now = 0.0
        self.current: Owner | None = None
        self._greenlet = getcurrent()
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._number = 0
        self._at_once = 0
        self._is_over = False
        self._all: list[greenlet] = []

    def at(self, moment: float, call: Callable[[], object]) -> None:
        """Call a function at a moment."""
        self._number += 1
        heapq.heappush(self._events, (moment, self._number, call))

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Call a function after some seconds."""
        self.at(self.now + max(seconds, 0.0), call)

    def run(self, until: float, is_done: Callable[[], bool]) -> bool:
        """Run all events; return False if this takes longer than `until`."""
        while self._events and not is_done():
            moment, _, call = heapq.heappop(self._events)
            if moment > until:
                return False
            self._at_once = self._at_once + 1 if moment == self.now else 0
            if self._at_once > _MAX_EVENTS_AT_ONCE:
                raise BusyLoopError(f"{_MAX_EVENTS_AT_ONCE} events at {moment:.3f} s")
            self.now = moment
            call()
        return is_done()

    def spawn(self, owner: Owner, run: Callable[[], object]) -> greenlet:
        """Start a thread of a process."""
        thread = greenlet(lambda *_: run(), parent=self._greenlet)
        self._all.append(thread)
        self.after(0, lambda: self.resume(owner, thread))
        return thread

    def resume(self, owner: Owner, thread: greenlet, value: Any = None) -> None:
        """Resume a thread with a value, once its process is not stopped."""
        if owner.is_dead or thread.dead:
            return
        if self.now < owner.stopped_until:
            self.at(owner.stopped_until, lambda: self.resume(owner, thread, value))
            return
        before, self.current = self.current, owner
        try:
            thread.switch(value)
        except GreenletExit:
            pass
        except BaseException as error:
            owner.crash(error)
        finally:
            self.current = before

    def block(self) -> Any:
        """Block the current thread until it is resumed; return the value it is resumed with."""
        if self._is_over or self.current is None or self.current.is_dead:
            raise GreenletExit
        value = self._greenlet.switch()
        if self._is_over:
            raise GreenletExit
        return value

    def thread(self) -> tuple[Owner, greenlet]:
        """Return the current process and thread."""
        if self.current is None or self.current.is_dead or self._is_over:
            raise GreenletExit
        return self.current, getcurrent()

    def sleep(self, seconds: float) -> None:
        """Block the current thread for some seconds."""
        owner, thread = self.thread()
        self.after(seconds, lambda: self.resume(owner, thread))
        self.block()

    def end(self) -> None:
        """End all threads."""
        self._is_over = True
        for thread in self._all:
            if thread and not thread.dead:
                thread.throw(GreenletExit)


class Event:
    """An event for threads of one process, like `threading.Event`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._is_set = False
        self._waiting: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._is_set

    def set(self) -> None:
        """Wake all waiting threads."""
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            self._hub.after(0, wake)

    def wait(self, timeout: float) -> bool:
        """Wait for the event, or for some seconds; return whether it is set."""
        if not self._is_set:
            wake = once(self._hub)
            self._waiting.append(wake)
            self._hub.after(timeout, wake)
            self._hub.block()
        return self._is_set


class Thread:
    """A thread of the current process, like `threading.Thread`."""

    def __init__(self, hub: Hub, run: Callable[[], object]) -> None:
        self._hub = hub
        self._run = run
        self._greenlet: greenlet | None = None

    def start(self) -> None:
        """Start the thread."""
        owner, _ = self._hub.thread()
        self._greenlet = self._hub.spawn(owner, self._run)

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._greenlet is not None and not self._greenlet.dead

    def join(self, timeout: float) -> None:
        """Wait for the thread's end."""
        end = self._hub.now + timeout
        while self.is_alive() and self._hub.now < end:
            self._hub.sleep(0.05)


class Sleep:
    """An awaitable for the toy engine: it resumes after some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __await__(self) -> Any:
        yield self


class SimulatedRuntime(Runtime):
    """The clocks and random numbers of simulated processes."""

    def __init__(self, hub: Hub, chance: Random, temporary: str) -> None:
        self._hub = hub
        self._chance = chance
        self._temporary = temporary

    def unix_time(self) -> float:
        return BEGIN + self._hub.now

    def monotonic(self) -> float:
        return 1000.0 + self._hub.now

    def uniform(self, a: float, b: float) -> float:
        return self._chance.uniform(a, b)

    def randbelow(self, exclusive_upper_bound: int) -> int:
        return self._chance.randrange(exclusive_upper_bound)

    def temporary_directory(self) -> str:
        return self._temporary

    def event(self) -> Any:
        return Event(self._hub)

    def token_hex(self, nbytes: int | None = None) -> str:
        size = nbytes or 8
        return f"{self._chance.getrandbits(8 * size):0{2 * size}x}"

    def sleep(self, seconds: float) -> None:
        self._hub.sleep(seconds)

    def process_name(self) -> str:
        owner, _ = self._hub.thread()
        return owner.name

    def thread(self, name: str, run: Callable[[], object]) -> Any:  # noqa: ARG002  # a stack has no names
        return Thread(self._hub, run)

    def call_later(self, seconds: float, call: Callable[[], object]) -> bool:
        owner, _ = self._hub.thread()
        owner.call_later(seconds, call)
        return True

    async def pause(self, seconds: float) -> None:
        await Sleep(seconds)


def once(hub: Hub) -> Callable[[], None]:
    """Return a function that resumes the current thread at its first call."""
    owner, thread = hub.thread()
    is_done = False

    def wake() -> None:
        nonlocal is_done
        if not is_done:
            is_done = True
            hub.resume(owner, thread)

    return wake
