"""Foreign keys are neither overwritten nor deleted; a lost hash is reported."""

import logging
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter, MismatchError, RefusedError, WrongTypeError
from scrapy_bloom.storage.filter_keys import forgotten_key
from tests.support.selection import valkey_first

SMALL: dict[str, Any] = {"capacity": 100, "error_rate": 1e-3, "cache_size": 0}
ITEMS = [f"item {number}" for number in range(50)]


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize(
    "content", ["somebody's text", "", "\x05\x00", "\x02\x05protobuf"], ids=["text", "empty", "bytes", "like a shard"]
)
def test_a_string_of_others_is_refused_at_the_start(client: redis.Redis, key: str, content: str) -> None:
    """A foreign string at a shard's key stops the start; all keys stay as they are."""
    client.set(f"{key}:0:0", content)
    with pytest.raises(WrongTypeError, match=f"{key}:0:0"):
        BloomFilter(client, key, **SMALL)
    assert client.get(f"{key}:0:0") == content.encode()
    assert not client.exists(key)


def test_a_string_of_others_in_the_way_of_a_growth(client: redis.Redis, key: str) -> None:
    """A foreign string at the next layer's key stops the growth, and stays."""
    client.set(f"{key}:1:0", "somebody's text")
    bloom = BloomFilter(client, key, **SMALL)
    with pytest.raises(WrongTypeError, match=f"{key}:1:0"):
        bloom.add_many([f"item {number}" for number in range(1000)])
    assert client.get(f"{key}:1:0") == b"somebody's text"
    assert not client.hexists(key, "layer:1")
    client.unlink(f"{key}:1:0")
    assert sum(bloom.add_many([f"other {number}" for number in range(1000)])) >= 990
    bloom.clear()
    assert list(client.scan_iter(f"{key}*")) == []


def test_clear_leaves_what_is_foreign(client: redis.Redis, key: str) -> None:
    """No filter opens at the shard key `x:0:0` of `x`.

    If the shard is lost a filter can open there, and `x` does not delete it.
    """
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add("a")
    with pytest.raises(WrongTypeError, match="string"):
        BloomFilter(client, f"{key}:0:0", **SMALL)
    client.unlink(f"{key}:0:0")
    inner = BloomFilter(client, f"{key}:0:0", **SMALL)
    assert inner.add("b")
    bloom.clear()
    assert not client.exists(key)
    assert not inner.add("b")
    with pytest.raises(WrongTypeError, match=f"{key}:0:0"):
        BloomFilter(client, key, **SMALL)


def test_clear_leaves_a_filter_at_the_key_of_the_forgotten_items(client: redis.Redis, key: str) -> None:
    """A filter can open where `x` would keep its forgotten items: `x` forgets none then, and does not delete it."""
    bloom, other = BloomFilter(client, key, **SMALL), BloomFilter(client, forgotten_key(key), **SMALL)
    bloom.add("a")
    assert other.add("b")
    with pytest.raises(RefusedError, match="another type"):
        bloom.forget("a")
    bloom.clear()
    assert not client.exists(key)
    assert client.exists(other.key)
    assert not other.add("b")


