"""The stored format is a promise: a filter of an older release is opened as it is."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli import key_contents
from scrapy_bloom.storage.stores import RedisStore

DATA = Path(__file__).parents[1] / "data"
FORMATS = {number: json.loads((DATA / f"filter-format-{number}.json").read_text()) for number in (1, 2)}
ADDED = [f"https://example.com/{number}" for number in range(150)]

each_format = pytest.mark.parametrize("stored", FORMATS.values(), ids=[f"format {number}" for number in FORMATS])


def restore(client: redis.Redis, key: str, stored: dict[str, Any]) -> None:
    """Restore a filter of an older format, with its full layer and one in use."""
    client.hset(key, mapping=stored["fields"])
    for suffix, bits in stored["strings"].items():
        client.set(key + suffix, base64.b64decode(bits))


def dump(client: redis.Redis, key: str) -> dict[bytes, Any]:
    return {each: client.dump(each) for each in client.scan_iter(f"{key}*")}


@each_format
def test_a_stored_filter_is_opened_unchanged(client: redis.Redis, key: str, stored: dict[str, Any]) -> None:
    """Its parameters and layers are adopted, every item is found, and no byte is written."""
    restore(client, key, stored)
    before = dump(client, key)
    bloom = BloomFilter(client, key, capacity=50, error_rate=1e-3, fingerprint="scrapy-redis", cache_size=0)
    assert bloom.contains_many(ADDED) == [True] * len(ADDED)
    assert not any(bloom.add_many(ADDED))
    assert bloom.info().layers == len(stored["strings"])
    assert dump(client, key) == before


@each_format
def test_a_stored_filter_goes_on_growing(client: redis.Redis, key: str, stored: dict[str, Any]) -> None:
    """A stored filter keeps its old items when new ones are added."""
    restore(client, key, stored)
    bloom = BloomFilter(client, key, capacity=50, error_rate=1e-3, fingerprint="scrapy-redis", cache_size=0)
    assert sum(bloom.add_many([f"https://example.org/{number}" for number in range(500)])) >= 495
    assert bloom.info().layers > len(stored["strings"])
    assert all(bloom.contains_many(ADDED))


def test_a_filter_of_format_1_begins_with_what_its_bits_say(client: redis.Redis, key: str) -> None:
    """A newest layer without a counter counts its items by their bits."""
    restore(client, key, FORMATS[1])
    bloom = BloomFilter(client, key, capacity=50, error_rate=1e-3, fingerprint="scrapy-redis", cache_size=0)
    counted = bloom.info().by_layer[-1].estimated_count
    assert 80 <= counted <= 120
    bloom.add("https://example.org/")
    epoch = json.loads(FORMATS[1]["fields"]["filter"])["epoch"]
    assert counted <= int(client.hget(key, f"credit:1:{epoch}") or 0) <= counted + 3


def test_retired_field(client: redis.Redis, key: str) -> None:
    """A filter with a retired field opens unchanged, grows, and can be deleted."""
    restore(client, key, FORMATS[2])
    client.hset(key, "merged:0:7", "40")
    before = dump(client, key)
    bloom = BloomFilter(client, key, capacity=50, error_rate=1e-3, fingerprint="scrapy-redis", cache_size=0)
    assert all(bloom.contains_many(ADDED))
    assert dump(client, key) == before
    bloom.add_many([f"https://example.org/{number}" for number in range(500)])
    assert bloom.info().layers > len(FORMATS[2]["strings"])
    store = RedisStore(client)
    assert key_contents.delete_contents(store, key_contents.inspect_key(store, key))
    assert dump(client, key) == {}


def test_what_is_written_today_is_format_2(client: redis.Redis, key: str) -> None:
    """The fields of the hash are those of the stored example; a new field needs a new format."""
    bloom = BloomFilter(client, key, capacity=50, error_rate=1e-3, fingerprint="scrapy-redis")
    bloom.add("https://example.com/")
    fields = FORMATS[2]["fields"]
    for name in ("filter", "layer:0"):
        written = json.loads(client.hget(key, name) or "")
        stored = json.loads(fields[name])
        varying = {"epoch", "created", "key"}
        assert written.keys() == stored.keys()
        assert {name: written[name] for name in written.keys() - varying} == {
            name: stored[name] for name in stored.keys() - varying
        }
    epoch = json.loads(client.hget(key, "filter") or "")["epoch"]
    assert set(client.hkeys(key)) == {b"filter", b"layer:0", f"credit:0:{epoch}".encode()}
    assert int(client.hget(key, f"credit:0:{epoch}") or 0) >= 1
    assert re.fullmatch(r"closed \d+", fields[next(name for name in fields if name.startswith("credit:0:"))])
    bloom.clear()
