"""An import killed, or without a reply, at any step: a second run loses no member."""

from functools import partial
from itertools import count

import pytest
import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom._format import as_text
from scrapy_bloom.cli.importing.import_errors import TakenOverError
from scrapy_bloom.cli.importing.staging import UnfinishedFilter
from scrapy_bloom.errors import BloomError, WrongTypeError
from scrapy_bloom.filter import stored_filter
from scrapy_bloom.storage.stores import RedisStore, run_steps
from tests.support.imports import (
    AFTER,
    BEFORE,
    LOST,
    OPTIONS,
    PARAMETERS,
    FaultyClient,
    KilledError,
    OldWorker,
    backup,
    fill,
    fingerprint,
    keys_of,
    set_import,
    staging,
)
from tests.support.servers import Server

PAGES = [f"page {number}" for number in range(50)]


def assert_imported(client: redis.Redis, key: str, accepted: list[str]) -> None:
    """Assert that a filter has every member, beside the unchanged SET and no other key."""
    assert all(BloomFilter(client, key, **OPTIONS).contains_many(accepted))
    assert client.smembers(backup(key)) == {member.encode() for member in accepted}
    fields = set(map(as_text, client.hkeys(key)))
    assert "filter" in fields
    assert not {"import", "prefix", "unfinished"} & fields
    found = run_steps(stored_filter.read(key), RedisStore(client).execute)
    assert found is not None
    assert keys_of(client, key) == {key, backup(key), *(shard for layer in found.layers for shard in layer.shard_keys)}
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.sadd(key, fingerprint(10**6))


@pytest.mark.parametrize("how", [BEFORE, AFTER, pytest.param(LOST, marks=pytest.mark.long)])
def test_every_moment(valkey: Server, key: str, how: str) -> None:
    """A worker adds between any two steps; at each step the import is killed and run again."""
    with valkey.client() as client, FaultyClient(port=valkey.port) as faulty:
        for at in count(1):
            name = f"{key}:{at}"
            worker = OldWorker(client, name, fill(client, name, 4))
            faulty.arm(worker.add, at, how)
            steps = import_to_the_end(faulty, name, worker)
            assert worker.refusals
            assert_imported(client, name, worker.accepted)
            client.unlink(*keys_of(client, name))
            if at > steps:
                break
        # Every step was met: copying, swapping and checking take more than these.
        assert at > 30


def test_workers_that_add_lose_nothing(valkey: Server, key: str) -> None:
    """While a worker adds between any two steps, every run leaves the SET in its place."""
    with valkey.client() as client, FaultyClient(port=valkey.port) as faulty:
        worker = OldWorker(client, key, fill(client, key, 20))
        for _ in range(3):
            faulty.arm(worker.add)
            report = set_import(faulty, key).run()
            assert not report.is_finished
            assert report.added_meanwhile > 0
        assert worker.refusals == 0
        faulty.arm(lambda: None)
        assert set_import(faulty, key).run().is_finished
        assert_imported(client, key, worker.accepted)


def test_an_addition_at_any_moment(valkey: Server, key: str) -> None:
    """A worker adds once, at each step in turn: it is refused only after the swap."""
    kept = 0
    with valkey.client() as client, FaultyClient(port=valkey.port) as faulty:
        for at in count(1):
            name = f"{key}:{at}"
            worker = OldWorker(client, name, fill(client, name, 4))
            faulty.arm(lambda worker=worker, at=at: faulty.steps == at and worker.add())
            report = set_import(faulty, name).run()
            if at > faulty.steps:
                break
            if not report.is_finished:
                kept += 1
                assert (report.added_meanwhile, worker.refusals) == (1, 0)
                assert client.type(name) == b"set"
                faulty.arm(lambda: None)
                assert set_import(faulty, name).run().is_finished
            assert_imported(client, name, worker.accepted)
    # From the first copied member to the swap.
    assert kept > 5


def import_to_the_end(faulty: FaultyClient, key: str, worker: OldWorker) -> int:
    """Import, again after each kill; return the number of steps of the first run."""
    try:
        set_import(faulty, key).run(wait=None)
    except KilledError:
        steps = faulty.steps
        faulty.arm(worker.add)
        set_import(faulty, key).run(wait=None)
        return steps
    return faulty.steps


@pytest.mark.parametrize("first", [True, False])
def test_two_at_once(valkey: Server, key: str, first: bool) -> None:
    """A second import begins at every step of the first: one of them finishes, the other is refused."""
    told = 0
    with valkey.client() as client, valkey.client() as second, FaultyClient(port=valkey.port) as faulty:
        for at in count(1):
            name = f"{key}:{at}"
            accepted = fill(client, name, 12)
            faulty.arm(lambda name=name, at=at: faulty.steps == at and set_import(second, name).run(copy_only=first))
            try:
                set_import(faulty, name).run()
            except TakenOverError:
                told += 1
            if first:
                set_import(second, name).run()
            assert_imported(client, name, accepted)
            if at > faulty.steps:
                break
    assert told > 10


