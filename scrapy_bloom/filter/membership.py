"""Steps that look items up in the layers of a filter, and add them.

With layers 0 to j, an addition reads all of them, then marks in layer j; `pending_batch.resolve` interprets the reply.
Items that the read finds in layer j need no credit, so repeats alone never grow a filter of several layers. An item
whose truth is unknown is new: its page may be fetched twice, but never not at all. The truth is unknown where set bits
may be this worker's own, from before a loss of the filter or of a reply.
"""

from collections.abc import Sequence
from itertools import compress
from operator import itemgetter, not_
from typing import NamedTuple

from scrapy_bloom.filter.layer import NO_IDENTITY, Layer
from scrapy_bloom.filter.layer_stack import LayerStack, ShardState
from scrapy_bloom.filter.pending_batch import NO_LAYER, Group, Outcome, PendingBatch, resolve
from scrapy_bloom.filter.protocol import MAX_RECOVERIES, FilterProtocol
from scrapy_bloom.storage.bits import CheckBits, LookUpBits
from scrapy_bloom.storage.forgotten import Claim, ClaimForgotten, LookUpForgotten
from scrapy_bloom.storage.operation import Steps, one
from scrapy_bloom.storage.shard_header import MARK

# The largest round trip: a larger one would keep other clients waiting, and might exceed the
# timeout.
_MAX_CHUNK_BYTES = 1024 * 1024
# The bytes of a check on the wire: for each position, and for the rest.
_POSITION_BYTES = 36
_CHECK_BYTES = 64

_was_present = itemgetter(1)


class Reading(NamedTuple):
    """The items found in some layers, oldest first, with the marks of their shards.

    Also the keys of lost shards, and whether the last layer is sealed, and any shard marked.
    """

    found: dict[bytes, list[tuple[int, int]]]
    lost: set[str]
    is_sealed: bool
    is_marked: bool

    def claims(self) -> list[Claim]:
        """Return the claims of the items that may be forgotten."""
        oldest = (Claim(item, *layers[0]) for item, layers in self.found.items())
        return [claim for claim in oldest if claim.mark]


def contains(protocol: FilterProtocol, items: Sequence[bytes]) -> Steps[set[bytes]]:
    """Return the items in the filter; false positives occur at its error rate."""
    stack = protocol.stack
    present: set[bytes] = set()
    start = 0
    while start < len(items):
        if stack.needs_rotation or not stack.layers:
            yield from protocol.lifecycle.rotate(adds=False)
        if not stack.layers:
            break
        chunk = items[start : start + max_chunk(stack)]
        start += len(chunk)
        present |= yield from _contains_chunk(protocol, chunk)
    return present


def add(protocol: FilterProtocol, batch: PendingBatch) -> Steps[set[bytes]]:
    """Add the items of a batch, and return the items that no worker had added.

    Each round trip carries as many items as fit and as credit allows. If one fails, the batch has
    the items in doubt.
    """
    stack = protocol.stack
    while batch.groups:
        if stack.needs_rotation:
            yield from protocol.lifecycle.rotate(adds=True)
        elif stack.is_stale:
            # If another filter has replaced this one, marks in it would waste its room.
            yield from protocol.opening.open()
        yield from _add_group(protocol, batch, batch.next_group(max_chunk(stack) if batch.size > 1 else 1))
    return batch.new