def test_a_deleted_hash_is_put_back(client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """An active worker restores a deleted hash: other workers, too, see all items of the filter."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add_many(ITEMS)
    client.unlink(key)
    more = [f"more {number}" for number in range(500)]
    assert sum(bloom.add_many(more)) >= 495
    assert not any(bloom.add_many(ITEMS))
    assert not any(BloomFilter(client, key, **SMALL).add_many([*ITEMS, *more]))
    assert [text for text in warnings_in(caplog) if "is restored" in text]
    assert bloom.info().estimated_error_rate <= 1.1e-3


def test_a_restored_filter_does_not_grow(client: redis.Redis, key: str) -> None:
    """A filter that may not grow has no further layer after its hash was restored."""
    bloom = BloomFilter(client, key, expansion=0, **SMALL)
    bloom.add_many(ITEMS)
    client.unlink(key)
    assert sum(bloom.add_many([f"more {number}" for number in range(200)])) >= 190
    assert client.hexists(key, "layer:0")
    assert not client.hexists(key, "layer:1")
    assert not any(bloom.add_many(ITEMS))
    # Of 250 items at least 190 are new; the estimate from 1,984 bits with 7 hashes has a standard deviation of 5.
    assert bloom.info().estimated_count >= 210


def test_a_deleted_hash_with_nobody_at_work(client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """The loss of a hash that no active worker knows is logged at the next opening."""
    BloomFilter(client, key, **SMALL).add_many(ITEMS)
    client.unlink(key)
    bloom = BloomFilter(client, key, **SMALL)
    assert any("is gone" in text and key in text for text in warnings_in(caplog))
    assert all(bloom.add_many(ITEMS))
    bloom.clear()
    assert list(client.scan_iter(f"{key}*")) == []


def test_a_hash_without_its_parameters(client: redis.Redis, key: str) -> None:
    """A worker that finds the layers without the parameters restores these and continues."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add_many(ITEMS)
    client.hdel(key, "filter")
    assert sum(bloom.add_many([f"more {number}" for number in range(500)])) >= 495
    assert not any(bloom.add_many(ITEMS))


def test_a_hash_that_is_put_back_by_who_knows_little(client: redis.Redis, key: str) -> None:
    """Items that others added to a restored layer count by their bits."""
    options: dict[str, Any] = {"capacity": 2000, "error_rate": 1e-2, "cache_size": 0}
    early, busy = BloomFilter(client, key, **options), BloomFilter(client, key, **options)
    early.add("first")
    busy.add_many([f"item {number}" for number in range(1900)])
    client.unlink(key)
    early.add_many([f"more {number}" for number in range(500)])
    by_layer = early.info().by_layer
    assert len(by_layer) > 1
    assert by_layer[0].estimated_error_rate + sum(layer.error_rate for layer in by_layer[1:]) <= 1e-2


def test_a_hash_that_is_not_put_back(client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A worker that missed a growth does not restore the hash: a new filter begins."""
    late, busy = BloomFilter(client, key, **SMALL), BloomFilter(client, key, **SMALL)
    late.add("first")
    busy.add_many([f"item {number}" for number in range(600)])
    assert busy.info().layers > 1
    client.unlink(key)
    late._run(late._protocol.opening.open())
    assert not [text for text in warnings_in(caplog) if "is restored" in text]
    assert [text for text in warnings_in(caplog) if "was replaced" in text]
    assert not client.exists(key)
    # The worker that knows all layers does restore it.
    busy._run(busy._protocol.opening.open())
    assert [text for text in warnings_in(caplog) if "is restored" in text]
    assert not any(late.add_many([f"item {number}" for number in range(600)]))


@valkey_first
def test_a_counter_that_was_deleted(client: redis.Redis, key: str) -> None:
    """Without its credit counter a layer grants no more credit."""
    workers = [BloomFilter(client, key, capacity=20_000, error_rate=1e-3, cache_size=0) for _ in range(16)]
    for number, bloom in enumerate(workers):
        bloom.add_many([f"{number} {item}" for item in range(300)])
    (field,) = (name for name in client.hkeys(key) if name.startswith(b"credit:"))  # type: ignore[arg-type]  # bytes
    client.hdel(key, field)
    for number, bloom in enumerate(workers):
        bloom.add_many([f"more {number} {item}" for item in range(2000)])
        bloom.close()
    info = workers[0].info()
    assert info.layers > 1
    assert info.estimated_error_rate <= 1e-3


def test_clear_finds_layers_of_which_no_hash_tells(client: redis.Redis, key: str) -> None:
    """The layers of a lost hash are deleted by the next filter's `clear`."""
    BloomFilter(client, key, **SMALL).add_many([f"item {number}" for number in range(2000)])
    client.unlink(key)
    for flush in (False, True):
        bloom = BloomFilter(client, key, flush=flush, **SMALL)
        bloom.add("a")
    bloom.clear()
    assert list(client.scan_iter(f"{key}*")) == []


DAMAGED: dict[str, dict[str, bytes]] = {
    "bytes": {"\xff": b"\xff\xfe"},
    "an endless epoch": {"filter": b'{"format": 2, "epoch": 1e999}'},
    "a deep list": {"filter": b"[" * 100_000},
    "a list": {"filter": b"[]"},
    "a number": {"filter": b"7"},
}


@pytest.mark.parametrize("fields", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_hash_is_refused(client: redis.Redis, key: str, fields: dict[str, bytes]) -> None:
    """A damaged hash is refused when it is opened, and `flush=True` starts afresh."""
    client.hset(key, mapping=fields)  # type: ignore[arg-type]  # bytes are values too
    with pytest.raises(WrongTypeError, match="is not a filter"):
        BloomFilter(client, key, **SMALL)
    assert BloomFilter(client, key, flush=True, **SMALL).add("a")


@pytest.mark.parametrize("text", [b"x", b"", b"closed x", b"99999999999999999999"])
def test_a_damaged_counter_is_refused(client: redis.Redis, key: str, text: bytes) -> None:
    """A counter that is no number ends an active worker with an error that names the filter."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add("a")
    (field,) = (name for name in client.hkeys(key) if name.startswith(b"credit:"))  # type: ignore[arg-type]  # bytes
    client.hset(key, field, text)
    try:
        assert bloom.add_many(ITEMS) == [True] * len(ITEMS)
    except WrongTypeError as error:
        assert key in str(error)  # noqa: PT017  # one of both


def test_a_shard_that_a_late_write_made_longer(client: redis.Redis, key: str) -> None:
    """A late write of a larger filter extends the new filter's shard, which stays valid."""
    late = BloomFilter(client, key, capacity=1000, error_rate=1e-3, cache_size=0)
    late.add("a")
    BloomFilter(client, key, flush=True, **SMALL).add("of the other")
    before = client.strlen(f"{key}:0:0")
    with pytest.raises(MismatchError):
        late.add("b")
    assert client.strlen(f"{key}:0:0") > before
    other = BloomFilter(client, key, **SMALL)
    assert "of the other" in other
    other.clear()
    assert list(client.scan_iter(f"{key}*")) == []


def test_a_cleared_filter_is_not_put_back(client: redis.Redis, key: str) -> None:
    """A filter cleared by another worker is not restored like a lost hash: its items are new again."""
    one, other = BloomFilter(client, key, **SMALL), BloomFilter(client, key, **SMALL)
    one.add_many(ITEMS)
    assert not any(other.add_many(ITEMS))
    one.clear()
    assert all(other.add_many(ITEMS))
    assert not any(one.add_many(ITEMS))


def test_a_key_as_bytes_is_the_same_key(client: redis.Redis, key: str) -> None:
    """A key given as bytes names the same filter as its text."""
    assert BloomFilter(client, key, **SMALL).add("a")
    assert not BloomFilter(client, key.encode(), **SMALL).add("a")
    assert sorted(client.scan_iter(f"*{key}*")) == [key.encode(), f"{key}:0:0".encode()]


@pytest.mark.parametrize("strange", [b"\xff\xfe", 7, None])
def test_a_key_that_is_no_name_is_refused(client: redis.Redis, strange: Any) -> None:
    """A key that is neither text nor its UTF-8 is refused with its value."""
    with pytest.raises(ValueError, match="key = "):
        BloomFilter(client, strange, **SMALL)


def restore(client: redis.Redis, bloom: BloomFilter, other: BloomFilter) -> None:
    """Delete the hash alone; one filter restores it, and the other one opens it again."""
    client.unlink(bloom.key)
    assert other.add_many([f"other {number}" for number in range(100)])
    assert client.hexists(bloom.key, "filter")
    bloom.info()


def replace(client: redis.Redis, bloom: BloomFilter, other: BloomFilter) -> None:
    """Clear the filter, and use the new one in both."""
    assert client.exists(bloom.key)
    other.clear()
    assert other.add("a")
    assert not bloom.add("a")


@pytest.mark.parametrize("change", [restore, replace])
def test_references_outlive_the_filter(client: redis.Redis, key: str, change: Any) -> None:
    """A filter that was replaced or restored has the references of all its users."""
    bloom, other = (BloomFilter(client, key, **SMALL) for _ in range(2))
    bloom.add_reference("news:requests")
    other.add_reference("shop:requests")
    bloom.add("a")
    other.add("b")
    change(client, bloom, other)
    assert not other.remove_reference("shop:requests")
    assert not bloom.add("a")
    assert other.info().estimated_count > 0
    assert not client.hexists(key, "user:shop:requests")
    assert bloom.remove_reference("news:requests")
    assert list(client.scan_iter(f"{key}*")) == []
