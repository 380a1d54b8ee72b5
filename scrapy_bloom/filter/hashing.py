"""Hashing: from an item to its shard and positions; pinned by golden vectors.

The scheme is enhanced *triple* hashing over two mmh3 x64 128-bit digests: `x + i y + C(i,2) z +
C(i,3) mod m`. Source: Dillinger and Manolios, "Bloom Filters in Probabilistic Verification", 2004.
Enhanced double hashing has too few different probe sequences for small filters. Measured at an
error rate of 1e-6, it delivers 2.1 times the promised error at capacity 1,000, and 1.1 times at
10,000. This scheme is indistinguishable from independent positions. `python -m benchmarks hashing`
measures smaller filters, where the effect is larger, and agrees.

The digests are seeded with a key that each filter draws for itself. Without it anybody could
compute a few URLs whose bits cover those of another page, offline and once for every filter.
Source: Gerbet, Kumar and Lauradoux, "The Power of Evil Choices in Bloom Filters", 2015. But `mmh3`
is not a cryptographic hash. Where strangers choose the items, each item should itself be a digest,
such as Scrapy's SHA-1 fingerprints.
"""

from mmh3 import mmh3_x64_128_utupledigest

SCHEME = "mmh3-x64-128 enhanced triple"
KEY_BITS = 64

_SEED_BITS = 32
_SEED_MASK = (1 << _SEED_BITS) - 1


def locate(
    item: bytes, layer: int, *, hashes: int, shards: int, shard_bits: int, key: int = 0
) -> tuple[int, list[int]]:
    """Return the shard of an item in a layer, and its `hashes` positions in the shard.

    Each layer has its own seeds, counted on from the two halves of the filter's 64-bit `key`. The
    shard comes from a word of the digests that the positions do not use.
    """
    x, y = mmh3_x64_128_utupledigest(item, (2 * layer + key) & _SEED_MASK)
    z, word = mmh3_x64_128_utupledigest(item, (2 * layer + 1 + (key >> _SEED_BITS)) & _SEED_MASK)
    x, y, z = x % shard_bits, y % shard_bits, z % shard_bits
    positions = []
    for _ in range(hashes):
        positions.append(x % shard_bits)
        # The next term of the sum, by its differences: of the first, the second and the third
        # order, which is 1.
        x += y
        y += z
        z += 1
    return word * shards >> 64, positions
