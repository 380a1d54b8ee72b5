"""Workers that are dead, workers that only look so, and what becomes of what they hold."""

import time
from collections.abc import Callable

import pytest
import redis

from devtools.waiting import until
from scrapy_bloom.queue import keys
from scrapy_bloom.queue.entries import QueueEntry
from scrapy_bloom.queue.workers import WorkerRegistry

LEASE = 0.4
Make = Callable[[], WorkerRegistry]


@pytest.fixture
def worker(client: redis.Redis, key: str) -> Make:
    """Makes workers that say that they live only when they are told to."""
    return lambda: WorkerRegistry(client, key, LEASE)


def silence(seconds: float, *living: WorkerRegistry) -> None:
    """Time passes, in which some workers say that they live."""
    end = time.monotonic() + seconds

    def is_over() -> bool:
        for each in living:
            each.heartbeat()
        return time.monotonic() >= end

    until(is_over)


def until_recovered(living: WorkerRegistry) -> None:
    """A worker says that it lives, until it has put back what another one held."""
    until(lambda: living.heartbeat() is not None and living.recovered)


def listed(client: redis.Redis, key: str) -> set[bytes]:
    """The workers that are taken for living."""
    return {each for each in client.zrange(keys.workers_key(key), 0, -1) if isinstance(each, bytes)}


def test_what_a_dead_worker_held_is_put_back(worker: Make, client: redis.Redis, key: str) -> None:
    """A worker that is silent for the lease while others are not is dead, once and for all."""
    dead, living = worker(), worker()
    dead.heartbeat()
    dead.requests.push([QueueEntry(3, b"request")], [])
    assert client.zcard(key) == 0
    until_recovered(living)
    assert client.zrange(key, 0, -1, withscores=True) == [(b"request", 3.0)]
    assert listed(client, key) == {living.name.encode()}
    assert living.recovered == 1
    assert not living.others_are_active() or client.zcard(key)


def test_after_an_outage_nobody_is_dead_at_once(worker: Make, client: redis.Redis, key: str) -> None:
    """When Redis was away all have been silent: the first to be back leaves the others time to say that they live."""
    first, second = worker(), worker()
    for each in (first, second):
        each.heartbeat()
    second.requests.push([QueueEntry(0, b"request")], [])
    silence(1.5 * LEASE)
    first.heartbeat()
    assert listed(client, key) == {first.name.encode(), second.name.encode()}
    assert client.zcard(key) == 0
    assert first.others_are_active()
    silence(2 * LEASE, first, second)
    assert first.recovered == second.recovered == 0
    # One that does not come back is dead after all.
    until_recovered(first)


def test_a_sign_of_life_in_the_last_moment_counts(worker: Make, client: redis.Redis, key: str) -> None:
    """A worker that speaks again while what it held is put back stays listed, and can be found dead once more."""
    slow, other = worker(), worker()
    slow.heartbeat()
    silence(1.5 * LEASE, other)
    slow.heartbeat()
    other._requeue_abandoned(slow.name, 2 * LEASE)
    assert listed(client, key) == {slow.name.encode(), other.name.encode()}
