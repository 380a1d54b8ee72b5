"""The value of a worker in the hash of a queue's workers, read."""

from typing import NamedTuple, Self
from urllib.parse import quote, unquote

# Unix time in milliseconds, of September 2001: no worker has had as many heartbeats.
_FIRST_TIME = 10**12


class Registration(NamedTuple):
    """A worker as its value in the hash of workers tells of it.

    `lease` is in seconds, and `number` that of its last exchange with the queue. `last_heard` is the Unix time in
    seconds of its last heartbeat, by the server's clock. None: an earlier release wrote it, which only counts them.
    `spider` is the name of the worker's spider, or "" if it does not crawl.

    Example:
        >>> Registration.parse("30 7 1700000000250 @news")
        Registration(lease=30.0, number=7, is_closing=False, last_heard=1700000000.25, spider='news')
    """

    lease: float
    number: int
    is_closing: bool
    last_heard: float | None
    spider: str = ""

    @classmethod
    def parse(cls, value: str) -> Self:
        """Return what a value says."""
        lease, number, beats, *marks = value.split()
        last_heard = int(beats) / 1000 if int(beats) >= _FIRST_TIME else None
        spider = next((unquote(mark[1:]) for mark in marks if mark.startswith("@")), "")
        return cls(float(lease), int(number.removesuffix("v")), "closing" in marks, last_heard, spider)


def spider_mark(spider: str) -> str:
    """Return how the value of a worker has the name of its spider, behind all else; "" has none."""
    return f" @{quote(spider, safe='')}" if spider else ""
