"""The results of a round trip that has failed as a whole, or in part."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

import redis

from scrapy_bloom.storage.operation import Results
from scrapy_bloom.transport.commands import Failure
from scrapy_bloom.transport.transport import failed_round_trip


def failed(error: Exception, number: int) -> Results:
    """Return the results of `number` operations whose connection failed with an error."""
    failures = failed_round_trip(error, number)
    results = Results(failures)
    results.failures = dict(enumerate(failures))
    return results


class Fate(Enum):
    """The fate of one operation of a round trip over a cluster."""

    ANSWERED = "executed"
    LOST = "executed, and its reply was lost"
    CUT_OFF = "not executed, and in doubt"
    REFUSED = "not executed"

    @property
    def is_executed(self) -> bool:
        """True if the node has executed it."""
        return self in (Fate.ANSWERED, Fate.LOST)

    @property
    def is_in_doubt(self) -> bool:
        """True if the worker does not know whether the node has executed it."""
        return self in (Fate.LOST, Fate.CUT_OFF)


def partly_failed(fates: Sequence[Fate], replies: Sequence[Any]) -> Results:
    """Return the results of operations with these fates, from the replies of the executed ones."""
    left = iter(replies)
    by_index = [(fate, next(left) if fate.is_executed else None) for fate in fates]
    failures = {
        index: Failure(redis.ConnectionError(fate.value), fate.is_in_doubt)
        for index, fate in enumerate(fates)
        if fate is not Fate.ANSWERED
    }
    results = Results(failures.get(index, reply) for index, (_, reply) in enumerate(by_index))
    results.failures = failures
    return results
