"""Virtual time: a heap of events, and threads of processes as greenlets.

Code that would wait for a socket, an Event or `sleep` switches to the hub, which runs the next event. So a worker
really blocks while others act, and can be stopped or killed between any two of its round trips.
"""

import heapq
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from greenlet import GreenletExit, getcurrent, greenlet

from scrapy_bloom.runtime import Runtime

# This many events at one moment are taken for an endless loop.
_MAX_EVENTS_AT_ONCE = 5_000


class Owner(Protocol):
    """A simulated process, as its clock sees it."""

    name: str
    is_dead: bool
    stopped_until: float

    def crash(self, error: Exception) -> None:
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
        self._number = self._at_once = 0
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
        except Exception as error:
            owner.crash(error)
        finally:
            self.current = before

    def block(self) -> Any:
        """Block the current thread until it is resumed; return the value it is resumed with."""
        self.thread()
        value = self._greenlet.switch()
        if self._is_over:
            raise GreenletExit
        return value

    def thread(self) -> tuple[Owner, greenlet]:
        """Return the current process and thread."""
        if self._is_over or self.current is None or self.current.is_dead:
            raise GreenletExit
        return self.current, getcurrent()

    def end(self) -> None:
        """End all threads."""
        self._is_over = True
        for thread in self._all:
            if thread and not thread.dead:
                thread.throw(GreenletExit)


class _Event:
    """An event for one thread, like `threading.Event`."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._is_set = False
        self._wake: Callable[[], None] = lambda: None

    def set(self) -> None:
        """Wake the waiting thread."""
        self._is_set = True
        self._hub.after(0, self._wake)

    def wait(self, timeout: float) -> bool:
        """Wait for the event, or for some seconds; return whether it is set."""
        if not self._is_set:
            self._wake = once(self._hub)
            self._hub.after(timeout, self._wake)
            self._hub.block()
        return self._is_set


class _Thread:
    """A thread of the current process, like `threading.Thread`."""

    def __init__(self, hub: Hub, run: Callable[[], object]) -> None:
        self._hub = hub
        self._run = run
        self._greenlet: greenlet | None = None

    def start(self) -> None:
        """Start the thread."""
        self._greenlet = self._hub.spawn(self._hub.thread()[0], self._run)

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._greenlet is not None and not self._greenlet.dead

    def join(self, timeout: float) -> None:
        """Wait for the thread's end."""
        end = self._hub.now + timeout
        while self.is_alive() and self._hub.now < end:
            self._hub.after(0.05, once(self._hub))
            self._hub.block()


class SimulatedRuntime(Runtime):
    """The clock and the threads of simulated processes."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def monotonic(self) -> float:
        return self._hub.now

    def at_once(self, most: int) -> Any:
        return map if most == 1 else self._map

    def _map(self, call: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Make calls in threads of the current process, and wait for all."""
        owner, _ = self._hub.thread()
        wake, given, replies = once(self._hub), [*items], {}

        def run(number: int) -> None:
            replies[number] = call(given[number])
            if len(replies) == len(given):
                self._hub.after(0, wake)

        for number in range(len(given)):
            self._hub.spawn(owner, partial(run, number))
        if given:
            self._hub.block()
        return [replies[number] for number in range(len(given))]

    def event(self) -> Any:
        return _Event(self._hub)

    def thread(self, name: str, run: Callable[[], object]) -> Any:  # noqa: ARG002  # a stack has no names
        return _Thread(self._hub, run)


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
