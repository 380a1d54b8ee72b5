"""A worker's knowledge of the items of one call: each change to it alone, without a store."""

from scrapy_bloom.filter.layer import Identity
from scrapy_bloom.filter.pending_batch import NO_LAYER, Group, Outcome, PendingBatch

IDENTITY = Identity(epoch=7, hash_key=8)
ITEMS = [b"a", b"b", b"c", b"d"]


def begun(items: list[bytes] = ITEMS, ambiguous: set[bytes] = frozenset()) -> PendingBatch:  # type: ignore[assignment]
    """A batch with all items pending."""
    batch = PendingBatch(items, ambiguous, IDENTITY)
    batch.pending = batch.next_group(len(items)).items
    return batch


def test_groups_are_cut_to_what_a_round_trip_carries() -> None:
    """A group too large for a round trip is split in the order of its items."""
    batch = PendingBatch(ITEMS, set(), IDENTITY)
    assert (batch.size, batch.following) == (4, 4)
    assert batch.next_group(3) == Group([b"a", b"b", b"c"], NO_LAYER, IDENTITY)
    assert batch.following == 1
    assert batch.next_group(3) == Group([b"d"], NO_LAYER, IDENTITY)
    assert (batch.following, batch.groups) == (0, [])


def test_items_without_credit_are_put_off() -> None:
    """They wait as a group of their own, with their marks; with room for all, no item waits."""
    batch = begun()
    batch.put_off(4, marked=2, identity=IDENTITY)
    assert (batch.pending, batch.groups) == (ITEMS, [])
    batch.put_off(1, marked=2, identity=IDENTITY)
    assert (batch.pending, batch.groups) == ([b"a"], [Group([b"b", b"c", b"d"], 2, IDENTITY)])


def test_outcomes_are_recorded() -> None:
    """New and ambiguous items are new, seen ones done, unresolved ones pending."""
    items = [b"new", b"seen", b"claimable", b"ambiguous", b"marked", b"lost", b"lost and marked"]
    batch = begun(items)
    batch.record(list(Outcome))
    assert batch.new == {b"new", b"ambiguous"}
    assert batch.taken_for_new == 1
    assert batch.pending == [b"claimable", b"marked", b"lost", b"lost and marked"]
    assert batch.strays == 1


def test_bits_where_a_shard_was_lost_are_our_own() -> None:
    """An item marked in a missing shard is ambiguous; an item whose bits were set is not."""
    batch = begun([b"lost", b"lost and marked"])
    batch.record([Outcome.LOST, Outcome.LOST_AND_MARKED])
    assert [item in batch.ambiguous for item in batch.pending] == [False, True]


def test_strays_are_those_of_the_last_marking() -> None:
    """Bits set earlier in a missing shard are not charged again."""
    batch = begun([b"a"])
    batch.record([Outcome.LOST_AND_MARKED])
    batch.record([Outcome.LOST])
    assert batch.strays == 0


def test_marks_are_ambiguous_once_the_filter_changed() -> None:
    """Marks of this call in a sealed layer are its own, until the filter changes."""
    batch = begun([b"marked", b"lost"])
    batch.record([Outcome.MARKED, Outcome.LOST])
    assert b"marked" not in batch.ambiguous
    batch.mark_ambiguous()
    assert [item in batch.ambiguous for item in batch.pending] == [True, False]


def test_retried_items_are_ambiguous() -> None:
    """Only items whose reply was lost are ambiguous. A request for credit, behind them, is no item."""
    batch = begun()
    batch.put_off(2, NO_LAYER, IDENTITY)
    batch.mark_retried({1, 2})
    assert [item in batch.ambiguous for item in ITEMS] == [False, True, False, False]


def test_marks_are_forgotten_with_the_filter() -> None:
    """In a filter of another hash key only items marked by an earlier call stay ambiguous."""
    batch = begun([b"before", b"marked", b"pending"], ambiguous={b"before", b"of another call"})
    batch.record([Outcome.LOST, Outcome.MARKED, Outcome.LOST_AND_MARKED])
    batch.mark_ambiguous()
    batch.forget_marks()
    assert [item in batch.ambiguous for item in (b"before", b"marked", b"pending", b"of another call")] == [
        True,
        False,
        False,
        False,
    ]
    batch.mark_ambiguous()
    assert b"marked" not in batch.ambiguous


def test_what_older_layers_hold_is_resolved() -> None:
    """An item read in older layers is seen, or new if it is ambiguous; the others stay pending."""
    batch = begun(ambiguous={b"b"})
    batch.remove_present({b"a", b"b"})
    assert (batch.new, batch.taken_for_new, batch.pending) == ({b"b"}, 1, [b"c", b"d"])


def test_giving_up_drops_nothing() -> None:
    """All unresolved items are new, deferred ones too; seen ones stay seen."""
    batch = begun()
    batch.record([Outcome.SEEN, Outcome.LOST, Outcome.LOST, Outcome.MARKED])
    batch.put_off(1, NO_LAYER, IDENTITY)
    batch.give_up()
    assert batch.new == {b"b", b"c", b"d"}
    assert (batch.pending, batch.groups) == ([], [])
