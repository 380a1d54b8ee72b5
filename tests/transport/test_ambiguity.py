"""No item is lost with a reply: an item in doubt is new, and counted.

The faults are real: a proxy cuts connections at known places.
"""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

import pytest
import redis
from scrapy import Request
from scrapy.settings import Settings
from scrapy_redis.connection import get_redis_from_settings
from scrapy_redis.dupefilter import RFPDupeFilter

from devtools.proxy.faults import CUTS, DONE, FaultProxy, Place, at_random, proxying
from devtools.waiting import LIMIT
from scrapy_bloom import BloomFilter, UnavailableError
from tests.support.retries import STALL_TIMEOUT, by_host, by_url, filter_at
from tests.support.scenario import tell
from tests.support.selection import long_unless
from tests.support.servers import Server

# 1,000 faults over 10,000 items: 1,000 items for each place, singly and in batches. A pair is the number of faults and
# their average distance in commands: all faults have come when every item was sent once.
ITEMS = 1000
BATCH = 20
WORKERS = 5
ONE_BY_ONE = dict.fromkeys(CUTS, (185, 6)) | {Place.STALL: (30, 30)}
IN_BATCHES = dict.fromkeys(CUTS, (50, 18)) | {Place.STALL: (30, 30)}

T = TypeVar("T")


# Lost replies: 1,000 random faults, met by several workers.


def lost_requests(stock: RFPDupeFilter, items: list[str]) -> int:
    """Count the requests that are never scheduled: called seen, or ended by an error."""
    lost = 0
    for item in items:
        try:
            lost += stock.request_seen(Request(f"http://shop.test/{item}"))
        except redis.RedisError:
            lost += 1
    return lost


def lost_in_batches(stock: RFPDupeFilter, items: list[str]) -> int:
    """Count the same for commands sent in batches."""
    lost = 0
    for batch in batches_of(items):
        pipeline = stock.server.pipeline(transaction=False)
        for item in batch:
            pipeline.sadd(stock.key, item)
        try:
            lost += pipeline.execute().count(0)
        except redis.RedisError:
            lost += len(batch)
    return lost


def batches_of(items: list[str]) -> list[list[str]]:
    """Return the same items, some at a time."""
    return [items[first : first + BATCH] for first in range(0, len(items), BATCH)]


class Run:
    """Workers that add different items during faults; their lost and ambiguous items."""

    def __init__(self, proxy: FaultProxy, key: str, place: Place, faults: int, apart: int) -> None:
        self._proxy, self._key, self._place = proxy, key, place
        self._faults, self._apart = faults, apart
        self._parts = [[f"{place} {number}" for number in range(ITEMS)][worker::WORKERS] for worker in range(WORKERS)]
        self._timeout = STALL_TIMEOUT if place is Place.STALL else LIMIT

    def lost_here(self, add: Callable[[BloomFilter, list[str]], int]) -> tuple[int, int]:
        """Count a filter's lost items and its ambiguous ones, which equal resent commands."""
        with ExitStack() as stack:
            each = (filter_at(self._proxy.port, self._key, socket_timeout=self._timeout) for _ in range(WORKERS))
            blooms = [stack.enter_context(bloom) for bloom in each]
            lost = self._lost(add, blooms)
            assert self._proxy.faults == self._faults
            ambiguous = sum(bloom.counters.ambiguous for bloom in blooms)
            assert ambiguous == self._proxy.resent
            # A client with a patient timeout: a slow machine would bring another item into doubt.
            with filter_at(self._proxy.port, self._key) as other:
                assert not any(any(other.add_many(items)) for items in self._parts)
        return lost, ambiguous

    def lost_by_stock(self, settings: dict[str, object], add: Callable[[RFPDupeFilter, list[str]], int]) -> int:
        """Count the items that scrapy-redis loses with its own clients."""
        settings = {**settings, "REDIS_PARAMS": {"socket_timeout": self._timeout}}
        key = f"{self._key}:{','.join(settings)}"
        clients = [get_redis_from_settings(Settings(settings)) for _ in range(WORKERS)]
        lost = self._lost(add, [RFPDupeFilter(client, key) for client in clients])
        for client in clients:
            client.close()
        return lost

    def _lost(self, add: Callable[[T, list[str]], int], workers: list[T]) -> int:
        self._proxy.plan = at_random(random.Random(1), [self._place], self._faults, self._apart)
        with ThreadPoolExecutor(WORKERS) as threads:
            return sum(threads.map(add, workers, self._parts))


