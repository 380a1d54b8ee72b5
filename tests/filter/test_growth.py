"""A growing filter keeps its promises, for any number of workers, even if they die."""

import logging
import math
import random
from collections.abc import Iterator
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter, MemoryBloomFilter
from tests.support.make_filter import MakeFilter
from tests.support.processes import CONTEXT
from tests.support.selection import long_unless
from tests.support.servers import Server

SMALL: dict[str, Any] = {"capacity": 100, "error_rate": 1e-12, "cache_size": 0}
GROWING: dict[str, Any] = {"capacity": 10_000, "error_rate": 1e-3, "cache_size": 0}


def urls(start: int, end: int) -> list[str]:
    """URLs of a shop's items."""
    return [f"https://shop.example/c{number % 97}/item-{number}.html?ref={number % 7}" for number in range(start, end)]


def false_positives(bloom: Any, asked: int) -> int:
    """Count the false positives among `asked` items that were never added."""
    return sum(
        sum(bloom.contains_many([f"never {number}" for number in range(start, start + 5000)]))
        for start in range(0, asked, 5000)
    )


def within(found: int, asked: int, rate: float) -> bool:
    """Return whether a rate explains the count, within 5 standard deviations."""
    return found <= asked * rate + 5 * math.sqrt(asked * rate)


@pytest.mark.parametrize(
    "batch", long_unless(lambda batch: batch == 100, [1, 100, 100_000]), ids=["single", "batches", "one batch"]
)
def test_the_error_rate_bounds_the_whole_filter(batch: int) -> None:
    """A filter with 30 times its capacity keeps the requested error rate."""
    bloom = MemoryBloomFilter(capacity=1000, error_rate=1e-2, cache_size=0)
    items = urls(0, 30_000)
    for start in range(0, len(items), batch):
        bloom.add_many(items[start : start + batch])
    info = bloom.info()
    assert info.layers >= 4
    assert info.estimated_error_rate <= 1e-2
    assert all(layer.estimated_error_rate <= layer.error_rate for layer in info.by_layer)
    assert within(false_positives(bloom, 20_000), 20_000, 1e-2)
    assert all(bloom.contains_many(items))


def test_each_layer_is_larger_and_stricter(make_filter: MakeFilter) -> None:
    """Layer i holds capacity * expansion^i, at 3 / (i + 4) of the error rate left by earlier layers.

    A layer takes at most its share, even in the worst case of its bits.
    """
    bloom = make_filter(capacity=1000, error_rate=1e-3, expansion=3)
    bloom.add_many(urls(0, 10_000))
    by_layer = bloom.info().by_layer
    assert [layer.capacity for layer in by_layer] == [1000, 3000, 9000]
    taken = 0.0
    for index, layer in enumerate(by_layer):
        assert layer.error_rate == pytest.approx((1e-3 - taken) * 3 / (index + 4), rel=0.05)
        taken += layer.error_rate
        assert layer.estimated_error_rate <= layer.error_rate


def test_lost_hashes(client: redis.Redis, key: str) -> None:
    """A worker that restores a lost hash closes the layer: the next one takes its place, and is no larger."""
    bloom = BloomFilter(client, key, capacity=1000, error_rate=1e-3, cache_size=0)
    for begin in range(0, 400, 100):
        bloom.add_many(urls(begin, begin + 100))
        client.unlink(key)
    bloom.add_many(urls(400, 5000))
    capacities = [layer.capacity for layer in bloom.info().by_layer]
    assert capacities[:4] == [1000] * 4
    assert capacities[-1] > 1000
    assert all(bloom.contains_many(urls(0, 400)))


@pytest.mark.parametrize("capacity", [1000, 20_000, 60_000])
def test_a_filter_that_was_sized_right_does_not_grow(capacity: int) -> None:
    """A filter holds its capacity in its first layer, despite the sampling error."""
    bloom = MemoryBloomFilter(capacity=capacity, error_rate=1e-3, cache_size=0)
    bloom.add_many(urls(0, capacity))
    assert bloom.info().layers == 1


@cache
def room_of_two_layers() -> int:
    """Return the number of items that a small filter holds in its first two layers."""
    measured, room = MemoryBloomFilter(**SMALL), 0
    while measured.info().layers < 3:
        measured.add(f"item {room}")
        room += 1
    return room - 1


