"""Steps: generators without input or output (sans-I/O), as which everything is written that several workers do at once.

Each yields the operations of one round trip and is sent their results. So the same code runs over Redis, over memory,
and in a search that tries every order in which workers can come between each other.
"""

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from scrapy_bloom.storage.base import Operation, Results

T = TypeVar("T")
Steps = Generator[Sequence[Operation], Results, T]


def carry_out(steps: Steps[T], execute: Callable[[Sequence[Operation]], Results]) -> T:
    """Have each step's operations carried out by `execute`, and return the result of the last one."""
    results: Results | None = None
    while True:
        try:
            operations = steps.send(results)  # type: ignore[arg-type]  # the first thing sent to a generator is None
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # T, which StopIteration does not know
        results = execute(operations)
