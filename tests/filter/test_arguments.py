"""Arguments of a plain filter: invalid values are refused by name before any command is sent."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter, ConfigError
from tests.support.servers import Server

SURROGATE = "https://example.com/\ud800"


@pytest.mark.parametrize("flush", ["no", "False", "0", "false", [0], 2, 1, None, ""])
def test_a_flush_that_is_no_bool(client: redis.Redis, key: str, flush: Any) -> None:
    """Only True deletes a filter; the text of an environment variable is refused."""
    BloomFilter(client, key, capacity=1000).add("kept")
    with pytest.raises(ConfigError, match=re.escape(f"flush = {flush!r}: must be True or False")):
        BloomFilter(client, key, capacity=1000, flush=flush)
    assert "kept" in BloomFilter(client, key, capacity=1000)
    assert "kept" not in BloomFilter(client, key, capacity=1000, flush=True)


BATCHES: dict[str, Callable[[BloomFilter, Any], Any]] = {
    "add_many": BloomFilter.add_many,
    "contains_many": BloomFilter.contains_many,
    "forget_many": BloomFilter.forget_many,
}


@pytest.mark.parametrize("text", ["http://example.com/", b"http://example.com/"])
@pytest.mark.parametrize("use", BATCHES)
def test_an_item_in_the_place_of_a_batch(client: redis.Redis, key: str, use: str, text: str | bytes) -> None:
    """A string is not taken for a batch of its letters."""
    bloom = BloomFilter(client, key)
    with pytest.raises(TypeError, match=re.escape(f"items = {text!r}: must be a list")):
        BATCHES[use](bloom, text)
    assert bloom.counters.added == 0


ITEMS: dict[str, Callable[[BloomFilter, Any], Any]] = {
    "add": BloomFilter.add,
    "is_cached": BloomFilter.is_cached,
    "in": BloomFilter.__contains__,
    "forget": BloomFilter.forget,
}


def use_in_batch(name: str) -> Callable[[BloomFilter, Any], Any]:
    return lambda bloom, item: BATCHES[name](bloom, ["a", item])


ITEMS.update({name: use_in_batch(name) for name in BATCHES})


@pytest.mark.parametrize("item", [["a"], {"a": 1}, 5, None, bytearray(b"a")])
@pytest.mark.parametrize("use", ITEMS)
def test_an_item_that_is_none(client: redis.Redis, key: str, use: str, item: Any) -> None:
    """Each method refuses an item of a wrong type in the same words."""
    bloom = BloomFilter(client, key)
    with pytest.raises(TypeError, match=re.escape(f"{item!r}: an item must be str or bytes")):
        ITEMS[use](bloom, item)
    assert bloom.counters.added == 0


@pytest.mark.parametrize("use", ITEMS)
def test_an_item_that_utf_8_cannot_encode(client: redis.Redis, key: str, use: str) -> None:
    """Half of a surrogate pair is refused by name, and no item of its batch is added."""
    bloom = BloomFilter(client, key)
    with pytest.raises(ConfigError, match=r"ud800': an item must be text that UTF-8 can encode"):
        ITEMS[use](bloom, SURROGATE)
    assert bloom.counters.added == 0


@pytest.mark.parametrize("name", ["", b"", SURROGATE, b"\xff", 5, None])
def test_a_key_that_is_none(valkey: Server, name: Any) -> None:
    """A key that is empty, or cannot be encoded as UTF-8, is refused."""
    with valkey.client() as client, pytest.raises(ConfigError, match=re.escape(f"key = {name!r}: must be text")):
        BloomFilter(client, name)


def test_a_key_as_bytes_is_the_same_key(client: redis.Redis, key: str) -> None:
    """A key given as bytes names the same filter as its text."""
    assert BloomFilter(client, key, capacity=1000).add("a")
    assert not BloomFilter(client, key.encode(), capacity=1000).add("a")
