"""Steps that forget items: each is new exactly once more, to one worker.

Bits are never cleared. The forgotten items are a set beside them, and the mark in each shard's header tells that there
is one. The set comes first, the marks follow in another round trip: a worker that sees a new mark empties its cache,
and must find the item in the set from then on.
"""

from collections.abc import Sequence

from scrapy_bloom.filter.membership import max_chunk, read
from scrapy_bloom.filter.protocol import MAX_RECOVERIES, FilterProtocol
from scrapy_bloom.storage import forgotten
from scrapy_bloom.storage.bits import CheckBits
from scrapy_bloom.storage.forgotten import DropForgotten, ForgetItems, MarkForgotten
from scrapy_bloom.storage.operation import Steps, one

# The shards that one round trip marks: other clients wait for so many scripts.
_MAX_MARKS = 1_000


def forget(protocol: FilterProtocol, items: Sequence[bytes]) -> Steps[set[bytes]]:
    """Forget items, and return the ones found in the filter."""
    forgotten_items: set[bytes] = set()
    step = max_chunk(protocol.stack)
    for start in range(0, len(items), step):
        forgotten_items |= yield from _forget_chunk(protocol, items[start : start + step])
    return forgotten_items


def _forget_chunk(protocol: FilterProtocol, items: Sequence[bytes]) -> Steps[set[bytes]]:
    for _ in range(MAX_RECOVERIES):
        # Only an addition restores a lost hash: another worker may be deleting the filter.
        yield from protocol.opening.refresh()
        layers = protocol.stack.layers
        if not layers:
            return set()
        reading = yield from read(protocol, layers, items, CheckBits)
        if not reading.lost:
            break
        yield from protocol.lifecycle.recover(reading.lost)
    else:
        return set()
    found = tuple((item, in_layers[-1][0]) for item, in_layers in reading.found.items())
    if found:
        yield from _forget_found(protocol, found, is_first=not reading.is_marked)
    return set(reading.found)


def _forget_found(protocol: FilterProtocol, found: tuple[tuple[bytes, int], ...], *, is_first: bool) -> Steps[None]:
    """Put items into the set, and mark all shards."""
    stack, epoch, key = protocol.stack, protocol.epoch, protocol.forgotten_key
    begin = protocol.opening.draw_version() if is_first else None
    expires = stack.parameters.expires_at(stack.newest.created)
    version: int | None = None
    for _ in range(MAX_RECOVERIES):
        if version is None:
            version = yield from one(ForgetItems(key, epoch, found, begin, expires))
        if version == forgotten.LOST:
            # The items are new with the shards, which are created anew.
            yield from protocol.lifecycle.recover((yield from protocol.lifecycle.discard_marked()))
            return
        shards = [shard for layer in stack.layers for shard in layer.shard_keys]
        outcomes: list[int] = []
        for begin_at in range(0, len(shards), _MAX_MARKS):
            outcomes += yield [
                MarkForgotten(shard, epoch, version) for shard in shards[begin_at : begin_at + _MAX_MARKS]
            ]
        lost = {shard for shard, outcome in zip(shards, outcomes, strict=True) if outcome == forgotten.ABSENT}
        if forgotten.ANOTHER_SET in outcomes:
            # The set was lost, or this worker was stopped while others forgot many items.
            lost |= yield from protocol.lifecycle.discard_marked()
            version = None
        elif not lost:
            return
        yield from protocol.lifecycle.recover(lost)
        if protocol.epoch != epoch:
            # Another filter has replaced this one, and lacks the items.
            yield [DropForgotten(key, epoch, tuple(item for item, _ in found))]
            return
