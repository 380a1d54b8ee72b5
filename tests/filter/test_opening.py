"""Opening a filter that is new, shared, lost, foreign or of other parameters."""

import json
import logging
import math
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any

import pytest
import redis

from devtools.waiting import LIMIT
from scrapy_bloom import BloomFilter, ConfigError, MismatchError, WrongTypeError
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.storage.bits import CheckBits
from scrapy_bloom.storage.operation import Operations, Results
from scrapy_bloom.storage.shards import DeleteShard
from scrapy_bloom.storage.stores import MemoryStore, RedisStore
from tests.support.processes import CONTEXT
from tests.support.selection import valkey_first

STORED: dict[str, Any] = {"capacity": 1000, "error_rate": 1e-3, "expansion": 2, "ttl": 600.0, "fingerprint": "bytes"}


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("capacity", 0),
        ("capacity", -5),
        ("capacity", 1.5),
        ("capacity", "many"),
        ("capacity", True),
        ("capacity", None),
        ("capacity", float("nan")),
        ("error_rate", 0),
        ("error_rate", 1),
        ("error_rate", "1 %"),
        ("expansion", -1),
        ("expansion", 1.5),
        ("ttl", -1),
        ("cache_size", -1),
    ],
)
def test_values_that_are_not_allowed(client: redis.Redis, key: str, argument: str, value: Any) -> None:
    """An invalid argument is refused by name and value, before the first write."""
    with pytest.raises(ConfigError, match=f"{argument} = {value!r}: must"):
        BloomFilter(client, key, **{argument: value})
    assert not client.exists(key)


def test_two_workers_share_a_filter(client: redis.Redis, key: str) -> None:
    """Items that one worker adds are seen by another worker of the same filter."""
    one, other = BloomFilter(client, key, **STORED), BloomFilter(client, key, **STORED)
    assert one.add("a")
    assert not other.add("a")
    assert other.add("b")
    assert "b" in one


@pytest.mark.parametrize(
    ("argument", "value"),
    [("capacity", 2000), ("error_rate", 1e-4), ("expansion", 0), ("ttl", None), ("fingerprint", "other")],
)
def test_other_parameters_are_refused(client: redis.Redis, key: str, argument: str, value: Any) -> None:
    """A worker with other parameters is refused when it opens the filter, with both values."""
    BloomFilter(client, key, **STORED)
    with pytest.raises(MismatchError) as refusal:
        BloomFilter(client, key, **{**STORED, argument: value})
    assert f"{argument} = {value!r} here, {STORED[argument]!r} in the stored filter" in str(refusal.value)


@pytest.mark.parametrize(("field", "value"), [("format", 4), ("hash", "sha512")])
def test_other_formats_are_refused(client: redis.Redis, key: str, field: str, value: Any) -> None:
    """A filter of a newer release, or of another hash function, is not touched."""
    BloomFilter(client, key, **STORED)
    stored = json.loads(client.hget(key, "filter") or "{}")
    client.hset(key, "filter", json.dumps({**stored, field: value}))
    with pytest.raises(MismatchError, match=str(value)):
        BloomFilter(client, key, **STORED)


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        pytest.param(lambda client, key: client.sadd(key, "a", "b"), "SET of 2 members", id="a SET of scrapy-redis"),
        pytest.param(lambda client, key: client.set(key, "a"), "holds a string", id="a string"),
        pytest.param(lambda client, key: client.rpush(key, "a"), "holds a list", id="a list"),
        pytest.param(lambda client, key: client.hset(key, "a", "b"), "holds a hash", id="a hash of another kind"),
        pytest.param(lambda client, key: client.hset(key, "filter", "b"), "holds a hash", id="no JSON"),
    ],
)
def test_a_key_of_another_kind_is_refused(client: redis.Redis, key: str, fill: Any, said: str) -> None:
    """A foreign key is left as it is, and the error names its type, and its size where that helps."""
    fill(client, key)
    before = client.dump(key)
    with pytest.raises(WrongTypeError, match=said) as refusal:
        BloomFilter(client, key)
    assert key in str(refusal.value)
    assert client.dump(key) == before


@pytest.mark.parametrize("kind", ["set", "filter"])
def test_flush_begins_anew(client: redis.Redis, key: str, kind: str) -> None:
    """`flush=True` deletes the key's contents, of any type and with any parameters."""
    if kind == "set":
        client.sadd(key, "a")
    else:
        BloomFilter(client, key, **STORED).add("a")
    assert BloomFilter(client, key, capacity=77, flush=True).add("a")


def test_clear_leaves_no_key(client: redis.Redis, key: str) -> None:
    """`clear` deletes all keys of all layers."""
    bloom = BloomFilter(client, key, capacity=100)
    bloom.add_many([f"item {number}" for number in range(1000)])
    assert len(list(client.scan_iter(f"{key}*"))) > 3
    bloom.clear()
    assert list(client.scan_iter(f"{key}*")) == []


def lose_everything(client: redis.Redis, key: str) -> None:
    client.unlink(*client.scan_iter(f"{key}*"))


def lose_a_shard(client: redis.Redis, key: str) -> None:
    client.unlink(f"{key}:0:0")


def lose_the_parameters(client: redis.Redis, key: str) -> None:
    client.unlink(key)
    lose_a_shard(client, key)


