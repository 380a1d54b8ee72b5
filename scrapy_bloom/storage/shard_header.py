"""The first 64 bits of a shard: alive (7 bits), sealed (1), epoch (40), and 16 that are reserved.

A shard that never was, was deleted, or was made by a late write reads as not alive. The reserved bits are not part of
an `identity`, which is what a reply is recognised by.
"""

# A shard's first bytes, before its bits.
HEADER_BYTES = 8
BITS = 8 * HEADER_BYTES
ALIVE = 1
SEALED_BIT = 7
EPOCH_BITS = 40
RESERVED_BITS = 16
# No shard is shorter: with what the server keeps beside it, it fills the smallest size class or more.
MIN_SHARD_BYTES = 56


def live(epoch: int) -> int:
    """Return the identity of a shard that takes additions."""
    return ALIVE << (EPOCH_BITS + 1) | epoch


def sealed(epoch: int) -> int:
    """Return the identity of a shard that takes no additions any more."""
    return live(epoch) | 1 << EPOCH_BITS


def identity(header: int) -> int:
    """Return alive, sealed and epoch of a header as one number, to be compared with `live` and `sealed`."""
    return header >> RESERVED_BITS


def epoch(identity: int) -> int:
    """Return the epoch of a shard of this identity; 0 of what a late write left."""
    return identity & ((1 << EPOCH_BITS) - 1)


def is_alive(identity: int) -> bool:
    """Return whether an identity is that of a filter's shard, of whatever epoch."""
    return identity >> (EPOCH_BITS + 1) == ALIVE


def is_of(identity: int, epoch: int) -> bool:
    """Return whether an identity is that of a shard of this epoch which is alive, sealed or not."""
    return identity in (live(epoch), sealed(epoch))
