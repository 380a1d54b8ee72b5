"""The header of a shard, 64 bits: alive (7), sealed (1), epoch (40), reserved (16).

An absent or deleted shard reads as not alive, and so does a late write. The `identity` of a shard
is its header without the reserved bits.
"""

# A shard's bits follow these bytes.
HEADER_BYTES = 8
BITS = 8 * HEADER_BYTES
ALIVE = 1
SEALED_BIT = 7
EPOCH_BITS = 40
RESERVED_BITS = 16
# The epoch of a string that was allocated ahead of its layer: no filter has it.
PREPARED_EPOCH = 0
# The shortest shard: with the server's overhead it fills the smallest size class.
MIN_SHARD_BYTES = 56


def live(epoch: int) -> int:
    """Return the identity of a shard that accepts additions."""
    return ALIVE << (EPOCH_BITS + 1) | epoch


def sealed(epoch: int) -> int:
    """Return the identity of a sealed shard."""
    return live(epoch) | 1 << EPOCH_BITS


def identity(header: int) -> int:
    """Return the identity in a header."""
    return header >> RESERVED_BITS


def epoch(identity: int) -> int:
    """Return the epoch of an identity; 0 for late writes."""
    return identity & ((1 << EPOCH_BITS) - 1)


def is_alive(identity: int) -> bool:
    """Return whether an identity is that of a shard, of any epoch."""
    return identity >> (EPOCH_BITS + 1) == ALIVE


def is_of(identity: int, epoch: int) -> bool:
    """Return whether an identity is that of a shard of this epoch, sealed or not."""
    return identity in (live(epoch), sealed(epoch))