def clear_and_begin_anew(client: redis.Redis, key: str) -> None:
    BloomFilter(client, key, **STORED).clear()
    BloomFilter(client, key, **STORED)


@pytest.mark.parametrize("lose", [lose_everything, lose_a_shard, lose_the_parameters, clear_and_begin_anew])
@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
def test_a_lost_filter_is_noticed_at_once(
    client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture, lose: Any, batch: bool
) -> None:
    """The check after a loss empties the cache and warns once; no lost item is called seen."""
    bloom = BloomFilter(client, key, **STORED)
    add = (lambda item: bloom.add_many([item])[0]) if batch else bloom.add
    assert add("before")
    lose(client, key)
    with caplog.at_level(logging.WARNING):
        assert add("after")
        assert add("before")
        assert not add("after")
        assert add("later")
    assert len(caplog.records) == 1
    assert key in caplog.text
    assert "after" in BloomFilter(client, key, **STORED)


def test_each_new_filter_has_an_epoch_of_its_own() -> None:
    """Filters that replace each other differ by their epochs, with no repeat in a thousand."""
    epochs = set()
    for _ in range(1000):
        store = MemoryStore()
        BaseBloomFilter(store, "k", FilterParameters(capacity=1)).add("a")
        epochs.add(json.loads(store.hashes["k"]["filter"])["epoch"])
    assert len(epochs) == 1000


def test_asking_a_lost_filter(client: redis.Redis, key: str) -> None:
    """A lookup in a lost filter is answered by the new one."""
    bloom = BloomFilter(client, key, cache_size=0, **STORED)
    bloom.add("a")
    lose_everything(client, key)
    assert "a" not in bloom
    assert bloom.add("a")


class JustBeforeMarking(RedisStore):
    """A store that calls a function once, just before bits are set."""

    happens: Callable[[], object] | None = None

    def execute(self, ops: Operations) -> Results:
        if self.happens and any(isinstance(op, CheckBits) and op.mark for op in ops):
            happens, self.happens = self.happens, None
            happens()
        return super().execute(ops)


def test_late_writes_leave_nothing_behind(client: redis.Redis, key: str) -> None:
    """A worker that writes into a layer cleared since it was read deletes the shard that it created."""
    store = JustBeforeMarking(client)
    late, other = BaseBloomFilter(store, key, FilterParameters(**STORED)), BloomFilter(client, key, **STORED)
    late.add_many([f"item {number}" for number in range(3000)])
    assert late.info().layers > 1
    store.happens = other.clear
    assert late.add("a")
    assert store.happens is None
    assert sorted(client.scan_iter(f"{key}*")) == [key.encode(), f"{key}:0:0".encode()]


class JustBeforeDeleting(RedisStore):
    """A store that calls a function once, just before shards are deleted."""

    happens: Callable[[], object] | None = None

    def execute(self, ops: Operations) -> Results:
        if self.happens and any(isinstance(op, DeleteShard) for op in ops):
            happens, self.happens = self.happens, None
            happens()
        return super().execute(ops)


@pytest.mark.parametrize("look", ["info", "contains", "close", "add"])
def test_nothing_is_left_of_a_deleted_filter(client: redis.Redis, key: str, look: str) -> None:
    """A use between the deletions of hash and shards leaves both deleted."""
    store = JustBeforeDeleting(client)
    last = BaseBloomFilter(store, key, FilterParameters(**STORED))
    other = BloomFilter(client, key, cache_size=0, **STORED)
    last.add_reference("queue")
    last.add("a")
    other.add("b")
    # A worker that was silent for some seconds checks the filter before it adds.
    other._stack._last_contact = -math.inf
    looks = {"info": other.info, "contains": lambda: "a" in other, "close": other.close, "add": lambda: other.add("c")}
    store.happens = looks[look]
    assert last.remove_reference("queue")
    assert store.happens is None
    assert list(client.scan_iter(f"{key}*")) == []
    BloomFilter(client, key, capacity=77)


def race(port: int, key: str, barrier: Barrier, share: range, told: Any) -> None:
    """A process that opens the filter and adds at the same moment as others."""
    with redis.Redis(port=port) as client:
        barrier.wait()
        bloom = BloomFilter(client, key, capacity=100_000, cache_size=0)
        items = [b"%040x" % number for number in share]
        single = len(items) // 10
        new = [item for item in items[:single] if bloom.add(item)]
        for start in range(single, len(items), 500):
            batch = items[start : start + 500]
            new += [item for item, is_new in zip(batch, bloom.add_many(batch), strict=True) if is_new]
        told.put(len(new))


@pytest.mark.parametrize("number", [10_000, pytest.param(50_000, marks=pytest.mark.long)])
@valkey_first
def test_eight_processes_at_once(number: int, server: Any, key: str) -> None:
    """Eight processes create the filter and add the same items at once: each is new exactly once."""
    barrier, told = CONTEXT.Barrier(8), CONTEXT.Queue()
    processes = [CONTEXT.Process(target=race, args=(server.port, key, barrier, range(number), told)) for _ in range(8)]
    for process in processes:
        process.start()
    counts = [told.get(timeout=LIMIT) for _ in processes]
    for process in processes:
        process.join()
    with server.client() as client:
        bloom = BloomFilter(client, key, capacity=100_000)
        assert all(bloom.contains_many([b"%040x" % item for item in range(number)]))
        bloom.clear()
    assert sum(counts) == number
