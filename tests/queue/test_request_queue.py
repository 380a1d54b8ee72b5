"""A request is always in Redis: in the queue or held by a worker, whatever is cut and whoever takes it."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import pytest
import redis

from scrapy_bloom.queue import keys as queue_keys
from scrapy_bloom.queue.entries import QueueEntry
from scrapy_bloom.queue.request_queue import RequestQueue, requeue_all
from scrapy_bloom.transport.base import transport_for
from scrapy_bloom.transport.retry import disable_client_retries
from tests.support.fault_proxy import CUTS, at_random, proxying
from tests.support.servers import Server

Make = Callable[[str], RequestQueue]


@pytest.fixture
def custody_of(client: redis.Redis, key: str) -> Make:
    """The custody of a worker over a client of the server."""
    return lambda worker: RequestQueue(transport_for(client), key, worker)


def requests(scores: dict[str, float]) -> list[QueueEntry]:
    """Serialised requests with scores."""
    return [QueueEntry(score, member.encode()) for member, score in scores.items()]


def numbered(count: int) -> list[QueueEntry]:
    """Requests of one score."""
    return requests({f"{number:03}": 0 for number in range(count)})


def taken(custody: RequestQueue, most: int = 10_000) -> list[bytes]:
    """Take requests for a worker, until there are none or it has so many."""
    found: list[bytes] = []
    while len(found) < most and (waiting := custody.pop()) is not None:
        assert isinstance(waiting.member, bytes)
        found.append(waiting.member)
    return found


def in_queue(client: redis.Redis, key: str) -> set[bytes]:
    """Return what is in a sorted set."""
    return {each for each in client.zrange(key, 0, -1) if isinstance(each, bytes)}


def held(client: redis.Redis, key: str, worker: str) -> set[bytes]:
    """Return what a worker holds."""
    return in_queue(client, queue_keys.leases_key(key, worker))


@pytest.mark.parametrize("count", [1, 15, 16, 40])
def test_each_is_taken_once_in_the_order_of_scores(custody_of: Make, count: int) -> None:
    """Whatever one worker queued it takes, the lowest score first, and then there is nothing."""
    custody = custody_of("one")
    scores = {f"{number:03}": float(number * 7 % count) for number in range(count)}
    custody.push(requests(scores), [])
    assert [scores[member.decode()] for member in taken(custody)] == sorted(scores.values())
    assert custody.pop() is None


def test_what_goes_first_is_taken_first(custody_of: Make) -> None:
    """A request that is queued with a lower score goes before those that were taken ahead, which go back."""
    custody = custody_of("one")
    custody.push(numbered(40), [])
    first = taken(custody, 3)
    custody.push(requests({"urgent": -10}), [])
    assert taken(custody, 1) == [b"urgent"]
    assert sorted(first + taken(custody)) == [each.member for each in numbered(40)]


def test_few_are_left_to_others(custody_of: Make) -> None:
    """A worker takes no more than it is asked for where few wait, and another one gets the rest."""
    custody_of("one").push(numbered(15), [])
    one, other = custody_of("one"), custody_of("other")
    assert len({each.pop() for each in (one, other, one, other)}) == 4
    assert not one.has_prefetched
    assert not other.has_prefetched


def test_workers_share_and_never_spin(custody_of: Make) -> None:
    """Workers that race for the head each get some, nobody the same, and all of it is taken."""
    workers = [custody_of(f"worker-{number}") for number in range(5)]
    workers[0].push(numbered(300), [])
    found: list[list[bytes]] = [[] for _ in workers]
    while sum(map(len, found)) < 300:
        for share, worker in zip(found, workers, strict=True):
            share.extend(taken(worker, 1))
    assert sorted(chain.from_iterable(found)) == [each.member for each in numbered(300)]
    assert min(map(len, found)) >= 30
    assert [worker.pop() for worker in workers] == [None] * 5


def test_what_is_taken_is_held_until_it_is_released(custody_of: Make, client: redis.Redis, key: str) -> None:
    """A request is in the queue or held, never in neither; released, it is in neither."""
    custody = custody_of("one")
    custody.push(numbered(20), [])
    (first,) = taken(custody, 1)
    assert first in held(client, key, "one")
    everything = held(client, key, "one") | in_queue(client, key)
    assert everything == {each.member for each in numbered(20)}
    custody.ack([first])
    custody.count()
    assert first not in held(client, key, "one")
    rest = everything - {first}
    assert requeue_all(transport_for(client), key, queue_keys.leases_key(key, "one")) == len(rest) - 12
    assert held(client, key, "one") == set()
    assert in_queue(client, key) == rest


def test_an_equal_one_that_is_ready_stays_held(custody_of: Make, client: redis.Redis, key: str) -> None:
    """A request that is queued again while it is worked on is held until its second time is over, too."""
    custody = custody_of("one")
    custody.push(numbered(16), [])
    (first,) = taken(custody, 1)
    taken(custody, 7)
    custody.push([QueueEntry(-1, first)], [])
    assert custody.has_prefetched
    custody.ack([first])
    custody.count()
    assert first in held(client, key, "one")
    assert taken(custody, 1) == [first]
    custody.ack([first])
    custody.count()
    assert first not in held(client, key, "one")


def test_a_repeat_of_what_is_ready_stays_held(custody_of: Make, client: redis.Redis, key: str) -> None:
    """A worker that meets again what it has taken ahead, and hears that it is a repeat, does not let go of it."""
    custody, other = custody_of("one"), custody_of("other")
    other.push(numbered(30), [])
    mine = taken(custody, 1) + [each.member for each in custody._prefetched]
    assert len(mine) == 8
    custody.push([], mine)
    assert held(client, key, "one") == set(mine)
    assert in_queue(client, key) | held(client, key, "one") | held(client, key, "other") == {
        each.member for each in numbered(30)
    }


def test_a_lost_race_for_an_equal_one_lets_go_of_nothing(custody_of: Make, client: redis.Redis, key: str) -> None:
    """A worker that reaches for a copy of what it works on, which another one gets, holds its own still."""
    custody, other = custody_of("one"), custody_of("other")
    custody.push(numbered(1), [])
    (first,) = taken(custody, 1)
    other.push(numbered(1), [])  # the same again; it takes it at once
    custody._candidates = numbered(1)
    assert custody.pop() is None
    custody.count()
    assert first in held(client, key, "one")


@pytest.mark.parametrize("kinds", [(str, bytes), (bytes, str)])
def test_text_and_bytes_are_the_same_request(
    kinds: tuple[type, type], custody_of: Make, client: redis.Redis, key: str
) -> None:
    """A serialiser that makes text, and a server that gives bytes: equal requests are held until both are finished."""
    custody = custody_of("one")
    for number, kind in enumerate(kinds):
        custody.push([QueueEntry(number, "request" if kind is str else b"request")], [])
    first, second = custody.pop(), custody.pop()
    assert first is not None
    assert second is not None
    for each in (first, second):
        assert held(client, key, "one") == {b"request"}
        custody.ack([each.member])
        custody.count()
    assert held(client, key, "one") == set()


def test_nothing_is_remembered_of_what_is_finished(custody_of: Make) -> None:
    """The memory of a worker is that of what it has."""
    custody = custody_of("one")
    custody.push(numbered(200), [])
    custody.ack(taken(custody))
    custody.count()
    assert not custody._in_flight
    assert custody._pending_acks == []


@pytest.fixture
def torn(server: Server) -> Iterator[tuple[redis.Redis, Any]]:
    """A client whose connection is cut again and again, and its proxy."""
    with proxying(server.port, "EXEC") as proxy, redis.Redis("127.0.0.1", proxy.port) as client:
        disable_client_retries(client)
        yield client, proxy


@pytest.mark.parametrize("seed", range(5))
def test_cut_anywhere_nothing_is_lost(seed: int, torn: tuple[redis.Redis, Any], client: redis.Redis, key: str) -> None:
    """Two workers queue, take and release while connections are cut at random: each request is fetched, or in Redis."""
    source = random.Random(seed)
    client_of_workers, proxy = torn
    workers = [RequestQueue(transport_for(client_of_workers), key, worker) for worker in ("one", "other")]
    working: list[list[bytes]] = [[], []]
    queued: set[bytes] = set()
    fetched: set[bytes] = set()
    waiting = [requests({f"{batch}-{number}": source.randrange(3) for number in range(20)}) for batch in range(10)]
    proxy.plan = at_random(source, CUTS, 40, 3)

    def again(attempt: Callable[[], Any]) -> Any:
        while True:
            try:
                return attempt()
            except redis.ConnectionError:
                assert queued <= in_redis() | fetched

    def in_redis() -> set[bytes]:
        return in_queue(client, key) | held(client, key, "one") | held(client, key, "other")

    while waiting or client.zcard(key) or any(working) or any(worker.has_prefetched for worker in workers):
        number = source.randrange(2)
        worker, own = workers[number], working[number]
        if waiting and source.random() < 0.2:
            batch = waiting.pop()
            again(partial(worker.push, batch, []))
            queued |= {bytes(each.member) for each in batch if isinstance(each.member, bytes)}
        if source.random() < 0.7 and (waiting_one := again(worker.pop)) is not None:
            own.append(waiting_one.member)
        if own and source.random() < 0.6:
            done = own.pop(source.randrange(len(own)))
            fetched.add(done)
            worker.ack([done])
        assert queued <= in_redis() | fetched
    again(workers[0].count)
    again(workers[1].count)
    assert fetched == queued
    assert proxy.faults > 20
    assert held(client, key, "one") | held(client, key, "other") == set()
