"""The table that interprets a reply to marking an item, row by row."""

from itertools import product

import pytest

from scrapy_bloom.filter.layer_stack import ShardState
from scrapy_bloom.filter.pending_batch import Outcome, resolve

LIVE, SEALED, FOREIGN = ShardState.LIVE, ShardState.SEALED, ShardState.FOREIGN

# By the shard's header, whether all bits were set before, and whether they may be this worker's own.
TABLE = {
    (LIVE, False, False): Outcome.NEW,
    (LIVE, False, True): Outcome.NEW,
    (LIVE, True, False): Outcome.SEEN,
    (LIVE, True, True): Outcome.AMBIGUOUS,
    (SEALED, False, False): Outcome.MARKED,
    (SEALED, False, True): Outcome.MARKED,
    (SEALED, True, False): Outcome.SEEN,
    (SEALED, True, True): Outcome.AMBIGUOUS,
    (FOREIGN, False, False): Outcome.LOST_AND_MARKED,
    (FOREIGN, False, True): Outcome.LOST_AND_MARKED,
    (FOREIGN, True, False): Outcome.LOST,
    (FOREIGN, True, True): Outcome.LOST,
}


def test_every_combination_has_a_row() -> None:
    """Every possible reply is in the table."""
    assert set(TABLE) == set(product(ShardState, (False, True), (False, True)))


@pytest.mark.parametrize(
    ("state", "was_present", "is_ambiguous"), TABLE, ids=lambda value: getattr(value, "name", None)
)
def test_row(state: ShardState, was_present: bool, is_ambiguous: bool) -> None:
    """A reply has the outcome in the table."""
    assert resolve(state, was_present, is_ambiguous) is TABLE[state, was_present, is_ambiguous]


def test_nothing_is_dropped_for_what_may_be_our_own() -> None:
    """An item is seen only if its bits are in a shard of ours, and another worker set them."""
    seen = [row for row, outcome in TABLE.items() if outcome is Outcome.SEEN]
    assert all(state is not FOREIGN and was_present and not ambiguous for state, was_present, ambiguous in seen)
