"""Steps: generators without input or output (sans-I/O), as which everything is written that several workers do at once.

Each yields the operations of one round trip and is sent their results. So the same code runs over Redis, over memory,
and in a search that tries every order in which workers can come between each other.
"""

from collections.abc import Generator, Sequence
from typing import TypeVar

from scrapy_bloom.storage.base import Operation, Results

T = TypeVar("T")
Steps = Generator[Sequence[Operation], Results, T]
