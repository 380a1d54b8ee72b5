"""Steps that check items against the layers of a filter, and add them.

With layers 0 to j, an addition reads all of them, then marks in layer j; `outcomes` says what the reply means. Where
the truth is unknown an item is new: it may be fetched twice, never not at all. That is where bits that are found set
may be this worker's own, from before the filter or a reply was lost.
"""

from collections.abc import Sequence, Set
from typing import NamedTuple

from scrapy_bloom.filter.admission import MAX_RECOVERIES, Admission
from scrapy_bloom.filter.layer import NO_IDENTITY, Layer
from scrapy_bloom.filter.layer_stack import LayerStack, ShardState
from scrapy_bloom.filter.outcomes import Outcome, resolve
from scrapy_bloom.filter.pending_batch import NO_LAYER, Group, PendingBatch
from scrapy_bloom.storage.bits import CheckBits, LookUpBits
from scrapy_bloom.storage.operation import Steps

# What one round trip carries at most: more of it keeps others waiting, and may take longer than a timeout allows.
_CHUNK_BYTES = 1024 * 1024
# What a check takes on the wire, for each position and beside them.
_POSITION_BYTES = 36
_CHECK_BYTES = 64


class Added(NamedTuple):
    """The items that were new, and how many of them were `ambiguous` and taken for new."""

    new: set[bytes]
    ambiguous: int


class _Reading(NamedTuple):
    """The items found in some layers, the keys of shards that were lost, and whether the last layer is sealed."""

    present: set[bytes]
    lost: set[str]
    is_sealed: bool


def contains(admission: Admission, items: Sequence[bytes]) -> Steps[set[bytes]]:
    """Return the items that are in the filter, or that its error rate makes it take for such."""
    stack = admission.stack
    present: set[bytes] = set()
    start = 0
    while start < len(items):
        if stack.needs_rotation or not stack.layers:
            yield from admission.rotate(adds=False)
        if not stack.layers:
            break
        chunk = items[start : start + _max_chunk(stack)]
        start += len(chunk)
        present |= yield from _contains_chunk(admission, chunk)
    return present


def add(admission: Admission, items: Sequence[bytes], ambiguous: Set[bytes] = frozenset()) -> Steps[Added]:
    """Add different items, and return those that are new to every worker.

    The `ambiguous` ones may have been marked by an interrupted call. As many are added at once as a round trip can
    carry and as there is credit for.
    """
    stack = admission.stack
    batch = PendingBatch(items, ambiguous, stack.identity)
    while batch.groups:
        if stack.needs_rotation:
            yield from admission.rotate(adds=True)
        elif stack.is_stale:
            # Marks in a filter that took this one's place meanwhile would take room there.
            yield from admission.open()
        yield from _add_group(admission, batch, batch.next_group(_max_chunk(stack) if batch.size > 1 else 1))
    return Added(batch.new, batch.taken_for_new)


