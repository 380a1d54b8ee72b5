"""Each filter has its own hash key: links that hide a page in one filter hide it in no other."""

import itertools
import json
import logging
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter, MemoryBloomFilter, MismatchError
from scrapy_bloom.filter.base_filter import BaseBloomFilter

VICTIM = "https://shop.example/the-page-that-must-not-be-fetched"
SMALL: dict[str, Any] = {"capacity": 1000, "error_rate": 1e-6, "cache_size": 0}


def links_that_hide(bloom: BaseBloomFilter, victim: str) -> list[str]:
    """Links of another site that cover a page's bits, found offline with the filter's hash key."""
    layer = bloom._stack.newest
    uncovered = set(layer.locate(victim.encode())[1])
    links = []
    for number in itertools.count():
        link = f"https://evil.example/a{number}"
        positions = set(layer.locate(link.encode())[1])
        # At most one at a time: the links are new then, and are fetched.
        if positions & uncovered:
            uncovered -= positions
            links.append(link)
        if not uncovered:
            return links
    raise AssertionError


def test_links_that_hide_a_page_in_one_filter_do_not_hide_it_in_the_next() -> None:
    """About fifteen foreign links hide a page in one filter, and in no other."""
    attacked, other = MemoryBloomFilter(**SMALL), MemoryBloomFilter(**SMALL)
    for bloom in (attacked, other):
        bloom.add("the first")
    links = links_that_hide(attacked, VICTIM)
    assert len(links) <= 20
    for bloom in (attacked, other):
        assert all(bloom.add_many(links))
    assert VICTIM in attacked
    assert VICTIM not in other


def test_every_filter_draws_a_key(client: redis.Redis, key: str) -> None:
    """A hash key has 64 bits, is stored with the parameters, and differs between filters."""
    drawn = set()
    for number in range(100):
        BloomFilter(client, f"{key}:{number}")
        text = json.loads(client.hget(f"{key}:{number}", "filter") or "")["key"]
        assert len(text) == 16
        drawn.add(int(text, 16))
        client.unlink(f"{key}:{number}")
    assert len(drawn) == 100
    assert max(drawn) > 2**60


def test_the_key_is_in_no_log(client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """The hash key is in no log line, error or repr, through all events of a filter's life."""
    caplog.set_level(logging.DEBUG)
    bloom = BloomFilter(client, key, capacity=100)
    bloom.add_many([f"item {number}" for number in range(1000)])
    text = json.loads(client.hget(key, "filter") or "")["key"]
    layer = bloom._stack.newest
    client.unlink(f"{key}:0:0")
    bloom.add("after a loss")
    with pytest.raises(MismatchError) as refusal:
        BloomFilter(client, key, capacity=7)
    shown = (
        f"{caplog.text} {bloom!r} {bloom.info()!r} {layer!r} {layer.identity!r} {bloom.parameters!r} {refusal.value}"
    )
    number = layer.identity.hash_key
    assert number == int(text, 16)
    for secret in (text, str(number), f"{number:x}"):
        assert secret not in shown
