"""The meaning of the reply to marking an item: one decision, as a table."""

from enum import Enum

from scrapy_bloom.filter.layer_stack import ShardState


class Outcome(Enum):
    """The outcome for an item that was marked in the newest layer."""

    NEW = "nobody had it before"
    SEEN = "it was there"
    AMBIGUOUS = "it was there, and may have come from this worker: it is taken for new"
    MARKED = "the layer is sealed: it is marked there, and the next layer decides"
    LOST = "its shard is gone: it is unresolved"
    LOST_AND_MARKED = "its shard is gone, and its bits were set where that was: it is unresolved, and ambiguous"


def resolve(state: ShardState, was_present: bool, is_ambiguous: bool) -> Outcome:
    """Return what became of an item, by the shard's header and by whether all of its bits were set before.

    | shard          | all bits were set | ambiguous | outcome         |
    |----------------|-------------------|-----------|-----------------|
    | foreign        | no                | any       | LOST_AND_MARKED |
    | foreign        | yes               | any       | LOST            |
    | live or sealed | yes               | no        | SEEN            |
    | live or sealed | yes               | yes       | AMBIGUOUS       |
    | live           | no                | any       | NEW             |
    | sealed         | no                | any       | MARKED          |

    Whoever finds a bit unset in a live shard has the new item. Whoever marks in a sealed one goes on to the next layer.
    Nobody else can come that far with the same item, since its bits are set now.

    Example:
        >>> resolve(ShardState.LIVE, was_present=True, is_ambiguous=False)
        <Outcome.SEEN: 'it was there'>
    """
    if state is ShardState.FOREIGN:
        return Outcome.LOST if was_present else Outcome.LOST_AND_MARKED
    if was_present:
        return Outcome.AMBIGUOUS if is_ambiguous else Outcome.SEEN
    return Outcome.NEW if state is ShardState.LIVE else Outcome.MARKED
