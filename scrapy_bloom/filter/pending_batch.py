"""The items of one call: the outcome of each mark, and the unresolved items."""

from collections.abc import Callable, Sequence, Set
from enum import Enum
from typing import Any, NamedTuple

from scrapy_bloom.filter.layer import Identity
from scrapy_bloom.filter.layer_stack import ShardState
from scrapy_bloom.storage.operation import Results

# An index below all layers.
NO_LAYER = -1
# Items, a function for the results of their operations, and whether one operation has them all.
_UnderWay = tuple[Sequence[bytes], Callable[[Any], bool], bool]
_NONE_UNDER_WAY: _UnderWay = (), bool, False


class Outcome(Enum):
    """The outcome of marking an item in the newest layer."""

    NEW = "no worker had added it"
    SEEN = "it was there"
    CLAIMABLE = "it was there, and may be forgotten: unresolved"
    AMBIGUOUS = "it was there, perhaps by this worker's own interrupted call: taken for new"
    MARKED = "the layer is sealed: marked there, and the next layer decides"
    LOST = "its shard is gone: unresolved"
    LOST_AND_MARKED = "its shard is gone, and its bits were set in its place: unresolved and ambiguous"


def resolve(state: ShardState, was_present: bool, is_ambiguous: bool, is_marked: bool = False) -> Outcome:
    """Return an item's outcome from its shard's state and its bits before the mark.

    | shard          | all bits were set | ambiguous | outcome         |
    |----------------|-------------------|-----------|-----------------|
    | foreign        | no                | any       | LOST_AND_MARKED |
    | foreign        | yes               | any       | LOST            |
    | live or sealed | yes               | no        | SEEN            |
    | live or sealed | yes               | yes       | AMBIGUOUS       |
    | live           | no                | any       | NEW             |
    | sealed         | no                | any       | MARKED          |

    A shard that `is_marked` may hold forgotten items: each item whose bits were set there is CLAIMABLE.

    The worker that finds a bit unset in a live shard has the new item. A worker that marks in a
    sealed shard continues in the next layer. No other worker gets there with the same item: it
    would find the item's bits set.

    Example:
        >>> resolve(ShardState.LIVE, was_present=True, is_ambiguous=False)
        <Outcome.SEEN: 'it was there'>
    """
    if state is ShardState.FOREIGN:
        return Outcome.LOST if was_present else Outcome.LOST_AND_MARKED
    if was_present and is_marked:
        return Outcome.CLAIMABLE
    if was_present:
        return Outcome.AMBIGUOUS if is_ambiguous else Outcome.SEEN
    return Outcome.NEW if state is ShardState.LIVE else Outcome.MARKED


class Group(NamedTuple):
    """Items that this worker has marked in all layers up to `marked`.

    The layers are those of the filter with this identity.
    """

    items: list[bytes]
    marked: int
    identity: Identity | None


class PendingBatch:
    """The items of one call: `new`, `pending`, and put off in `groups`.

    An item is ambiguous if this call or an earlier, interrupted one may have set the bits that it
    would find. If the call fails, the items `in_doubt` are ambiguous to the next one.
    """

    def __init__(self, items: Sequence[bytes], ambiguous: Set[bytes], identity: Identity | None) -> None:
        self.size = len(items)
        self.groups = [Group(list(items), NO_LAYER, identity)]
        self.pending: list[bytes] = []
        self.new: set[bytes] = set()
        self.taken_for_new = 0
        self.losses = 0
        # Items of the last marking whose bits were set where their shard was lost.
        self.strays = 0
        # Forgotten items that this call has claimed: they are new although a layer holds them.
        self.claimed: set[bytes] = set()
        self._marked: set[bytes] = set()
        self._under_way = _NONE_UNDER_WAY
        self._ambiguous_before = {item for item in items if item in ambiguous}
        self.ambiguous = set(self._ambiguous_before)

    @property
    def following(self) -> int:
        """The number of items that are put off."""
        return sum(len(group.items) for group in self.groups)

    def next_group(self, max_items: int) -> Group:
        """Return the next group, of at most `max_items`; the rest is put off."""
        group = self.groups.pop()
        if len(group.items) > max_items:
            self.groups.append(group._replace(items=group.items[max_items:]))
            group = group._replace(items=group.items[:max_items])
        return group

    def put_off(self, number: int, marked: int, identity: Identity | None) -> None:
        """Keep at most `number` items pending, and put the others off."""
        if number < len(self.pending):
            self.groups.append(Group(self.pending[number:], marked, identity))
            self.pending = self.pending[:number]

    def begin(self, items: Sequence[bytes], changes_nothing: Callable[[Any], bool], *, by_one: bool = False) -> None:
        """Note that the first operations of the next round trip add these items, one each, until `end`.

        `by_one`: the first operation claims them all. `changes_nothing` returns whether a result proves that its
        operation has changed no item.
        """
        self._under_way = items, changes_nothing, by_one

    def end(self) -> None:
        """Note that the results of the round trip are recorded."""
        self._under_way = _NONE_UNDER_WAY

    def in_doubt(self, outcomes: Results | None) -> set[bytes]:
        """Return the items that this call may have added, if it fails: its caller gets no result.

        `outcomes` are the results of a round trip that failed, None if they are unknown.
        """
        items, changes_nothing, by_one = self._under_way
        return {*self.new, *self.ambiguous, *self.claimed, *self._marked}.union(
            item
            for index, item in enumerate(items)
            if outcomes is None or outcomes.may_have_changed(0 if by_one else index, changes_nothing)
        )

    def mark_ambiguous(self) -> None:
        """Treat this call's marks as ambiguous: the filter has changed since."""
        self.ambiguous |= self._marked

    def mark_retried(self, retried: Set[int]) -> None:
        """Treat pending items at these indexes as ambiguous: a lost attempt may have marked them."""
        self.ambiguous.update(self.pending[index] for index in retried if index < len(self.pending))

    def forget_marks(self) -> None:
        """Forget this call's marks: items have other positions under a new hash key."""
        self._marked.clear()
        self.ambiguous = set(self._ambiguous_before)

    def remove_present(self, present: set[bytes]) -> None:
        """Resolve the items that a layer holds."""
        self.new |= present & self.claimed
        for item in present & self.ambiguous - self.claimed:
            self._take_for_new(item)
        self.pending = [item for item in self.pending if item not in present]

    def record(self, outcomes: Sequence[Outcome]) -> None:
        """Record the outcomes of the pending items; unresolved items stay pending."""
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
        """Take all unresolved items for new: the truth is unknown."""
        self.new.update(self.pending, *(group.items for group in self.groups))
        self.pending, self.groups = [], []

    def _take_for_new(self, item: bytes) -> None:
        self.new.add(item)
        self.taken_for_new += 1

    def _note_own_bits(self, item: bytes, outcome: Outcome) -> None:
        if outcome is Outcome.MARKED:
            self._marked.add(item)
        elif outcome is Outcome.LOST_AND_MARKED:
            self.ambiguous.add(item)
            self.strays += 1
