"""Losses, refusals and foreign data of the server: told, counted, and never half done."""

from typing import Any

import pytest
import redis

from scrapy_bloom import MismatchError, RefusedError, WrongTypeError
from scrapy_bloom.filter.bloom_filter import BloomFilter
from tests.support.servers import running

SMALL: dict[str, Any] = {"capacity": 1000, "error_rate": 1e-12}
ITEMS = [f"item {number}" for number in range(500)]


def shards(client: Any, key: str) -> list[bytes]:
    return sorted(client.scan_iter(f"{{{key}}}:*"))


def test_a_lost_shard(client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """The items of a lost shard are new again, in the cache too; others are known. The loss is told once."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add_many(ITEMS)
    client.unlink(lost := shards(client, key)[0])
    while not bloom.counters.losses:
        bloom.add(f"another {bloom.counters.added}")
    assert all(bloom.add_many(ITEMS)) or len(shards(client, key)) > 1
    assert lost in shards(client, key)
    assert not any(bloom.add_many(ITEMS))
    assert (bloom.counters.losses, bloom.info().lost_shards) == (1, 1)
    assert [r.getMessage() for r in caplog.records if "lost 1 shards" in r.getMessage()]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_lost_filter(client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture, is_replaced: bool) -> None:
    """Without its hash a filter is lost: the cache is emptied, and a new one leaves nothing of the old one."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add_many(ITEMS)
    before = shards(client, key)
    client.unlink(key)
    if is_replaced:
        BloomFilter(client, key, **SMALL).add("item 0")
        assert bloom.contains_many(["item 0", "item 1"]) == [True, False]
    else:
        assert bloom.contains_many(["item 0", "item 1"]) == [False, False]
    assert bloom.add_many(ITEMS) == [not is_replaced] + [True] * 499
    assert bloom.counters.losses == 1
    assert any("was replaced" in record.getMessage() for record in caplog.records)
    if not is_replaced:
        assert not set(before) & set(shards(client, key))


def test_cached_items_are_asked_again_after_a_loss(client: redis.Redis, key: str) -> None:
    """A batch that meets a loss gets no answer from the cache of before."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add_many(ITEMS)
    client.unlink(key)
    assert all(bloom.add_many([*ITEMS, "another"]))


def test_forgotten_by_another(client: redis.Redis, key: str) -> None:
    """The cache is emptied with the next round trip after another process has forgotten items."""
    one, other = (BloomFilter(client, key, **SMALL) for _ in range(2))
    one.add_many(["a", "b"])
    other.forget("a")
    assert one.is_cached("a")
    assert one.add_many(["a", "b", "c"]) == [True, False, True]
    other.forget("a")
    assert one.is_cached("a")
    assert "b" in one
    assert not one.is_cached("a")
    assert one.add("a")


@pytest.mark.parametrize("idles", [True, False])
def test_a_cached_item_is_asked_again(
    client: redis.Redis, key: str, monkeypatch: pytest.MonkeyPatch, idles: bool
) -> None:
    """A filter that was deleted is noticed by the first check after `revalidate`, or after 10 seconds."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add("a")
    client.delete(key)
    if idles:
        bloom.revalidate()
    else:
        now = bloom._runtime.monotonic
        monkeypatch.setattr(type(bloom._runtime), "monotonic", staticmethod(lambda: now() + 10))
    assert bloom.add("a")
    assert bloom.counters.losses == 1


def test_a_rollback(client: Any, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server that went back to an earlier state lacks the caller's last number: the cache is emptied."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add_many(["a", "b"])
    state = {name: client.dump(name) for name in client.scan_iter(f"*{key}*")}
    bloom.add("c")
    bloom.add("d")
    for name, value in state.items():
        client.restore(name, 0, value, replace=True)
    assert bloom.add("e")
    assert bloom.add_many(["a", "b", "c", "d", "e"]) == [False, False, True, True, False]
    assert bloom.counters.losses == 1
    assert "went back" in caplog.text


def test_a_full_server_does_nothing_by_half(key: str) -> None:
    """A refused call has marked nothing, and is no call in doubt; with room again all of its items are new."""
    for kind in ("redis", "valkey"):
        with running(kind) as server, server.client() as client:
            bloom = BloomFilter(client, key, cache_size=0, **SMALL)
            bloom.add_many(ITEMS[:100])
            bloom.forget("item 1")
            before = {name: client.dump(name) for name in client.scan_iter("*")}
            client.config_set("maxmemory", 1)
            # With a forgotten item, whose deletion a full server permits.
            for batch in (["item 1", *ITEMS[50:200]], ["new"]):
                with pytest.raises(RefusedError, match="raise the server's maxmemory, or set a smaller capacity"):
                    bloom.add_many(batch)
            with pytest.raises(RefusedError, match="maxmemory"):
                bloom.forget("item 3")
            assert bloom.contains_many(["item 1", "item 2", "item 150"]) == [False, True, False]
            assert {name: client.dump(name) for name in client.scan_iter("*")} == before
            with pytest.raises(RefusedError, match="maxmemory"):
                BloomFilter(client, f"{key}:other", **SMALL)
            client.config_set("maxmemory", 0)
            assert bloom.add("another")
            assert bloom.contains_many(["item 150", "new"]) == [False, False]
            assert bloom.add_many(ITEMS[50:200]) == [False] * 50 + [True] * 100
            assert bloom.add_many(["item 1", "item 2", "item 3", "new"]) == [True, False, False, True]


def test_foreign_data(client: redis.Redis, key: str) -> None:
    """Data of others at the key is refused, and stays; `flush` deletes it. Errors name the key."""
    client.lpush(key, "somebody's")
    with pytest.raises(
        WrongTypeError, match=rf"'{key}' holds a list that is not a filter: use another key \(SCHEDULER_"
    ):
        BloomFilter(client, key, **SMALL)
    assert client.lrange(key, 0, -1) == [b"somebody's"]
    bloom = BloomFilter(client, key, flush=True, **SMALL)
    assert bloom.add("a")
    client.delete(key)
    client.hset(key, "field", "somebody's")
    with pytest.raises(WrongTypeError, match="a hash that is not a filter"):
        bloom.add("b")
    client.delete(key)
    client.set(key, "somebody's")
    for call in (lambda: bloom.add("b"), lambda: "b" in bloom, bloom.info, bloom.clear):
        with pytest.raises(WrongTypeError, match=f"'{key}'"):
            call()
    assert client.get(key) == b"somebody's"


def test_other_parameters(client: Any, key: str) -> None:
    """Each parameter that differs is named with both values; a newer format is refused."""
    BloomFilter(client, key, capacity=1000, error_rate=1e-3, ttl=100, fingerprint="sha1")
    with pytest.raises(MismatchError) as caught:
        BloomFilter(client, key, capacity=2000, error_rate=1e-4, expansion=3)
    for part in (
        "start anew with flush=True (SCHEDULER_FLUSH_ON_START = True; ",
        "capacity = 2000 here, 1000",
        "error_rate = 0.0001 here, 0.001",
        "expansion = 3 here, 2",
    ):
        assert part in str(caught.value)
    assert "ttl = None here, 100.0 in" in str(caught.value)
    assert "fingerprint = 'bytes' here, 'sha1'" in str(caught.value)
    assert "hash" not in str(caught.value)
    client.hset(key, "parameters", client.hget(key, "parameters").replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(MismatchError, match="upgrade scrapy-bloom"):
        BloomFilter(client, key, capacity=1000, error_rate=1e-3, ttl=100, fingerprint="sha1")


def test_memory_of_an_item(client: redis.Redis, key: str) -> None:
    """At 1e-6 a full filter takes at most 4.3 bytes an item, in shards that are allocated exactly."""
    bloom = BloomFilter(client, key, capacity=100_000, error_rate=1e-6)
    bloom.add("a")
    used = sum(client.memory_usage(name) or 0 for name in (key.encode(), *shards(client, key)))
    # Valkey does not count the rounding of the allocator.
    assert 0.9 * bloom.info().memory_bytes < used <= 4.3 * 100_000
