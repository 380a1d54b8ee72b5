"""A whole filter with its cache as the steps of a worker, for the search.

The filter runs on the recorded replies. Where these end, it is abandoned, the search gives the next reply, and a new
filter runs from the beginning. So the real code of a call is searched, although it is no generator.
"""

from collections.abc import Callable
from typing import Any

from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.storage.operation import Operations, Results, Steps
from tests.support.schedule_search import Draws, Work

Script = Callable[[BaseBloomFilter], Any]


class Paused(BaseException):
    """Raised where the recorded replies end, with the next operations."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations


class RecordedStore:
    """Returns recorded replies, and keeps the time of the last one."""

    def __init__(self, replies: list[tuple[float, Results]], now: float) -> None:
        self.now = now
        self._replies = iter(replies)

    def execute(self, operations: Operations) -> Results:
        """The next reply."""
        reply = next(self._replies, None)
        if reply is None:
            raise Paused(operations)
        self.now, results = reply
        return results


def with_cache(name: str, script: Script) -> Work:
    """A worker with a name of its own that runs a script on a filter, and returns its result."""

    def work(protocol: FilterProtocol) -> Steps[Any]:
        stack = protocol.stack
        begin, replies = stack._monotonic(), list[tuple[float, Results]]()
        while True:
            store, draws = RecordedStore(replies, begin), Draws(name, {})
            try:
                return script(
                    BaseBloomFilter(
                        store,
                        stack.key,
                        stack.parameters,
                        events=protocol.events,
                        monotonic=lambda store=store: store.now,  # type: ignore[misc]  # its default is the store
                        randbelow=draws.below,
                    )
                )
            except Paused as paused:
                results = yield paused.operations
            replies.append((stack._monotonic(), results))

    return work
