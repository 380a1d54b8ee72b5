"""1,000 random faults: each item is new to exactly one call. scrapy-redis loses items by the same faults."""

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

from scrapy_bloom import BloomFilter
from tests.support.faults import CUTS, DONE, FaultProxy, Place, at_random
from tests.support.outcomes import tell
from tests.support.retries import STALL_TIMEOUT, by_host, by_url, filter_at
from tests.support.selection import long_unless
from tests.support.waiting import LIMIT

# 1,000 items for each place. A pair is the number of faults and their average distance in commands: all faults have
# come when every item was sent once.
ITEMS = 1000
WORKERS = 5
FAULTS = dict.fromkeys(CUTS, (185, 4)) | {Place.STALL: (30, 25)}

T = TypeVar("T")


def lost_items(bloom: BloomFilter, items: list[str]) -> int:
    """Count the items that are called seen when they are added."""
    return [bloom.add(item) for item in items].count(False)


def lost_requests(stock: RFPDupeFilter, items: list[str]) -> int:
    """Count the requests that are never scheduled: called seen, or ended by an error."""
    lost = 0
    for item in items:
        try:
            lost += stock.request_seen(Request(f"http://shop.test/{item}"))
        except redis.RedisError:
            lost += 1
    return lost


class Run:
    """Workers that add different items during faults."""

    def __init__(self, proxy: FaultProxy, key: str, place: Place, faults: tuple[int, int]) -> None:
        self._proxy, self._key, self._place, self._faults = proxy, key, place, faults
        self._parts = [[f"{place} {number}" for number in range(ITEMS)][worker::WORKERS] for worker in range(WORKERS)]
        self._timeout = STALL_TIMEOUT if place is Place.STALL else LIMIT

    def lost_here(self) -> int:
        """Count a filter's lost items."""
        with ExitStack() as stack:
            each = (filter_at(self._proxy.port, self._key, socket_timeout=self._timeout) for _ in range(WORKERS))
            lost = self._lost(lost_items, [stack.enter_context(bloom) for bloom in each])
            assert self._proxy.faults == self._faults[0]
            # A client with a patient timeout, for a slow machine.
            other = stack.enter_context(filter_at(self._proxy.port, self._key))
            assert not any(any(other.add_many(items)) for items in self._parts)
        return lost

    def lost_by_stock(self, settings: dict[str, object]) -> int:
        """Count the items that scrapy-redis loses with its own clients."""
        settings = {**settings, "REDIS_PARAMS": {"socket_timeout": self._timeout}}
        clients = [get_redis_from_settings(Settings(settings)) for _ in range(WORKERS)]
        lost = self._lost(lost_requests, [RFPDupeFilter(client, f"{self._key}:{[*settings]}") for client in clients])
        for client in clients:
            client.close()
        return lost

    def _lost(self, add: Callable[[T, list[str]], int], workers: list[T]) -> int:
        self._proxy.plan = at_random(random.Random(1), [self._place], *self._faults)
        with ThreadPoolExecutor(WORKERS) as threads:
            return sum(threads.map(add, workers, self._parts))


@pytest.mark.parametrize("place", long_unless(lambda place: place is Place.AFTER, FAULTS))
def test_cuts(proxy: FaultProxy, key: str, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Every item is new when it is added, with every cut, and then seen."""
    run = Run(proxy, key, place, FAULTS[place])
    lost = run.lost_here()
    stock = [run.lost_by_stock(connect(proxy)) for connect in (by_url, by_host)]
    tell(
        capsys,
        f"{FAULTS[place][0]} x {place} in {ITEMS:,} additions: {lost} lost; scrapy-redis: {stock[0]} lost with "
        f"REDIS_URL, {stock[1]} with REDIS_HOST",
    )
    assert lost == 0
    assert place not in DONE or min(stock) > 0


def test_late_replies(proxy: FaultProxy, bloom: BloomFilter) -> None:
    """A late reply counts: no command is sent again."""
    proxy.done.clear()
    proxy.fail(Place.LATE, Place.LATE)
    assert bloom.add_many(["b", "c"]) == [True, True]
    assert bloom.contains_many(["b", "d"]) == [True, False]
    assert proxy.faults == 2
    assert proxy.resent == 0