def test_repeats_do_not_grow_a_filter(make_filter: MakeFilter) -> None:
    """A worker that remembers nothing meets only repeats of a full newest layer: it needs no credit, and no layer."""
    items = [f"item {number}" for number in range(room_of_two_layers())]
    bloom = make_filter(**SMALL)
    for item in items:
        bloom.add(item)
    assert bloom.info().layers == 2
    assert not any(bloom.add_many(items))
    assert bloom.info().layers == 2


def test_round_trips_do_not_depend_on_the_batch(make_filter: MakeFilter) -> None:
    """With several layers a repeat is one round trip and a new item two, for a batch of any size."""
    bloom = make_filter(capacity=1000, cache_size=0)
    bloom.add_many(urls(0, 5000))
    assert bloom.info().layers > 1
    before = bloom.counters.round_trips
    assert not any(bloom.add_many(urls(0, 500)))
    assert bloom.counters.round_trips == before + 1
    assert all(bloom.add_many(urls(5000, 5010)))
    assert bloom.counters.round_trips == before + 3


def test_asking_sees_what_others_added_after_a_growth(client: redis.Redis, key: str) -> None:
    """A worker that only reads notices a growth: it finds all items of other workers."""
    asking = BloomFilter(client, key, capacity=100, error_rate=1e-3, cache_size=0)
    adding = BloomFilter(client, key, capacity=100, error_rate=1e-3, cache_size=0)
    for start in range(0, 5000, 500):
        adding.add_many(urls(start, start + 500))
        assert asking.contains_many(urls(start, start + 500)) == [True] * 500
    before = asking.counters.round_trips
    assert "never added" not in asking
    assert asking.counters.round_trips == before + 1


def test_a_growth_is_logged_once(client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """The worker that creates a layer logs the sizes; the others adopt it in silence."""
    workers = [BloomFilter(client, key, capacity=1000, error_rate=1e-3) for _ in range(3)]
    with caplog.at_level(logging.INFO):
        for number, url in enumerate(urls(0, 3500)):
            workers[number % 3].add(url)
    grown = [record.message for record in caplog.records if "grew" in record.message]
    assert len(grown) == workers[0].info().layers - 1 > 0
    assert all(part in grown[0] for part in (key, "2,000", "error rate", " KB"))


@pytest.mark.parametrize("share", [0.8, 1.0])
def test_a_filter_that_may_not_grow_warns(share: float, caplog: pytest.LogCaptureFixture) -> None:
    """With expansion 0 a warning is logged at 80 % and at 100 %, with the current error rate."""
    bloom = MemoryBloomFilter(capacity=10_000, error_rate=1e-2, expansion=0)
    items = urls(0, 10_500)
    bloom.add_many(items[: int(10_000 * (share - 0.05))])
    caplog.clear()
    for item in items[int(10_000 * (share - 0.05)) : int(10_000 * (share + 0.05))]:
        bloom.add(item)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"{share:.0%}".replace("%", " %") in warnings[0]
    assert bloom.info().layers == 1


def test_a_full_filter_that_may_not_grow_shows_its_true_error_rate() -> None:
    """Far beyond its capacity it continues, and reports its true error rate."""
    bloom = MemoryBloomFilter(capacity=1000, error_rate=1e-2, expansion=0, cache_size=0)
    bloom.add_many(urls(0, 3000))
    shown = bloom.info().estimated_error_rate
    assert shown > 0.1
    assert abs(false_positives(bloom, 10_000) - 10_000 * shown) < 5 * math.sqrt(10_000 * shown)


def test_a_growth_that_was_begun_is_finished(client: redis.Redis, key: str) -> None:
    """If a worker dies after sealing a layer, the next check completes the growth."""
    options: dict[str, Any] = {"capacity": 100_000, "error_rate": 1e-3}
    bloom = BloomFilter(client, key, **options)
    bloom.add("before")
    for shard in range(bloom.info().shards):
        client.setbit(f"{key}:0:{shard}", 7, 1)
    assert bloom.add("after")
    assert not bloom.add("before")
    assert not BloomFilter(client, key, **options).add("after")
    assert BloomFilter(client, key, **options).info().layers == 2


def work(port: int, key: str, options: dict[str, Any], shares: list[list[str]], pipe: Connection) -> None:
    """A process that adds its share in batches, and reports the new items after each."""
    with redis.Redis(port=port) as client:
        bloom = BloomFilter(client, key, **options)
        for items in shares:
            answers = bloom.add_many(items) if len(items) > 1 else [bloom.add(items[0])]
            pipe.send([item for item, is_new in zip(items, answers, strict=True) if is_new])
    pipe.send(None)


def start(server: Server, key: str, options: dict[str, Any], shares: list[list[str]]) -> tuple[Any, Connection]:
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=work, args=(server.port, key, options, shares, sender))
    process.start()
    sender.close()
    return process, receiver


