"""Each filter has its own secret: links that hide a page in one filter hide it in no other."""

import itertools
import logging
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter, MismatchError
from scrapy_bloom.filter.sizing import BLOCK_BYTES, LayerSize

VICTIM = "https://shop.example/the-page-that-must-not-be-fetched"


def bits_of(bloom: BloomFilter, size: LayerSize, link: str) -> set[tuple[int, int, int]]:
    """Return the block and the bits of an item, as `block.lua` has them."""
    item, width = bloom._hash(link.encode()), BLOCK_BYTES // size.hashes
    block = int.from_bytes(item[:5], "big") * size.blocks >> 40
    return {(block, i * width + item[5 + i] % width, item[37 + i]) for i in range(size.hashes)}


def secret_of(client: Any, bloom: BloomFilter) -> bytes:
    """Return the secret of a filter."""
    return bytes(client.hget(bloom.key, "secret"))


def links_that_hide(bloom: BloomFilter, victim: str) -> list[str]:
    """Return links of another site that cover a page's bits, found offline with the filter's secret."""
    size = bloom.parameters.sizes()[0]
    uncovered = bits_of(bloom, size, victim)
    links = []
    for number in itertools.count():
        link = f"https://evil.example/a{number}"
        bits = bits_of(bloom, size, link)
        # At most one at a time: the links are new then, and are fetched.
        if bits & uncovered:
            uncovered -= bits
            links.append(link)
        if not uncovered:
            return links
    raise AssertionError


def test_links_that_hide_a_page_in_one_filter_do_not_hide_it_in_the_next(client: redis.Redis, key: str) -> None:
    """About sixteen foreign links hide a page in one filter, and in no other."""
    attacked, other = (BloomFilter(client, f"{key}:{n}", capacity=1000, cache_size=0) for n in range(2))
    links = links_that_hide(attacked, VICTIM)
    assert len(links) <= 20
    for bloom in (attacked, other):
        assert all(bloom.add_many(links))
    assert VICTIM in attacked
    assert VICTIM not in other


def test_every_filter_draws_a_secret(client: redis.Redis, key: str) -> None:
    """A secret has 128 bits, is stored, and differs between filters."""
    drawn = set()
    for number in range(20):
        bloom = BloomFilter(client, f"{key}:{number}", capacity=10)
        drawn.add(secret_of(client, bloom))
        bloom.clear()
    assert {len(secret) for secret in drawn} == {16}
    assert len(drawn) == 20


def test_the_secret_is_in_no_log(client: redis.Redis, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """The secret is in no log line, error or repr, through all events of a filter's life."""
    caplog.set_level(logging.DEBUG)
    small: dict[str, Any] = {"capacity": 100}
    bloom = BloomFilter(client, key, **small)
    secret = secret_of(client, bloom)
    bloom.add_many([f"item {number}" for number in range(1000)])
    client.unlink(f"{{{key}}}:{bloom._id}:1:0")
    bloom.add("after a loss")
    shown = [repr(bloom), repr(bloom.info()), repr(bloom.parameters)]
    with pytest.raises(MismatchError) as refusal:
        BloomFilter(client, key, capacity=7)
    client.unlink(key)
    bloom.add("after another loss")
    assert bloom.counters.losses == 2
    logged = " ".join([*shown, str(refusal.value), caplog.text])
    assert not any(text in logged for text in (repr(secret)[2:-1], secret.hex(), secret.decode("latin-1")))
