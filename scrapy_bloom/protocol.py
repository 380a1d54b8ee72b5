"""How items are checked against the layers of a filter and added to it, as steps (see `layers`).

With layers 0 to j: read all of them, then mark in layer j. Whoever finds a bit of j unset there, while j is not sealed,
has the new item. Whoever marks in a sealed layer goes on to the ones after it; nobody else can come that far with the
same item, since its bits are set now. Where the truth is unknown, because the bits that are found may be one's own from
before the filter was lost or a reply was, an item is new: it may be fetched twice, never not at all.
"""

import logging
from collections.abc import Sequence, Set
from typing import NamedTuple

from scrapy_bloom.layers import MOST_RECOVERIES, Layers
from scrapy_bloom.metadata import NO_IDENTITY, Identity, Layer
from scrapy_bloom.shards import Check
from scrapy_bloom.stored import Steps

logger = logging.getLogger(__name__)

# What one round trip carries at most: more of it keeps others waiting, and may take longer than a timeout allows.
_PART_BYTES = 1024 * 1024
# What a check takes on the wire, for each position and beside them.
_POSITION_BYTES = 36
_CHECK_BYTES = 64
# The index of a layer before all others.
NOWHERE = -1


def contains(layers: Layers, items: Sequence[bytes]) -> Steps[set[bytes]]:
    """The items that are in the filter, or that its error rate makes it take for such."""
    present: set[bytes] = set()
    start = 0
    while start < len(items):
        if layers.is_due or not layers.all:
            yield from layers.age()
        if not layers.all:
            break
        part = items[start : start + _most_in_part(layers)]
        start += len(part)
        present |= yield from _contains_part(layers, part)
    return present


def add(layers: Layers, items: Sequence[bytes], unsure: Set[bytes] = frozenset()) -> Steps[set[bytes]]:
    """Add different items, and give those that are new to every worker.

    The `unsure` ones may be marked already, by an attempt of which the end is not known. What a round trip can carry,
    and what there is credit for, is added at once.
    """
    batch = _Batch(items, unsure)
    batch.groups.append(_Group(list(items), NOWHERE, layers.identity))
    while batch.groups:
        if layers.is_due:
            yield from layers.age()
        elif layers.is_stale:
            # Marks in a filter that took this one's place meanwhile would take room there.
            yield from layers.open()
        group = batch.groups.pop()
        most = _most_in_part(layers) if len(group.items) > 1 else 1
        if len(group.items) > most:
            batch.groups.append(group._replace(items=group.items[most:]))
            group = group._replace(items=group.items[:most])
        yield from _add_group(layers, batch, group)
    layers.counters.ambiguous += batch.ambiguous
    return batch.new


