"""Each item is new to exactly one call: through lost and late replies, in several processes, after a fork."""

import itertools
import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.queues import Queue
from typing import Any

import pytest
import redis

from devtools.servers import Address
from scrapy_bloom import RefusedError, UnavailableError
from scrapy_bloom.filter.bloom_filter import BloomFilter
from scrapy_bloom.transport.held import HeldConnection
from tests.support.faults import FaultProxy, Place, proxying
from tests.support.servers import Server

SMALL: dict[str, Any] = {"capacity": 1000, "error_rate": 1e-12}
SCRIPTS = ("EVALSHA", "EVAL")


def items(first: int, last: int) -> list[str]:
    return [f"item {number}" for number in range(first, last)]


@pytest.mark.parametrize("place", [Place.BEFORE, Place.REQUEST, Place.AFTER, Place.REPLY, Place.STALL])
def test_a_repeated_call_returns_the_first_reply(valkey: Server, key: str, place: Place) -> None:
    """Wherever a call fails, the caller gets exact flags; so does a call that forgets."""
    with proxying(valkey.port, *SCRIPTS) as proxy, proxy.address.client(socket_timeout=0.2) as client:
        BloomFilter(valkey.client(), key, **SMALL).add_many(items(0, 50))
        bloom = BloomFilter(client, key, cache_size=0, **SMALL)
        bloom.add("first")
        for number in range(1, 4):
            proxy.fail(place)
            batch = items(50 * number - 25, 50 * number + 50)
            assert bloom.add_many(batch) == [False] * 25 + [True] * 50
        proxy.fail(place)
        assert bloom.forget_many(["item 3", "unknown"]) == [True, False]
        assert bloom.add_many(["item 3", "item 4"]) == [True, False]
        assert proxy.faults == 4
        assert bloom.counters.losses == 0


def test_opening_survives_lost_replies(valkey: Server, key: str) -> None:
    """A repeated creation, flush or clear changes nothing more."""
    with proxying(valkey.port, *SCRIPTS) as proxy, proxy.address.client() as client:
        proxy.plan = itertools.cycle([Place.AFTER, None])
        bloom = BloomFilter(client, key, flush=True, **SMALL)
        assert all(bloom.add_many(items(0, 100)))
        again = BloomFilter(client, key, **SMALL)
        assert not any(again.add_many(items(0, 100)))
        again.clear()
        assert all(again.add_many(items(0, 100)))
        assert again.counters.losses == 0


def callers(client: Any, key: str) -> list[bytes]:
    """Return the fields of the filter's callers."""
    return [field for field in client.hkeys(key) if field.startswith(b"@")]


def give_up(proxy: FaultProxy, call: Callable[[], object], place: Place = Place.AFTER) -> None:
    """Make a call that is lost, and not repeated."""
    proxy.fail(place)
    with pytest.raises(UnavailableError):
        call()


def test_a_call_that_was_given_up_is_settled(valkey: Server, key: str) -> None:
    """The items of an interrupted call are owed to its caller: each is new at the next addition, exactly once."""
    with proxying(valkey.port, *SCRIPTS) as proxy, proxy.address.client() as client:
        bloom = BloomFilter(client, key, retry_timeout=0, **SMALL)
        bloom.add_many(["known", "first"])
        give_up(proxy, lambda: bloom.add_many(["a", "known", "b"]))
        assert BloomFilter(valkey.client(), key, **SMALL).add_many(["a", "b"]) == [False, False]
        assert bloom.add_many(["a", "c", "known"]) == [True, True, False]
        assert not bloom.is_cached("b")
        assert [bloom.add("b"), bloom.add("b"), bloom.add("a")] == [True, False, False]


