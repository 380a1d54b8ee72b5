"""The moments of a worker: when it reserves, spends and wastes one. Clock, Redis and downloader are the test's own."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from redis import exceptions
from scrapy import Request

from scrapy_bloom.engine import pace_downloads
from scrapy_bloom.pace import RESERVED, WASTED, Moments, Pacer
from scrapy_bloom.runtime import Runtime
from tests.support.in_process import run, start

DELAY = 10.0
TRIP = 0.25  # seconds; with these numbers the sums are exact


class Clock(Runtime):
    """A clock that a test moves, with timers."""

    def __init__(self) -> None:
        self.now, self.is_calling = 1000.0, False
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def monotonic(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[[], object]) -> bool:
        self.timers.append((self.now + seconds, call))
        return True

    async def pause(self, seconds: float) -> None:
        over = asyncio.Event()
        if seconds:
            self.call_later(seconds, over.set)
            await over.wait()
        await asyncio.sleep(0)

    async def in_thread(self, call: Callable[[], Any]) -> Any:
        assert not self.is_calling  # a thread of the pool at a time
        self.is_calling = True
        for _ in range(5):
            await asyncio.sleep(0)
        self.is_calling = False
        return call()


class Redis(Moments):
    """Gives moments one behind another, or raises."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.calls, self.free = clock, list[Sequence[str]](), dict[str, float]()
        self.error: Exception | None = None
        self.slowness, self.is_closed = 0.0, False

    def reserve(self, slots: Sequence[str], gaps: Sequence[int]) -> Sequence[int]:
        self.calls.append(slots)
        self.clock.now += TRIP
        if self.error:
            raise self.error
        waits = []
        for slot, gap in zip(slots, gaps, strict=True):
            moment = max(self.free.get(slot, 0.0), self.clock.now)
            self.free[slot] = moment + gap / 1e6
            waits.append(round((moment - self.clock.now) * 1e6))
        self.clock.now += self.slowness
        return waits

    def close(self) -> None:
        self.is_closed = True


class Slot:
    """A slot of the downloader, with as many transfers as the test says."""

    def __init__(self, name: str, transfers: int = 9) -> None:
        self.name, self.delay, self.room = name, DELAY, transfers
        self.queue: deque[Any] = deque()

    def free_transfer_slots(self) -> int:
        return self.room

    def download_delay(self) -> float:
        return self.delay


class World:
    """A downloader; `sent` has the slot and the time of each request."""

    def __init__(self) -> None:
        start({})  # Scrapy before 2.15 wants a reactor
        self.clock, self.sent, self.counts = Clock(), list[tuple[str, float]](), Counter[str]()
        self.redis = Redis(self.clock)
        self.engine = SimpleNamespace(_slot=SimpleNamespace(closing=None))
        crawler: Any = SimpleNamespace(engine=self.engine)
        self.pacer = Pacer(crawler, self.redis, lambda name, number: self.counts.update({name: number}), self.clock)
        self.pacer._release = lambda: setattr(self, "look", self.send)

    async def add(self, slot: Slot, number: int = 1) -> None:
        """Let requests wait in a slot."""
        slot.queue.extend(range(number))
        self.look(slot)
        await self.settle()

    def look(self, slot: Slot) -> None:
        """Look at a slot, as Scrapy does when one of its requests arrives, or a transfer ends."""
        if slot.queue and slot.room and self.pacer.may_send(slot, slot.name, lambda: self.look(slot)):
            self.send(slot)
            self.look(slot)

    def send(self, slot: Slot) -> None:
        slot.queue.popleft()
        # Scrapy begins the transfer in the next step of the loop.
        asyncio.get_running_loop().call_soon(lambda: setattr(slot, "room", slot.room - 1))
        self.sent.append((slot.name, self.clock.now))

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def wait(self, seconds: float, *, late: float = 0.0) -> None:
        """Let time pass; each timer rings so many seconds late."""
        end = self.clock.now + seconds
        while due := sorted((at, number) for number, (at, _) in enumerate(self.clock.timers) if at + late <= end):
            at, number = due[0]
            self.clock.now = max(self.clock.now, at + late)
            self.clock.timers.pop(number)[1]()
            await self.settle()
        self.clock.now = max(self.clock.now, end)


def played(play: Callable[[World], Coroutine[Any, Any, None]]) -> World:
    """Return a world in which a test was played."""
    world = World()
    run(play(world))
    return world


def gaps(world: World) -> list[float]:
    """Return the seconds between two requests each."""
    times = [at for _, at in world.sent]
    return [after - before for before, after in pairwise(times)]


def test_one_moment_for_each_request() -> None:
    """Requests leave a delay apart, the first one at once; each has a moment, and waiting ones ask no more."""

    async def play(world: World) -> None:
        slot = Slot("a")
        await world.add(slot, 3)
        assert world.sent == [("a", 1000 + TRIP)]
        await world.add(slot)
        await world.wait(4 * DELAY)

    world = played(play)
    assert gaps(world) == [DELAY] * 3
    assert world.counts == {RESERVED: 4}
    assert len(world.redis.calls) == 4