def _most_in_part(layers: Layers) -> int:
    """How many items one round trip may carry."""
    checked = layers.all or [layers.plan.first_layer(layers.key, NO_IDENTITY, 0, 0.0)]
    each = sum(_CHECK_BYTES + len(layers.key) + _POSITION_BYTES * layer.size.hashes for layer in checked)
    return max(1, _PART_BYTES // each)


class _Group(NamedTuple):
    """Items that this worker has marked up to the same layer, of the filter with this identity, and no further."""

    items: list[bytes]
    marked: int
    identity: Identity | None


class _Batch:
    """What is known of the items that one worker adds at once."""

    def __init__(self, items: Sequence[bytes], unsure: Set[bytes]) -> None:
        self.size = len(items)
        self.groups: list[_Group] = []
        self.losses = 0
        self.pending: list[bytes] = []
        self.new: set[bytes] = set()
        self.ambiguous = 0
        self.strays = 0
        self._marked: set[bytes] = set()
        self._before = {item for item in items if item in unsure}
        self._unsure = set(self._before)

    @property
    def following(self) -> int:
        """How many items are put off."""
        return sum(len(group.items) for group in self.groups)

    def doubt(self) -> None:
        """From now on nobody can tell the bits that this worker has set from those that it would find."""
        self._unsure |= self._marked

    def forget_marks(self) -> None:
        """Whatever this worker has marked is nowhere to be found: the filter has another key now."""
        self._marked.clear()
        self._unsure = set(self._before)

    def read(self, present: set[bytes]) -> None:
        """Settle the items that are in a layer."""
        ambiguous = present & self._unsure
        self.new |= ambiguous
        self.ambiguous += len(ambiguous)
        self.pending = [item for item in self.pending if item not in present]

    def mark(self, layers: Layers, checks: Sequence[Check], found: Sequence[tuple[int, bool]]) -> set[str]:
        """Settle what marking settles, and keep the rest pending; gives the keys of shards that were lost."""
        lost: set[str] = set()
        again: list[bytes] = []
        self.strays = 0
        for item, check, (header, was_present) in zip(self.pending, checks, found, strict=True):
            if not layers.is_ours(header):
                lost.add(check.key)
                again.append(item)
                if not was_present:
                    self._unsure.add(item)
                    self.strays += 1
            elif was_present:
                if item in self._unsure:
                    self.new.add(item)
                    self.ambiguous += 1
            elif layers.is_live(header):
                self.new.add(item)
            else:
                self._marked.add(item)
                again.append(item)
        self.pending = again
        return lost

    def repeated(self) -> None:
        """An attempt whose reply was lost may have marked everything that is pending."""
        self._unsure.update(self.pending)


def _add_group(layers: Layers, batch: _Batch, group: _Group) -> Steps[None]:
    """Add a group of items; those that there is no credit for are put off, marked as far as they were."""
    batch.pending, marked, identity = group
    while batch.pending:
        if batch.losses > MOST_RECOVERIES:
            _take_for_new(layers, batch)
            break
        ahead = layers.after(marked)
        if not ahead or layers.identity != identity:
            batch.doubt()
            marked, identity, ahead = NOWHERE, layers.identity, layers.all
        lost: set[str] = set()
        if len(ahead) > 1:
            present, lost, _ = yield from _read(layers, ahead, batch.pending)
            batch.read(present)
        if batch.pending and not lost:
            room = yield from _room(layers, batch, ahead)
            if not room:
                continue
            if room < len(batch.pending):
                batch.groups.append(_Group(batch.pending[room:], marked, identity))
                batch.pending = batch.pending[:room]
            lost = yield from _mark(layers, batch, ahead[-1])
        if lost:
            marked = NOWHERE
            yield from _recover(layers, batch, lost, ahead[-1])
        elif batch.pending:
            marked = ahead[-1].index
            yield from layers.grow(ahead[-1])


def _recover(layers: Layers, batch: _Batch, lost: set[str], marked: Layer) -> Steps[None]:
    """Open anew after shards were lost, and doubt what this worker may have marked itself, in this layer last.

    In another filter, which has another key, it has marked nothing but strange bits: those take room as well.
    """
    before = layers.identity
    batch.losses += 1
    batch.doubt()
    yield from layers.recover(lost)
    now = layers.identity
    if before is not None and now is not None and now.hash_key != before.hash_key:
        batch.forget_marks()
        yield from layers.charge(marked.index, batch.strays)


def _room(layers: Layers, batch: _Batch, ahead: Sequence[Layer]) -> Steps[int]:
    """Get credit for what is pending in a batch, or for some of it, in the last of these layers.

    Gives 0 where another layer is the newest now, or where the filter was lost again and again.
    """
    need = len(batch.pending)
    if not ahead or layers.credits.held(ahead[-1]) < need:
        if not (yield from layers.obtain(need)):
            batch.losses = MOST_RECOVERIES + 1
            return 0
        if not ahead or layers.newest != ahead[-1]:
            return 0
    return layers.credits.held(ahead[-1])


def _mark(layers: Layers, batch: _Batch, layer: Layer) -> Steps[set[str]]:
    """Mark what is pending in a layer, for credit, and ask for more for the items that follow.

    Gives the keys of shards that were lost.
    """
    number, following = len(batch.pending), batch.following
    checks = _checks([layer], batch.pending, mark=True)
    layers.credits.spend(number)
    asked = layers.ask_ahead(layer, min(following, _most_in_part(layers)) if following else 0, batch.size)
    said = yield [*checks, *asked]
    layers.note_contact()
    found = said[:number]
    if asked:
        layers.take(layer, said[number])
    if said.repeated:
        batch.repeated()
    else:
        layers.credits.refund(layer, sum(was_present for _, was_present in found))
    return batch.mark(layers, checks, found)


def _take_for_new(layers: Layers, batch: _Batch) -> None:
    """Take everything for new that is not settled: nobody can know."""
    logger.warning("The filter at %r is lost again and again: all is new", layers.key)
    batch.new.update(batch.pending, *(group.items for group in batch.groups))
    batch.pending, batch.groups = [], []


def _checks(ahead: Sequence[Layer], items: Sequence[bytes], *, mark: bool) -> list[Check]:
    return [Check(*layer.locate(item), mark) for layer in ahead for item in items]


def _contains_part(layers: Layers, items: Sequence[bytes]) -> Steps[set[bytes]]:
    present: set[bytes] = set()
    for _ in range(MOST_RECOVERIES):
        if not layers.all:
            break
        newest = layers.newest
        present, lost, is_sealed = yield from _read(layers, layers.all, items)
        if lost:
            yield from layers.recover(lost)
        elif not is_sealed or len(present) == len(items):
            break
        else:
            # Another worker has gone on to a layer that is not known here, or is about to.
            yield from layers.open()
            if not layers.all or layers.newest == newest:
                break
    return present


def _read(layers: Layers, ahead: Sequence[Layer], items: Sequence[bytes]) -> Steps[tuple[set[bytes], set[str], bool]]:
    """The items in one of these layers, the keys of shards that were lost, and whether the last layer is sealed."""
    checks = _checks(ahead, items, mark=False)
    said = yield checks
    present: set[bytes] = set()
    lost: set[str] = set()
    for number, (check, (found, is_present)) in enumerate(zip(checks, said, strict=True)):
        if not layers.is_ours(found):
            lost.add(check.key)
        elif is_present:
            present.add(items[number % len(items)])
    is_sealed = any(not layers.is_live(found) for found, _ in said[-len(items) :])
    return present, lost, is_sealed
