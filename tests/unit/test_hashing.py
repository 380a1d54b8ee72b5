"""Golden vectors that pin the stored format: the bytes of an item, and its bits on a server."""

from collections import Counter
from hashlib import sha1
from typing import Any

import pytest
import redis

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.sizing import BLOCK_BYTES, HASHES, LayerSize
from scrapy_bloom.transport.scripts import Script

SECRET = b"0123456789abcdef"
GOLDEN = {
    b"": "a7d14acf946de04bda08a7635c5bc38741bb2e817705fffd",
    b"https://example.com/": "63b860a400c13111723dfa7310d4f940284d3d806d312b5c",
    "ü/日本".encode(): "5e129b72352f31125254d0f4f572b4abf2b1fdb4dff48304",
}
hash_of = FilterParameters(fingerprint="scrapy-redis").hasher(SECRET)
CREATE = "filter.create(KEYS[1], 'f0', ARGV[1], '', '{} {} {} {};', '0')"
CHECK = "local f = filter.open(KEYS[1]) for i = 1, #ARGV do filter.check(f, ARGV[i]) end filter.save(f)"


def size(hashes: int) -> LayerSize:
    return LayerSize(100, 6, hashes, 2)


def bits_of(item: bytes, hashes: int) -> list[tuple[int, int]]:
    """Return the bytes and the masks of an item's bits in a layer, as the head of `block.lua` has them."""
    first = (int.from_bytes(item[:5], "big") * size(hashes).blocks >> 40) * BLOCK_BYTES
    width = BLOCK_BYTES // hashes
    return [(first + i * width + item[5 + i] % width, item[37 + i]) for i in range(hashes)]


@pytest.mark.parametrize("item", GOLDEN)
def test_bytes_of_an_item(item: bytes) -> None:
    """The bytes of an item never change: filters of older releases stay readable."""
    found = hash_of(item)
    assert (found[:24].hex(), len(found)) == (GOLDEN[item], 69)
    assert list(found[37:]) == [1 << (byte >> 5) for byte in found[5:37]]
    assert FilterParameters().hasher(SECRET)(item) == hash_of(sha1(item, usedforsecurity=False).digest())


@pytest.mark.parametrize("hashes", HASHES)
def test_bits(client: redis.Redis, key: str, hashes: int) -> None:
    """A server sets the bits of an item, in shards of two blocks, and no others."""
    items = [hash_of(item) for item in GOLDEN]
    library = Script("filter", "block").text + "\nlocal filter = load_filter()"
    client.eval(f"{library}\n{CREATE.format(*size(hashes))}", 1, key, SECRET)
    client.eval(f"{library}\n{CHECK}", 1, key, *items)
    shards: list[Any] = [client.get(f"{{{key}}}:f0:1:{shard}") for shard in range(size(hashes).shards)]
    assert {len(shard) for shard in shards[:-1]} == {2 * BLOCK_BYTES}
    expected = bytearray(6 * BLOCK_BYTES)
    for item in items:
        for place, mask in bits_of(item, hashes):
            expected[place] |= mask
    assert b"".join(shards) == expected


@pytest.mark.parametrize("hashes", HASHES)
def test_bits_are_uniform(hashes: int) -> None:
    """Blocks, bytes and bits fall evenly, within 5 standard deviations by chi-square."""
    blocks, places, masks = Counter[int](), Counter[int](), Counter[int]()
    for number in range(20_000):
        found = bits_of(hash_of(b"%d" % number), hashes)
        blocks[found[0][0] // BLOCK_BYTES] += 1
        places.update(place % BLOCK_BYTES for place, _ in found)
        masks.update(mask for _, mask in found)
    for counts, cells in ((blocks, 6), (places, BLOCK_BYTES), (masks, 8)):
        assert len(counts) == cells
        expected = counts.total() / cells
        statistic = sum((count - expected) ** 2 / expected for count in counts.values())
        assert abs(statistic - (cells - 1)) < 5 * (2 * (cells - 1)) ** 0.5