@pytest.mark.parametrize("place", long_unless(lambda place: place in (Place.AFTER, Place.STALL), ONE_BY_ONE))
def test_one_by_one(proxy: FaultProxy, key: str, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Every item is new when it is added, with every cut; the resent commands are ambiguous.

    The same faults make scrapy-redis drop requests that it never scheduled.
    """
    run = Run(proxy, key, place, *ONE_BY_ONE[place])
    lost, ambiguous = run.lost_here(lambda bloom, items: [bloom.add(item) for item in items].count(False))
    stock = [run.lost_by_stock(connect(proxy), lost_requests) for connect in (by_url, by_host)]
    tell(
        capsys,
        f"{ONE_BY_ONE[place][0]} x {place} in {ITEMS:,} additions: {lost} lost, {ambiguous} ambiguous; "
        f"scrapy-redis: {stock[0]} lost with REDIS_URL, {stock[1]} with REDIS_HOST",
    )
    assert lost == 0
    assert (ambiguous > 0) == (place in DONE)
    assert place not in DONE or min(stock) > 0


@pytest.mark.parametrize("place", long_unless(lambda place: place in (Place.REQUEST, Place.REPLY), IN_BATCHES))
def test_in_batches(proxy: FaultProxy, key: str, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Every item of a batch is new, with every cut; the resent commands are ambiguous.

    The same faults make a client that sends scrapy-redis's SADD in batches lose items.
    """
    run = Run(proxy, key, place, *IN_BATCHES[place])
    lost, ambiguous = run.lost_here(
        lambda bloom, items: sum(bloom.add_many(batch).count(False) for batch in batches_of(items))
    )
    stock = run.lost_by_stock(by_url(proxy), lost_in_batches)
    tell(
        capsys,
        f"{IN_BATCHES[place][0]} x {place} in {ITEMS:,} additions by {BATCH}: {lost} lost, {ambiguous} ambiguous; "
        f"SADD in batches: {stock} lost",
    )
    assert lost == 0
    assert ambiguous > 0
    assert stock > 0


# Lost replies: single ones, at the places where it matters.


def test_ambiguous_item_is_new_once(proxy: FaultProxy, bloom: BloomFilter) -> None:
    """An item is new after any number of lost replies, and then seen."""
    proxy.fail(Place.AFTER, Place.REPLY, Place.AFTER)
    assert bloom.add("a")
    assert not bloom.add("a")
    assert bloom.counters.ambiguous == 1
    assert bloom.counters.added == 1


def test_known_item_is_ambiguous_too(proxy: FaultProxy, bloom: BloomFilter, valkey: Server, key: str) -> None:
    """An item of another worker whose reply is lost here is in doubt, so new."""
    with filter_at(valkey.port, key) as other:
        assert other.add("a")
    proxy.fail(Place.AFTER)
    assert bloom.add("a")
    assert bloom.counters.ambiguous == 1


@pytest.mark.parametrize("place", [Place.BEFORE, Place.REQUEST])
def test_known_item_is_seen_by_the_next(
    place: Place, proxy: FaultProxy, bloom: BloomFilter, valkey: Server, key: str
) -> None:
    """Only the addition with the lost reply is ambiguous, not the later ones on the same filter."""
    with filter_at(valkey.port, key) as other:
        other.add_many(["a", "b"])
    proxy.fail(place)
    bloom.add("a")
    assert not bloom.add("b")


def test_item_of_an_addition_that_failed(proxy: FaultProxy, key: str) -> None:
    """An item added again after UnavailableError is new: no caller has been told so before."""
    with filter_at(proxy.port, key, retry_timeout=0) as bloom:
        proxy.fail(Place.AFTER, Place.AFTER)
        with pytest.raises(UnavailableError):
            bloom.add("a")
        with pytest.raises(UnavailableError):
            bloom.add_many(["b", "c"])
        assert bloom.add("a")
        assert bloom.add_many(["b", "c"]) == [True, True]
        assert not bloom.add("a")


def test_two_workers_while_the_filter_grows(valkey: Server, key: str) -> None:
    """Two workers add items, one over a bad line: one of them gets each."""
    options = {"capacity": 100, "error_rate": 1e-4, "cache_size": 0}
    source = random.Random(3)
    items = [f"item {number}" for number in range(1200)]
    with proxying(valkey.port) as proxy, ExitStack() as stack:
        proxy.plan = at_random(source, CUTS, 60, 60)
        bad = stack.enter_context(filter_at(proxy.port, key, **options))
        good = stack.enter_context(filter_at(valkey.port, key, **options))
        left = list(items)
        unclaimed: set[str] = set()
        while left:
            batch = [left.pop() for _ in range(min(len(left), source.randrange(1, 12)))]
            new: set[str] = set()
            for worker in source.sample([bad, good], 2):
                answers = worker.add_many(batch) if source.random() < 0.5 else map(worker.add, batch)
                new.update(item for item, is_new in zip(batch, answers, strict=True) if is_new)
            unclaimed.update(set(batch) - new)
        assert proxy.faults == 60
        assert bad.info().layers >= 4
        # The false positives that the error rate explains, and no more.
        assert len(unclaimed) <= 2
        assert all(good.contains_many(items))


def test_late_replies(proxy: FaultProxy, bloom: BloomFilter) -> None:
    """A late reply counts: no command is sent again, and no item is ambiguous."""
    proxy.fail(Place.LATE, Place.LATE, Place.LATE)
    assert bloom.add("a")
    assert bloom.add_many(["b", "c"]) == [True, True]
    assert proxy.faults == 3
    assert proxy.resent == bloom.counters.ambiguous == 0


def test_reading_again_is_no_doubt(proxy: FaultProxy, bloom: BloomFilter) -> None:
    """A lookup is correct after any lost reply."""
    bloom.add("a")
    proxy.fail(Place.AFTER, Place.REPLY)
    assert "b" not in bloom
    assert bloom.contains_many(["a", "b", "c"]) == [True, False, False]
    assert bloom.add("b")
    assert bloom.counters.ambiguous == 0