def received(pipe: Connection) -> Iterator[list[str]]:
    """Yield the reports of a process, until it ends or is killed."""
    try:
        while (said := pipe.recv()) is not None:
            yield said
    except (EOFError, OSError):
        # It was killed, maybe in the middle of a report.
        return


def batches(items: list[str], draw: random.Random) -> list[list[str]]:
    """The items in random order, singly and in batches."""
    shuffled = draw.sample(items, len(items))
    found = [[item] for item in shuffled[:500]]
    return found + [shuffled[start : start + 400] for start in range(500, len(shuffled), 400)]


@pytest.mark.parametrize(
    ("number", "capacity", "layers"),
    [
        (8_000, 2_000, 3),
        pytest.param(40_000, 10_000, 3, marks=pytest.mark.long),
        pytest.param(200_000, 10_000, 5, marks=pytest.mark.long),
    ],
)
def test_eight_processes_while_the_filter_grows(
    number: int, capacity: int, layers: int, valkey: Server, key: str
) -> None:
    """Eight processes add overlapping items, far beyond the capacity: each is new at most once.

    The few that are never new are false positives of the additions, at most as many as promised.
    """
    draw = random.Random(7)
    options = {**GROWING, "capacity": capacity}
    # Every item is offered by two processes of the eight.
    shares: list[list[str]] = [[] for _ in range(8)]
    for url in urls(0, number):
        for share in draw.sample(shares, 2):
            share.append(url)
    started = [start(valkey, key, options, batches(share, draw)) for share in shares]
    told = [item for _, pipe in started for new in received(pipe) for item in new]
    for process, _ in started:
        process.join()
        assert process.exitcode == 0
    with valkey.client() as client:
        bloom = BloomFilter(client, key, **options)
        assert bloom.info().layers >= layers
        assert all(bloom.contains_many(urls(0, number)))
        wrong = false_positives(bloom, number // 2)
        bloom.clear()
    assert len(told) == len(set(told))
    assert within(number - len(told), number, GROWING["error_rate"])
    assert within(wrong, number // 2, GROWING["error_rate"])


@pytest.mark.parametrize("attempts", [6, pytest.param(12, marks=pytest.mark.long)])
def test_workers_are_killed_while_the_filter_grows(attempts: int, server: Server, key: str) -> None:
    """Workers killed and replaced at any moment leave a filter with every item reported as new."""
    draw = random.Random(11)
    # Small enough that the awaited reports, of 500 items with hardly a repeat, fill it several times.
    options = {**GROWING, "capacity": 1000}
    reported: list[str] = []
    for attempt in range(attempts):
        begin = attempt * 5000
        shares = [batches(urls(begin, begin + 10_000), draw) for _ in range(2)]
        started = [start(server, key, options, each) for each in shares]
        for process, pipe in started:
            reports = received(pipe)
            # Wait for a random number of reports, then kill the worker in the middle of the next one.
            for _, new in zip(range(draw.randrange(1, 510)), reports, strict=False):
                reported += new
            process.kill()
            reported += [item for new in reports for item in new]
            process.join()
    with server.client() as client:
        bloom = BloomFilter(client, key, **options)
        assert len(reported) >= 1000
        assert all(bloom.contains_many(reported))
        assert bloom.info().layers >= 2
        survivor = bloom.add_many(urls(1_000_000, 1_001_000))
        bloom.clear()
    assert within(survivor.count(False), 1000, GROWING["error_rate"])
    assert len(reported) == len(set(reported))
