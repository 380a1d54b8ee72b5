"""The header of a shard, 64 bits: alive (7), sealed (1), epoch (40), mark (16).

An absent or deleted shard reads as not alive, and so does a late write. The `identity` of a shard
is its header without the mark. The mark is 0 until an item of the filter is forgotten. From then on
it is a 1 and the version (15) of the forgotten items, which each forgetting changes.
"""

# A shard's bits follow these bytes.
HEADER_BYTES = 8
BITS = 8 * HEADER_BYTES
ALIVE = 1
SEALED_BIT = 7
EPOCH_BITS = 40
VERSION_BITS = 15
MARK_BITS = VERSION_BITS + 1
# The mark in a header: 0 if no item of the filter was forgotten.
MARK = (1 << MARK_BITS) - 1
# Versions of one set differ by less, since a shard soon has the newest one.
_MAX_DISTANCE = 1024
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
    return header >> MARK_BITS


def epoch(identity: int) -> int:
    """Return the epoch of an identity; 0 for late writes."""
    return identity & ((1 << EPOCH_BITS) - 1)


def is_alive(identity: int) -> bool:
    """Return whether an identity is that of a shard, of any epoch."""
    return identity >> (EPOCH_BITS + 1) == ALIVE


def is_of(identity: int, epoch: int) -> bool:
    """Return whether an identity is that of a shard of this epoch, sealed or not."""
    return identity in (live(epoch), sealed(epoch))


def ahead(version: int, before: int) -> int:
    """Return by how much a version, or the mark with it, is later than another one.

    Versions begin again after the last one, so that the result is at most half their number.
    """
    half = 1 << (VERSION_BITS - 1)
    return (version - before + half) % (2 * half) - half


def is_far(version: int, mark: int) -> bool:
    """Return whether a version and a mark are of two sets of forgotten items, or a worker was stopped in between."""
    return abs(ahead(version, mark)) > _MAX_DISTANCE