def _max_chunk(stack: LayerStack) -> int:
    """Return how many items one round trip may carry."""
    layers = stack.layers or [stack.parameters.first_layer(stack.key, NO_IDENTITY, 0, 0.0)]
    bytes_an_item = sum(_CHECK_BYTES + len(stack.key) + _POSITION_BYTES * layer.size.hashes for layer in layers)
    return max(1, _CHUNK_BYTES // bytes_an_item)


def _add_group(admission: Admission, batch: PendingBatch, group: Group) -> Steps[None]:
    """Add a group of items; those that there is no credit for are put off, marked as far as they were."""
    stack = admission.stack
    batch.pending, marked, identity = group
    while batch.pending:
        if batch.losses > MAX_RECOVERIES:
            admission.events.on_given_up(stack.key)
            batch.give_up()
            break
        newer = stack.newer_than(marked)
        if not newer or stack.identity != identity:
            batch.mark_ambiguous()
            marked, identity, newer = NO_LAYER, stack.identity, stack.layers
        lost = (yield from _remove_read(admission, batch, newer)) if len(newer) > 1 else set()
        if batch.pending and not lost:
            room = stack.credits.held(newer[-1]) if newer else 0
            if room < len(batch.pending):
                room = yield from _obtain_room(admission, batch, newer)
            if not room:
                continue
            batch.put_off(room, marked, identity)
            lost = yield from _mark(admission, batch, newer[-1])
        if lost or batch.pending:
            marked = yield from _go_on(admission, batch, lost, newer)


def _remove_read(admission: Admission, batch: PendingBatch, layers: Sequence[Layer]) -> Steps[set[str]]:
    """Read the layers that additions do not go to, and return the keys of shards that were lost."""
    reading = yield from _read(admission.stack, _checks(layers, batch.pending, mark=False), batch.pending)
    batch.remove_present(reading.present)
    return reading.lost


def _go_on(admission: Admission, batch: PendingBatch, lost: set[str], layers: Sequence[Layer]) -> Steps[int]:
    """Recover what was lost, or grow where the last layer was sealed; return the layer up to which items are marked."""
    if lost:
        yield from _recover(admission, batch, lost, layers[-1])
        return NO_LAYER
    if batch.pending:
        yield from admission.grow(layers[-1])
    return layers[-1].index


def _recover(admission: Admission, batch: PendingBatch, lost: set[str], marked: Layer) -> Steps[None]:
    """Open anew after shards were lost; what this worker may have marked, in this layer last, is ambiguous.

    In another filter, which has another key, it has marked nothing but strange bits: those take room as well.
    """
    before = admission.stack.identity
    batch.losses += 1
    batch.mark_ambiguous()
    yield from admission.recover(lost)
    now = admission.stack.identity
    if before is not None and now is not None and now.hash_key != before.hash_key:
        batch.forget_marks()
        yield from admission.charge(marked.index, batch.strays)


def _obtain_room(admission: Admission, batch: PendingBatch, layers: Sequence[Layer]) -> Steps[int]:
    """Get credit for what is pending, or for some of it, in the last of these layers, and return for how many.

    Returns 0 where another layer is the newest now, or where the filter was lost again and again.
    """
    credit = admission.stack.credits
    need = len(batch.pending)
    if not (yield from admission.obtain(need)):
        batch.losses = MAX_RECOVERIES + 1
        return 0
    if not layers or admission.stack.newest != layers[-1]:
        return 0
    return credit.held(layers[-1])


def _mark(admission: Admission, batch: PendingBatch, layer: Layer) -> Steps[set[str]]:
    """Mark what is pending in a layer, for credit, and ask for more for the items that follow.

    Returns the keys of shards that were lost.
    """
    stack = admission.stack
    number, following = len(batch.pending), batch.following
    checks = _checks([layer], batch.pending, mark=True)
    stack.credits.spend(number)
    carried = min(following, _max_chunk(stack)) if following else 0
    requested = admission.ask_ahead(layer, carried, batch.size)
    results = yield [*checks, *requested]
    stack.note_contact()
    replies: Sequence[tuple[int, bool]] = results[:number]
    if requested:
        admission.take(layer, results[number])
    if results.retried:
        batch.mark_pending_ambiguous()
    else:
        stack.credits.refund(layer, sum(was_present for _, was_present in replies))
    outcomes = [
        resolve(stack.state_of(header), was_present, batch.is_ambiguous(item))
        for item, (header, was_present) in zip(batch.pending, replies, strict=True)
    ]
    batch.record(outcomes)
    if not batch.pending:
        return set()
    is_lost = (Outcome.LOST, Outcome.LOST_AND_MARKED)
    return {check.key for check, outcome in zip(checks, outcomes, strict=True) if outcome in is_lost}


def _checks(layers: Sequence[Layer], items: Sequence[bytes], *, mark: bool) -> list[CheckBits]:
    return [CheckBits(*layer.locate(item), mark) for layer in layers for item in items]


def _contains_chunk(admission: Admission, items: Sequence[bytes]) -> Steps[set[bytes]]:
    stack = admission.stack
    present: set[bytes] = set()
    for _ in range(MAX_RECOVERIES):
        if not stack.layers:
            break
        newest = stack.newest
        looks = [LookUpBits(*layer.locate(item)) for layer in stack.layers for item in items]
        present, lost, is_sealed = yield from _read(stack, looks, items)
        if lost:
            yield from admission.recover(lost)
        elif not is_sealed or len(present) == len(items):
            break
        else:
            # Another worker has gone on to a layer that is not known here, or is about to.
            yield from admission.look()
            if not stack.layers or stack.newest == newest:
                break
    return present


def _read(stack: LayerStack, checks: Sequence[CheckBits | LookUpBits], items: Sequence[bytes]) -> Steps[_Reading]:
    """Check items against some layers, one layer after another, without marking any."""
    results = yield checks
    present: set[bytes] = set()
    lost: set[str] = set()
    for number, (check, (header, is_present)) in enumerate(zip(checks, results, strict=True)):
        if stack.state_of(header) is ShardState.FOREIGN:
            lost.add(check.key)
        elif is_present:
            present.add(items[number % len(items)])
    is_sealed = any(stack.state_of(header) is not ShardState.LIVE for header, _ in results[-len(items) :])
    return _Reading(present, lost, is_sealed)