def max_chunk(stack: LayerStack) -> int:
    """Return how many items one round trip may carry."""
    layers = stack.layers or [stack.first_layer(NO_IDENTITY, 0, 0.0)]
    bytes_an_item = sum(_CHECK_BYTES + len(stack.key) + _POSITION_BYTES * layer.size.hashes for layer in layers)
    return max(1, _MAX_CHUNK_BYTES // bytes_an_item)


def _add_group(protocol: FilterProtocol, batch: PendingBatch, group: Group) -> Steps[None]:
    """Add a group of items, and put off the items without credit."""
    stack = protocol.stack
    batch.pending, marked, identity = group
    while batch.pending:
        if batch.losses > MAX_RECOVERIES:
            protocol.events.on_given_up(stack.key)
            batch.give_up()
            break
        unmarked = stack.newer_than(marked)
        if not unmarked or stack.identity != identity:
            batch.mark_ambiguous()
            marked, identity, unmarked = NO_LAYER, stack.identity, stack.layers
        lost = (yield from _resolve_present(protocol, batch, unmarked)) if len(unmarked) > 1 else set()
        if batch.pending and not lost:
            room = stack.credits.held(unmarked[-1]) if unmarked else 0
            if room < len(batch.pending):
                room = yield from _obtain_room(protocol, batch, unmarked)
                if not room:
                    continue
                batch.put_off(room, marked, identity)
            lost = yield from _mark(protocol, batch, unmarked[-1])
        if lost or batch.pending:
            marked = yield from _recover_or_grow(protocol, batch, lost, unmarked[-1])


def _resolve_present(protocol: FilterProtocol, batch: PendingBatch, layers: Sequence[Layer]) -> Steps[set[str]]:
    """Resolve the items that the layers hold, and return the keys of lost shards.

    With a TTL, a forgotten item that this worker has claimed goes on to the newest layer: it is to be remembered from
    now on, and no longer than its old layer lives.
    """
    reading = yield from read(protocol, layers, batch.pending, CheckBits)
    lost = yield from _claim(protocol, batch, reading.claims())
    if lost:
        return lost
    present = set(reading.found)
    if protocol.stack.parameters.ttl:
        present -= _short_lived(batch, reading, layers[-1])
    batch.remove_present(present)
    return reading.lost


def _short_lived(batch: PendingBatch, reading: Reading, newest: Layer) -> set[bytes]:
    """Return the claimed items that the newest layer lacks."""
    return {item for item in batch.claimed & reading.found.keys() if reading.found[item][-1][0] != newest.index}


def _claim(protocol: FilterProtocol, batch: PendingBatch, claims: Sequence[Claim]) -> Steps[set[str]]:
    """Claim forgotten items, and return the keys of lost shards.

    If the set of the forgotten items was lost, any item may have been one of them: the marked shards count as lost.
    """
    if not claims:
        return set()
    items = [claim.item for claim in claims]
    batch.begin(items, not_, by_one=True)
    results = yield [ClaimForgotten(protocol.forgotten_key, protocol.epoch, tuple(claims))]
    if results.retried:
        batch.ambiguous.update(items)
    claimed = results[0]
    batch.claimed.update(compress(items, claimed or ()))
    batch.end()
    return set() if claimed else (yield from protocol.lifecycle.discard_marked())


def _recover_or_grow(protocol: FilterProtocol, batch: PendingBatch, lost: set[str], layer: Layer) -> Steps[int]:
    """Recover lost shards, or grow past the sealed layer.

    Return the layer up to which items are marked. After a loss this worker's marks, in `layer`
    last, are ambiguous. If the new filter has another hash key, they are stray bits that fill it:
    the counter of its layer with the same index is charged with them.
    """
    if not lost:
        yield from protocol.lifecycle.grow(layer)
        return layer.index
    before = protocol.stack.identity
    batch.losses += 1
    batch.mark_ambiguous()
    yield from protocol.lifecycle.recover(lost)
    now = protocol.stack.identity
    if before is not None and now is not None and now.hash_key != before.hash_key:
        batch.forget_marks()
        yield from protocol.lifecycle.charge(layer.index, batch.strays)
    return NO_LAYER


def _obtain_room(protocol: FilterProtocol, batch: PendingBatch, layers: Sequence[Layer]) -> Steps[int]:
    """Get credit for pending items in the last layer, and return for how many.

    Return 0 if another layer is the newest by now, or if the filter was lost again and again.
    """
    stack = protocol.stack
    if not (yield from protocol.obtain(len(batch.pending))):
        batch.losses = MAX_RECOVERIES + 1
        return 0
    if not layers or stack.newest != layers[-1]:
        return 0
    return stack.credits.held(layers[-1])


def _mark(protocol: FilterProtocol, batch: PendingBatch, layer: Layer) -> Steps[set[str]]:
    """Spend credit to mark the pending items in a layer; return keys of lost shards.

    Ask for the next items' credit in the same round trip.
    """
    stack = protocol.stack
    number = len(batch.pending)
    checks = [CheckBits(*layer.locate(item), mark=True) for item in batch.pending]
    following = min(batch.following, max_chunk(stack)) if batch.groups else 0
    requested = stack.credits.spend(layer, number, following=following, likely=batch.size)
    prepared = protocol.lifecycle.prepare_next(layer)
    batch.begin(batch.pending, _was_present)
    results = yield [*checks, *prepared, *requested]
    stack.note_contact()
    replies: Sequence[tuple[int, bool]] = results[:number]
    if prepared:
        protocol.lifecycle.note_prepared(results[number])
    if requested:
        protocol.take(layer, results[-1])
    if results.retried:
        batch.mark_retried(results.retried)
    protocol.note_marks(checks, replies)
    present = {index for index, (_, was_present) in enumerate(replies) if was_present}
    refunded = present - results.retried
    if refunded:
        stack.credits.refund(layer, len(refunded))
    states = [stack.state_of(header) for header, _ in replies]
    lost = {check.key for check, state in zip(checks, states, strict=True) if state is ShardState.FOREIGN}
    answers = list(zip(batch.pending, states, replies, strict=True))
    outcomes = [
        # An item that was claimed before, and is present here after all, is new to another worker.
        resolve(state, was_present, item in batch.ambiguous, bool(header & MARK) and item not in batch.claimed)
        for item, state, (header, was_present) in answers
    ]
    claims: list[Claim] = []
    if Outcome.CLAIMABLE in outcomes:
        claimable = zip(answers, outcomes, strict=True)
        claims = [
            Claim(item, layer.index, header & MARK)
            for (item, _, (header, _)), outcome in claimable
            if outcome is Outcome.CLAIMABLE
        ]
    batch.record(outcomes)
    batch.end()
    if claims:
        discarded = yield from _claim(protocol, batch, claims)
        lost |= discarded
        if not discarded:
            batch.remove_present({claim.item for claim in claims})
    return lost


def _contains_chunk(protocol: FilterProtocol, items: Sequence[bytes]) -> Steps[set[bytes]]:
    stack = protocol.stack
    present: set[bytes] = set()
    for _ in range(MAX_RECOVERIES):
        if not stack.layers:
            break
        newest = stack.newest
        reading = yield from read(protocol, stack.layers, items, LookUpBits)
        present = set(reading.found) - (yield from _forgotten(protocol, reading.claims()))
        if reading.lost:
            yield from protocol.lifecycle.recover(reading.lost)
        elif not reading.is_sealed or len(reading.found) == len(items):
            break
        else:
            # Another worker has appended a layer that is unknown here, or is about to.
            yield from protocol.opening.refresh()
            if not stack.layers or stack.newest == newest:
                break
    return present


def _forgotten(protocol: FilterProtocol, claims: Sequence[Claim]) -> Steps[set[bytes]]:
    """Return the items among these that a claim would make new: all of them if the set was lost."""
    if not claims:
        return set()
    items = tuple(claim.item for claim in claims)
    layers = yield from one(LookUpForgotten(protocol.forgotten_key, protocol.epoch, items))
    if layers is None:
        return set(items)
    return {claim.item for claim, layer in zip(claims, layers, strict=True) if layer >= claim.layer}


def read(
    protocol: FilterProtocol,
    layers: Sequence[Layer],
    items: Sequence[bytes],
    operation: type[CheckBits] | type[LookUpBits],
) -> Steps[Reading]:
    """Look items up in some layers, layer by layer, without marking any."""
    checks = [operation(*layer.locate(item)) for layer in layers for item in items]
    results = yield checks
    protocol.note_marks(checks, results)
    stack = protocol.stack
    found: dict[bytes, list[tuple[int, int]]] = {}
    lost: set[str] = set()
    for number, (check, (header, is_present)) in enumerate(zip(checks, results, strict=True)):
        if stack.state_of(header) is ShardState.FOREIGN:
            lost.add(check.key)
        elif is_present:
            layer, item = divmod(number, len(items))
            found.setdefault(items[item], []).append((layers[layer].index, header & MARK))
    is_sealed = any(stack.state_of(header) is not ShardState.LIVE for header, _ in results[-len(items) :])
    is_marked = any(header & MARK for header, _ in results)
    return Reading(found, lost, is_sealed, is_marked)