def test_requests_that_arrive_during_a_call() -> None:
    """A slot that is asked for already is not asked for again."""

    async def play(world: World) -> None:
        slot = Slot("a")
        slot.queue.extend(range(3))
        for _ in range(20):
            world.look(slot)
            await asyncio.sleep(0)

    world = played(play)
    assert (len(world.sent), world.counts) == (1, {RESERVED: 2})


def test_slots_ask_together() -> None:
    """One call reserves for all slots that need a moment, and there is one call at a time."""

    async def play(world: World) -> None:
        for name in "abc":
            slot = Slot(name)
            slot.queue.append(0)
            world.look(slot)
        await world.settle()

    world = played(play)
    assert world.redis.calls == [["a", "b", "c"]]
    assert sorted(name for name, _ in world.sent) == ["a", "b", "c"]


def test_no_moment_without_room() -> None:
    """A slot whose transfers are all busy reserves nothing, until one of them ends: a moment would be wasted."""

    async def play(world: World) -> None:
        slot = Slot("a", transfers=1)
        await world.add(slot, 2)
        await world.wait(5 * DELAY)
        assert len(world.redis.calls) == len(world.sent) == 1
        slot.room += 1
        world.look(slot)
        await world.settle()

    world = played(play)
    assert len(world.sent) == world.counts[RESERVED] == 2


@pytest.mark.parametrize(("late", "wasted"), [(DELAY / 2, 0), (DELAY / 2 + 1, 1)])
def test_a_late_moment(late: float, wasted: int) -> None:
    """A moment is spent up to half a delay late. Then it is wasted, and the slot reserves another one."""

    async def play(world: World) -> None:
        await world.add(Slot("a"), 2)
        await world.wait(DELAY + late, late=late)
        await world.wait(2 * DELAY)

    world = played(play)
    assert len(world.sent) == 2
    assert world.counts[WASTED] == wasted
    assert gaps(world) == [DELAY + late if not wasted else 2 * DELAY]


def test_an_early_timer() -> None:
    """A timer that rings early, by a clock that was set, is set again."""

    async def play(world: World) -> None:
        await world.add(Slot("a"), 2)
        ((_, ring),) = world.clock.timers
        world.clock.timers.clear()
        ring()
        await world.wait(DELAY)

    assert gaps(played(play)) == [DELAY]


def test_a_slow_reply_makes_no_later_moment() -> None:
    """A moment is the usual round trip behind the call, not this one's."""

    async def play(world: World) -> None:
        await world.add(Slot("a"), 3)
        world.redis.slowness = DELAY / 3
        await world.wait(2 * DELAY + 1)

    assert gaps(played(play)) == pytest.approx([DELAY] * 2, abs=TRIP / 10)


def test_silence() -> None:
    """While Redis is unreachable no request is sent, with one warning; afterwards they go on."""

    async def play(world: World) -> None:
        world.redis.error = exceptions.ConnectionError("gone")
        await world.add(Slot("a"), 2)
        await world.wait(60)
        assert world.sent == []
        assert 30 <= len(world.redis.calls) <= 120
        world.redis.error = None
        await world.wait(3 * DELAY)

    assert gaps(played(play)) == [DELAY]


def test_a_stop_in_silence() -> None:
    """What is left when a crawl ends while Redis is unreachable follows Scrapy's own delays: it ends."""

    async def play(world: World) -> None:
        world.redis.error = exceptions.ConnectionError("gone")
        await world.add(Slot("a"))
        world.engine._slot.closing = True
        await world.wait(2)

    assert [name for name, _ in played(play).sent] == ["a"]


def test_the_end() -> None:
    """The connection is closed when the spider is, after the call that is under way."""

    async def play(world: World) -> None:
        slot = Slot("a")
        slot.queue.append(0)
        world.look(slot)
        while not world.clock.is_calling:
            await asyncio.sleep(0)
        ending = asyncio.ensure_future(world.pacer._close())
        await asyncio.sleep(0)
        assert (world.redis.is_closed, len(world.redis.calls)) == (False, 0)
        await ending
        assert (world.redis.is_closed, len(world.redis.calls)) == (True, 1)

    played(play)


def test_one_request_for_each_moment() -> None:
    """The hook sends one request alone, also if Scrapy would send all, since much jitter has made the delay 0."""
    slot, sent, asked = Slot("a"), list[Request](), list[str]()

    def send_all(_: str, slot: Slot) -> None:  # Scrapy 2.13 passes the spider first
        while slot.queue:
            sent.append(slot.queue.popleft()[0])

    def is_first(_: Slot, name: str, __: object) -> bool:
        asked.append(name)
        return len(asked) == 1

    downloader: Any = SimpleNamespace(slots={}, DOWNLOAD_SLOT="download_slot", _process_queue=send_all)
    crawler: Any = SimpleNamespace(engine=SimpleNamespace(downloader=downloader))
    release = pace_downloads(crawler, is_first)
    pace_downloads(crawler, lambda *_: True)  # of a second dupefilter: nothing more
    requests = [Request(f"data:,{number}", meta={"download_slot": 5}) for number in range(4)]
    slot.queue.extend((request, None) for request in requests)
    downloader._process_queue("spider", slot)
    assert (sent, asked) == (requests[:1], ["5", "5"])
    slot.delay = 0
    downloader._process_queue("spider", slot)
    assert (sent, asked) == (requests, ["5", "5"])
    release()
    assert downloader._process_queue is send_all
