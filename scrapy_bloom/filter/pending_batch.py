"""The items that a worker adds in one call, and its knowledge of them."""

from collections.abc import Sequence, Set
from typing import NamedTuple

from scrapy_bloom.filter.layer import Identity
from scrapy_bloom.filter.outcomes import Outcome

# The index of a layer before all others.
NO_LAYER = -1


class Group(NamedTuple):
    """Items that this worker has marked up to the same layer, of the filter with this identity, and no further."""

    items: list[bytes]
    marked: int
    identity: Identity | None


class PendingBatch:
    """The items of one call: those that are `new`, those that are `pending`, and the `groups` that are put off.

    An item is ambiguous if an interrupted call may have added it: those are `ambiguous` at first. It becomes ambiguous
    if this call may have set the bits that it would find.
    """

    def __init__(self, items: Sequence[bytes], ambiguous: Set[bytes], identity: Identity | None) -> None:
        self.size = len(items)
        self.groups = [Group(list(items), NO_LAYER, identity)]
        self.pending: list[bytes] = []
        self.new: set[bytes] = set()
        self.taken_for_new = 0
        self.losses = 0
        # Items whose bits were set where their shard was lost, by the last marking.
        self.strays = 0
        self._marked: set[bytes] = set()
        self._ambiguous_before = {item for item in items if item in ambiguous}
        self._ambiguous = set(self._ambiguous_before)

    @property
    def following(self) -> int:
        """The number of items that are put off."""
        return sum(len(group.items) for group in self.groups)

    def next_group(self, most: int) -> Group:
        """Return the next group, of at most so many items; the rest of it is put off."""
        group = self.groups.pop()
        if len(group.items) > most:
            self.groups.append(group._replace(items=group.items[most:]))
            group = group._replace(items=group.items[:most])
        return group

    def put_off(self, number: int, marked: int, identity: Identity | None) -> None:
        """Keep at most so many items pending, and put the others off."""
        if number < len(self.pending):
            self.groups.append(Group(self.pending[number:], marked, identity))
            self.pending = self.pending[:number]

    def is_ambiguous(self, item: bytes) -> bool:
        """Return whether the bits of an item, if they are found set, may be this worker's own."""
        return item in self._ambiguous

    def mark_ambiguous(self) -> None:
        """Treat every item that this call has marked as ambiguous: the filter changed under it."""
        self._ambiguous |= self._marked

    def mark_pending_ambiguous(self) -> None:
        """Treat everything that is pending as ambiguous: an attempt whose reply was lost may have marked it."""
        self._ambiguous.update(self.pending)

    def forget_marks(self) -> None:
        """Forget what this call has marked: the filter has another key now, and the marks are nowhere to be found."""
        self._marked.clear()
        self._ambiguous = set(self._ambiguous_before)

    def remove_present(self, present: set[bytes]) -> None:
        """Resolve the items that were read in a layer."""
        for item in present & self._ambiguous:
            self._take_for_new(item)
        self.pending = [item for item in self.pending if item not in present]

    def record(self, outcomes: Sequence[Outcome]) -> None:
        """Take over the outcomes of the pending items; those that are unresolved stay pending."""
        unresolved: list[bytes] = []
        self.strays = 0
        for item, outcome in zip(self.pending, outcomes, strict=True):
            if outcome is Outcome.NEW:
                self.new.add(item)
            elif outcome is Outcome.AMBIGUOUS:
                self._take_for_new(item)
            elif outcome is not Outcome.SEEN:
                unresolved.append(item)
                self._note_own_bits(item, outcome)
        self.pending = unresolved

    def give_up(self) -> None:
        """Take everything that is unresolved for new: nobody can know."""
        self.new.update(self.pending, *(group.items for group in self.groups))
        self.pending, self.groups = [], []

    def _take_for_new(self, item: bytes) -> None:
        self.new.add(item)
        self.taken_for_new += 1

    def _note_own_bits(self, item: bytes, outcome: Outcome) -> None:
        if outcome is Outcome.MARKED:
            self._marked.add(item)
        elif outcome is Outcome.LOST_AND_MARKED:
            self._ambiguous.add(item)
            self.strays += 1
