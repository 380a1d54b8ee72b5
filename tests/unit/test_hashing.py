"""Golden vectors that pin the stored format: the digest of an item, and its bits on a server."""

from collections import Counter
from typing import Any

import pytest
import redis

from scrapy_bloom.filter.parameters import digest
from scrapy_bloom.filter.sizing import BLOCK_BYTES, LayerSize
from scrapy_bloom.transport.scripts import Script

SECRET = b"0123456789abcdef0123456789abcdef"
GOLDEN = {
    b"": "ba2ba8a583c890cc70cea7cf19ebafb5",
    b"https://example.com/": "1173eb6bb32479197f0207301a63803e",
    "ü/日本".encode(): "452c5c98c659e1d6de0ed13bcc7b039f",
}
SIZE = LayerSize(100, 6, 25, 2)
CREATE = "filter.create(KEYS[1], 'id', ARGV[1], '', '{} {} {} {};', '0')".format(*SIZE)
CHECK = "local f = filter.open(KEYS[1]) for i = 1, #ARGV do filter.check(f, ARGV[i]) end filter.save(f)"


def bits_of(item: bytes) -> list[tuple[int, int]]:
    """Return the bytes and the masks of an item's bits in a layer, as the head of `filter.lua` has them."""
    first = (int.from_bytes(item[:6], "big") * SIZE.blocks >> 48) * BLOCK_BYTES
    return [(first + item[i], 1 << item[i + 1] % 8) for i in range(8, 8 + 2 * SIZE.hashes, 2)]


@pytest.mark.parametrize("item", GOLDEN)
def test_digests(item: bytes) -> None:
    """The digest of an item never changes: filters of older releases stay readable."""
    found = digest(item, SECRET)
    assert (found[:16].hex(), len(found)) == (GOLDEN[item], 64)


def test_bits(client: redis.Redis, key: str) -> None:
    """A server sets the bits of an item, in shards of two blocks, and no others."""
    items = [digest(item, SECRET) for item in GOLDEN]
    library = Script("filter").text
    client.eval(f"{library}\n{CREATE}", 1, key, SECRET)
    client.eval(f"{library}\n{CHECK}", 1, key, *items)
    shards: list[Any] = [client.get(f"{{{key}}}:id:1:{shard}") for shard in range(SIZE.shards)]
    assert {len(shard) for shard in shards[:-1]} == {SIZE.span * BLOCK_BYTES}
    expected = bytearray(SIZE.blocks * BLOCK_BYTES)
    for item in items:
        for place, mask in bits_of(item):
            expected[place] |= mask
    assert b"".join(shards) == expected


def test_bits_are_uniform() -> None:
    """Blocks, bytes and bits fall evenly, within 5 standard deviations by chi-square."""
    blocks, places, masks = Counter[int](), Counter[int](), Counter[int]()
    for number in range(20_000):
        found = bits_of(digest(b"%d" % number, SECRET))
        blocks[found[0][0] // BLOCK_BYTES] += 1
        places.update(place % BLOCK_BYTES for place, _ in found)
        masks.update(mask for _, mask in found)
    for counts, cells in ((blocks, SIZE.blocks), (places, BLOCK_BYTES), (masks, 8)):
        assert len(counts) == cells
        expected = counts.total() / cells
        statistic = sum((count - expected) ** 2 / expected for count in counts.values())
        assert abs(statistic - (cells - 1)) < 5 * (2 * (cells - 1)) ** 0.5
