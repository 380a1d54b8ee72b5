"""How items are checked against the layers of a filter and added to it, as steps (see `layers`).

With layers 0 to j: read all of them, then mark in layer j. Whoever finds a bit of j unset there, while j is not sealed,
has the new item. Whoever marks in a sealed layer goes on to the ones after it; nobody else can come that far with the
same item, since its bits are set now. Where the truth is unknown, because the bits that are found may be one's own from
before the filter was lost or a reply was, an item is new: it may be fetched twice, never not at all.
"""

import logging
import math
from collections.abc import Sequence, Set

from scrapy_bloom.layers import Layers, Steps
from scrapy_bloom.metadata import Layer
from scrapy_bloom.ops import Check
from scrapy_bloom.store import Said

logger = logging.getLogger(__name__)

# A server that loses the filter as often as this during one batch has no room for it.
_MOST_RECOVERIES = 8


def contains(layers: Layers, items: Sequence[bytes]) -> Steps[set[bytes]]:
    """The items that are in the filter, or that its error rate makes it take for such."""
    for _ in range(_MOST_RECOVERIES):
        if layers.is_due or not layers.all:
            yield from layers.age()
        newest = layers.newest
        present, lost, is_sealed = yield from _read(layers, layers.all, items)
        if lost:
            yield from layers.recover(lost)
        elif not is_sealed or len(present) == len(items):
            break
        else:
            # Another worker has gone on to a layer that is not known here, or is about to.
            yield from layers.open()
            if layers.newest == newest:
                break
    return present


def add(layers: Layers, items: Sequence[bytes], unsure: Set[bytes] = frozenset()) -> Steps[set[bytes]]:
    """Add different items, and give those that are new to every worker.

    The `unsure` ones may be marked already, by an attempt of which the end is not known.

    Where the newest layer has little room left they are added in parts, so that it is not overfilled.
    """
    new: set[bytes] = set()
    rest = items
    while rest:
        if layers.is_due or not layers.all:
            yield from layers.age()
        part = math.ceil(min(layers.allowance, len(rest)))
        added = yield from _add_part(layers, rest[:part], unsure)
        yield from layers.note_added(len(added))
        new |= added
        rest = rest[part:]
    return new


class _Batch:
    """What is known of the items that one worker adds at once."""

    def __init__(self, items: Sequence[bytes], unsure: Set[bytes]) -> None:
        self.pending = list(items)
        self.new: set[bytes] = set()
        self.ambiguous = 0
        self._marked: set[bytes] = set()
        self._unsure = {item for item in items if item in unsure}

    def doubt(self) -> None:
        """From now on nobody can tell the bits that this worker has set from those that it would find."""
        self._unsure |= self._marked

    def read(self, present: set[bytes]) -> None:
        """Settle the items that are in a layer."""
        ambiguous = present & self._unsure
        self.new |= ambiguous
        self.ambiguous += len(ambiguous)
        self.pending = [item for item in self.pending if item not in present]

    def mark(self, layers: Layers, checks: Sequence[Check], said: Said) -> set[str]:
        """Settle what marking settles, and keep the rest pending; gives the keys of shards that were lost."""
        lost: set[str] = set()
        again: list[bytes] = []
        if said.repeated:
            self._unsure.update(self.pending)
        for item, check, (found, was_present) in zip(self.pending, checks, said, strict=True):
            if not layers.is_ours(found):
                lost.add(check.key)
                again.append(item)
                if not was_present:
                    self._unsure.add(item)
            elif was_present:
                if item in self._unsure:
                    self.new.add(item)
                    self.ambiguous += 1
            elif layers.is_live(found):
                self.new.add(item)
            else:
                self._marked.add(item)
                again.append(item)
        self.pending = again
        return lost


def _add_part(layers: Layers, items: Sequence[bytes], unsure: Set[bytes]) -> Steps[set[bytes]]:
    batch = _Batch(items, unsure)
    looked, epoch, recoveries = -1, layers.epoch, 0
    while batch.pending:
        ahead = layers.after(looked)
        if not ahead or layers.epoch != epoch:
            batch.doubt()
            ahead, epoch = layers.all, layers.epoch
        lost: set[str] = set()
        if len(ahead) > 1:
            present, lost, _ = yield from _read(layers, ahead, batch.pending)
            batch.read(present)
        if batch.pending and not lost:
            checks = _checks(ahead[-1:], batch.pending, mark=True)
            said = yield checks
            lost = batch.mark(layers, checks, said)
        if lost:
            recoveries += 1
            if recoveries > _MOST_RECOVERIES:
                logger.warning("The filter at %r is lost again and again: all is new", layers.key)
                return batch.new.union(batch.pending)
            batch.doubt()
            looked = -1
            yield from layers.recover(lost)
        elif batch.pending:
            looked = ahead[-1].index
            yield from layers.grow(ahead[-1])
    layers.counters.ambiguous += batch.ambiguous
    return batch.new


def _checks(ahead: Sequence[Layer], items: Sequence[bytes], *, mark: bool) -> list[Check]:
    return [Check(*layer.locate(item), mark) for layer in ahead for item in items]


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