def test_a_call_that_was_never_executed_is_settled(valkey: Server, key: str) -> None:
    """A call that was lost on its way is executed with the next one."""
    with proxying(valkey.port, *SCRIPTS) as proxy, proxy.address.client() as client:
        bloom = BloomFilter(client, key, retry_timeout=0, **SMALL)
        bloom.add("first")
        give_up(proxy, lambda: bloom.forget("first"), Place.BEFORE)
        give_up(proxy, lambda: bloom.add("a"), Place.BEFORE)
        assert bloom.add_many(["a", "first"]) == [True, True]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Collect the commands of all held connections."""
    commands: list[tuple[object, ...]] = []
    execute: Callable[..., Any] = HeldConnection.execute_command

    def note(self: HeldConnection, *args: object, **options: object) -> object:
        commands.append(args)
        return execute(self, *args, **options)

    monkeypatch.setattr(HeldConnection, "execute_command", note)
    return commands


def test_a_late_duplicate_changes_nothing(client: Any, key: str, sent: list[tuple[object, ...]]) -> None:
    """A packet of an earlier call that arrives late marks nothing, not even items forgotten since."""
    bloom = BloomFilter(client, key, flush=True, **SMALL)
    bloom.add_many(["a", "b"])
    bloom.forget("b")
    bloom.add("b")
    bloom.forget_many(["a", "b"])
    bloom.add_many(["c", "d"])
    bloom.forget("d")
    late = list(sent)
    before = client.hgetall(key)
    for command in late:
        client.execute_command(*command)
    assert client.hgetall(key) == before
    assert bloom.add_many(["a", "b", "c", "d"]) == [True, True, False, True]
    assert bloom.counters.losses == 0


def test_a_lost_record_makes_a_repeated_call_new(valkey: Server, key: str) -> None:
    """Without the record the marks of the first attempt are unknown: unknown means new."""
    with proxying(valkey.port, *SCRIPTS) as proxy, proxy.address.client() as client, valkey.client() as direct:
        bloom = BloomFilter(client, key, retry_timeout=0, **SMALL)
        bloom.add("first")
        give_up(proxy, lambda: bloom.add("a"))
        direct.hdel(key, *callers(direct, key))
        assert bloom.add("a")
        assert bloom.counters.losses == 1


def _add_all(address: Address, key: str, seed: int, found: "Queue[list[int]]") -> None:
    numbers = list(range(4000))
    random.Random(seed).shuffle(numbers)
    with address.client() as client:
        bloom = BloomFilter(client, key, **SMALL)
        new: list[int] = []
        for first in range(0, 4000, 80):
            part = numbers[first : first + 80]
            flags = bloom.add_many([f"item {number}" for number in part])
            new += [number for number, is_new in zip(part, flags, strict=True) if is_new]
        found.put(new)


def test_processes_share_the_items_exactly(valkey: Server, key: str) -> None:
    """Each of 4,000 items is new to exactly one of several processes, while the filter grows."""
    context = multiprocessing.get_context("spawn")
    found: Queue[list[int]] = context.Queue()
    workers = [context.Process(target=_add_all, args=(valkey.address, key, seed, found)) for seed in range(3)]
    for worker in workers:
        worker.start()
    new = [found.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert sorted(itertools.chain(*new)) == list(range(4000))
    with valkey.client() as client:
        info = BloomFilter(client, key, **SMALL).info()
        assert (info.count, info.layers) == (4000, 3)


def forked(call: Callable[[], list[bool]]) -> list[bool]:
    """Return the answers of a call in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, bytes(call()))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        found = list(map(bool, answers.read()))
    assert os.waitpid(child, 0)[1] == 0
    return found


def test_a_forked_process_is_another_caller(valkey: Server, key: str) -> None:
    """A child's calls have a record of their own: neither gets the other's replies."""
    with valkey.client() as client:
        bloom = BloomFilter(client, key, cache_size=0, **SMALL)
        bloom.add_many(["a", "b"])
        flags = forked(lambda: [*bloom.add_many(["a", "c"]), bloom.add("d"), bloom.add("e")])
        assert flags == [False, True, True, True]
        assert [bloom.add(item) for item in "acdef"] == [False, False, False, False, True]
        assert bloom.counters.losses == 0
        # Both make the next call of the common parent: the second one must not get the flags of the first.
        assert forked(lambda: [bloom.add("a")]) == [False]
        assert bloom.add("g")


def test_a_child_owes_nothing(valkey: Server, key: str) -> None:
    """The debt to a call before the fork is paid to its process alone."""
    with proxying(valkey.port, *SCRIPTS) as proxy, proxy.address.client() as client:
        bloom = BloomFilter(client, key, retry_timeout=0, **SMALL)
        bloom.add("first")
        give_up(proxy, lambda: bloom.add("a"))
        assert forked(lambda: [bloom.add("a")]) == [False]
        assert bloom.add("a")
        give_up(proxy, lambda: bloom.add_many(["b", "c"]))
        bloom.add("b")
        assert forked(lambda: [bloom.add("c")]) == [False]
        assert bloom.add("c")


