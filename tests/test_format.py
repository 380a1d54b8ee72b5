"""The stored format is a promise: a filter that an older release wrote is opened as it is."""

import base64
import json
from pathlib import Path
from typing import Any

import redis

from scrapy_bloom import BloomFilter

STORED = json.loads((Path(__file__).parent / "data" / "filter-format-1.json").read_text())
ADDED = [f"https://example.com/{number}" for number in range(150)]


def restore(client: redis.Redis, key: str) -> None:
    """Put a filter of format 1, with its two full layers and one in use, onto a server."""
    client.hset(key, mapping=STORED["fields"])
    for suffix, bits in STORED["strings"].items():
        client.set(key + suffix, base64.b64decode(bits))


def dump(client: redis.Redis, key: str) -> dict[bytes, Any]:
    return {each: client.dump(each) for each in client.scan_iter(f"{key}*")}


def test_a_filter_of_format_1_is_opened_unchanged(client: redis.Redis, key: str) -> None:
    """Its parameters and layers are adopted, every item is found, and not one byte is written."""
    restore(client, key)
    before = dump(client, key)
    bloom = BloomFilter(client, key, capacity=50, error_rate=1e-3, fingerprint="scrapy-redis", cache_size=0)
    assert bloom.contains_many(ADDED) == [True] * len(ADDED)
    assert not any(bloom.add_many(ADDED))
    assert bloom.info().layers == len(STORED["strings"])
    assert dump(client, key) == before


def test_a_filter_of_format_1_goes_on_growing(client: redis.Redis, key: str) -> None:
    """What is added to it now is remembered beside what was there."""
    restore(client, key)
    bloom = BloomFilter(client, key, capacity=50, error_rate=1e-3, fingerprint="scrapy-redis", cache_size=0)
    assert sum(bloom.add_many([f"https://example.org/{number}" for number in range(500)])) >= 495
    assert bloom.info().layers > len(STORED["strings"])
    assert all(bloom.contains_many(ADDED))


def test_what_is_written_today_is_format_1(client: redis.Redis, key: str) -> None:
    """The fields of the hash are those of the stored example; a new one needs a new format."""
    bloom = BloomFilter(client, key, capacity=50, error_rate=1e-3, fingerprint="scrapy-redis")
    for name in ("filter", "layer:0"):
        written = json.loads(client.hget(key, name) or "")
        stored = json.loads(STORED["fields"][name])
        varying = {"epoch", "created"}
        assert written.keys() == stored.keys()
        assert {name: written[name] for name in written.keys() - varying} == {
            name: stored[name] for name in stored.keys() - varying
        }
    bloom.clear()
