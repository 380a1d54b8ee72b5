"""The value of a worker in the hash of a queue's workers, read."""

from typing import NamedTuple, Self

# Unix time in milliseconds, of September 2001: no worker has had as many heartbeats.
_FIRST_TIME = 10**12


class Registration(NamedTuple):
    """A worker as its value in the hash of workers tells of it.

    `lease` is in seconds, and `number` that of its last exchange with the queue. `last_heard` is the Unix time in
    seconds of its last heartbeat, by the server's clock. None: an earlier release wrote it, which only counts them.

    Example:
        >>> Registration.parse("30 7 1700000000250")
        Registration(lease=30.0, number=7, is_closing=False, last_heard=1700000000.25)
    """

    lease: float
    number: int
    is_closing: bool
    last_heard: float | None

    @classmethod
    def parse(cls, value: str) -> Self:
        """Return what a value says."""
        lease, number, beats, *closing = value.split()
        last_heard = int(beats) / 1000 if int(beats) >= _FIRST_TIME else None
        return cls(float(lease), int(number.removesuffix("v")), bool(closing), last_heard)