def test_a_call_that_was_executed_in_part(server: Server, key: str) -> None:
    """A script that failed behind its first write may have marked any of its items: all of them are new."""
    with server.client() as admin, server.client(username="clerk") as client:
        admin.execute_command("ACL", "SETUSER", "clerk", "on", "nopass", "allkeys", "+@all")
        bloom = BloomFilter(client, key, cache_size=0, **SMALL)
        bloom.add("known")
        admin.execute_command("ACL", "SETUSER", "clerk", "-hset")
        with pytest.raises(RefusedError):
            bloom.add_many(["a", "known"])
        admin.execute_command("ACL", "SETUSER", "clerk", "+hset")
        assert bloom.add_many(["a", "known"]) == [True, True]
        assert bloom.add_many(["a", "known"]) == [False, False]
        admin.execute_command("ACL", "DELUSER", "clerk")


def test_an_idle_caller_begins_again(client: redis.Redis, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is pruned after an hour: a process that was idle for long does not take that for a loss."""
    bloom = BloomFilter(client, key, cache_size=0, **SMALL)
    bloom.add("a")
    client.hdel(key, *callers(client, key))
    now: Callable[[], float] = bloom._runtime.monotonic
    monkeypatch.setattr(type(bloom._runtime), "monotonic", staticmethod(lambda: now() + 3601))
    assert bloom.add_many(["a", "b"]) == [False, True]
    assert bloom.counters.losses == 0


def test_records_of_dead_callers_are_pruned(client: Any, key: str) -> None:
    """Whoever opens a filter deletes the records that are older than an hour; the others stay."""
    dead, silent = (BloomFilter(client, key, **SMALL) for _ in range(2))
    dead.add("a")
    opened = int(client.hget(key, *callers(client, key)).split()[0])
    client.hset(key, "callers", client.hget(key, "callers").replace(b"%d" % opened, b"%d" % (opened - 3_600_001)))
    silent.add("b")
    assert len(callers(client, key)) == 1
    BloomFilter(client, key, **SMALL).add("c")
    assert len(callers(client, key)) == 2
    assert (silent.add("b"), silent.add("d"), silent.counters.losses) == (False, True, 0)


def test_threads_share_a_filter(client: Any, key: str) -> None:
    """Each item is new to exactly one of several threads, also one by one, and through the cache."""
    bloom, found = BloomFilter(client, key, capacity=20_000, error_rate=1e-12), list[int]()

    def add_all(seed: int) -> None:
        numbers = list(range(3000))
        random.Random(seed).shuffle(numbers)
        found.extend(number for number in numbers[:1500] if bloom.add(f"item {number}"))
        flags = bloom.add_many(f"item {number}" for number in numbers[1500:])
        found.extend(number for number, is_new in zip(numbers[1500:], flags, strict=True) if is_new)

    threads = [threading.Thread(target=add_all, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(3000))
    assert bloom.counters.losses == 0


def test_a_fork_beside_a_call(valkey: Server, key: str) -> None:
    """A child does not wait for a call of the parent's other thread."""
    with valkey.client() as client:
        bloom = BloomFilter(client, key, **SMALL)
        bloom.add("a")
        with ThreadPoolExecutor(1) as other:
            other.submit(bloom._lock.acquire).result()
            assert forked(lambda: [bloom.add("a"), bloom.add("b")]) == [False, True]
            other.submit(bloom._lock.release).result()
        assert not bloom.add("b")


def test_a_call_of_a_signals_handler(client: Any, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler may use the filter that it interrupts: both callers get their answers, and so do later calls."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add("known")
    answers: list[list[bool]] = []
    signals = iter([signal.SIGUSR1])
    note = bloom._note_contact

    def interrupted() -> None:
        for number in signals:
            signal.raise_signal(number)
        note()

    monkeypatch.setattr(bloom, "_note_contact", interrupted)
    before = signal.signal(signal.SIGUSR1, lambda *_: answers.append(bloom.add_many(["known", "by the handler"])))
    try:
        assert bloom.add("a")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert answers == [[False, True]]
    assert bloom.add_many(items(0, 300)) == [True] * 300
    assert BloomFilter(client, key, **SMALL).add_many(items(0, 300)) == [False] * 300
    assert bloom.counters.losses == 0


def test_an_interrupt_at_the_end_of_a_call(client: Any, key: str) -> None:
    """Ctrl-C as the lock is released leaves the caller without a result, and the item is owed."""
    bloom = BloomFilter(client, key, **SMALL)
    lock, interrupts = bloom._lock, iter([KeyboardInterrupt])

    class Lock:
        def __enter__(self) -> None:
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()
            for interrupt in interrupts:
                raise interrupt

    bloom._lock = Lock()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        bloom.add("a")
    assert (bloom.add("a"), bloom.add("a")) == (True, False)