def test_growth_at_any_moment(valkey: Server, key: str) -> None:
    """An import that was taken over may still add: a layer created by its additions is swapped, too."""
    with valkey.client() as client, FaultyClient(port=valkey.port) as faulty:
        for at in count(1):
            name = f"{key}:{at}"
            accepted = fill(client, name, 4)
            set_import(client, name).run(copy_only=True)
            faulty.arm(partial(grow_at, at, faulty, client, name))
            set_import(faulty, name).run()
            assert_imported(client, name, accepted)
            if at > faulty.steps:
                break


def grow_at(at: int, faulty: FaultyClient, client: redis.Redis, key: str) -> None:
    """At this step add more items than the first layer holds, if the filter is still in staging."""
    if faulty.steps == at and client.exists(staging(key)):
        filling = UnfinishedFilter(client, staging(key), PARAMETERS, retry_timeout=5.0)
        filling.add_many([f"{number}" for number in range(1100)])


@pytest.mark.parametrize("leftovers", [False, True])
def test_a_new_crawl_at_any_moment(valkey: Server, key: str, leftovers: bool) -> None:
    """The SET is deleted, and a worker begins anew at its key: the import leaves its filter alone.

    There may be shards of an earlier filter, which the import replaces.
    """
    abandoned = 0
    with valkey.client() as client, FaultyClient(port=valkey.port) as faulty:
        for at in count(1):
            name = f"{key}:{at}"
            members = fill(client, name, 4)
            if leftovers:
                leave_shards(client, name)
            faulty.arm(partial(begin_anew_at, at, faulty, client, name))
            try:
                set_import(faulty, name).run()
            except BloomError:
                abandoned += 1
            if at > faulty.steps:
                break
            bloom = BloomFilter(client, name, **OPTIONS)
            assert all(bloom.contains_many(PAGES))
            assert not any(bloom.contains_many(members))
            layer = bloom.info().by_layer[0]
            # Additions in flight leave random bits.
            assert (layer.lost_shards, layer.estimated_count <= len(PAGES) + len(members)) == (0, True)
            assert keys_of(client, name) - {backup(name)} == {name, f"{name}:0:0"}
    assert abandoned > 20


def test_a_lost_shard_at_any_moment(valkey: Server, key: str) -> None:
    """A shard is lost with the members in it: they are found again, even after their check."""
    checked_again = 0
    with valkey.client() as client, FaultyClient(port=valkey.port) as faulty:
        for at in count(1):
            name = f"{key}:{at}"
            accepted = fill(client, name, 12)
            faulty.arm(lambda name=name, at=at: faulty.steps == at and client.delete(f"{name}:0:0"))
            report = set_import(faulty, name).run()
            checked_again += report.caught_up > 0
            if at > faulty.steps:
                break
            if client.exists(f"{name}:0:0"):
                assert_imported(client, name, accepted)
            else:
                # The check has ended: the process saves its state, reads the SET's size, returns credit and ends.
                assert faulty.steps - at < 6
    assert checked_again > 10


def leave_shards(client: redis.Redis, key: str) -> None:
    """Leave a shard of a deleted filter."""
    BloomFilter(client, f"{key}:old", **OPTIONS).add("a")
    client.rename(f"{key}:old:0:0", f"{key}:0:0")
    client.delete(f"{key}:old")


def begin_anew_at(at: int, faulty: FaultyClient, client: redis.Redis, key: str) -> None:
    """At this step delete the key and create another filter there, as a new crawl does."""
    if faulty.steps == at:
        client.delete(key)
        BloomFilter(client, key, **OPTIONS).add_many(PAGES)


def test_a_stranger_at_any_moment(valkey: Server, key: str) -> None:
    """A foreign key that appears where the SET would go stays, and so does the SET."""
    refused = 0
    with valkey.client() as client, FaultyClient(port=valkey.port) as faulty:
        for at in count(1):
            name = f"{key}:{at}"
            accepted = fill(client, name, 4)
            faulty.arm(lambda name=name, at=at: faulty.steps == at and client.set(backup(name), "mine", nx=True))
            try:
                set_import(faulty, name).run()
            except WrongTypeError:
                refused += 1
                assert client.get(backup(name)) == b"mine"
                assert client.smismember(name, accepted) == [1] * len(accepted)
            else:
                assert_imported(client, name, accepted)
            if at > faulty.steps:
                break
    assert refused > 10
