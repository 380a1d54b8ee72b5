"""Credit: a worker adds to a layer only as many items as it was granted room for.

A counter beside each layer says how much of its room was granted, to all workers together. It never grants more than
there is. So no number of workers overfills a layer, however fast each of them is and whenever it began. The error rate
is kept by count, not by a guess.

Credit that a worker does not use is room that nobody uses. So a worker asks for little at first, and for more if it
uses that up quickly. It returns what lies idle.
"""

import math
import os
from collections.abc import Callable

from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.storage.counters import BLOCK_DIVISOR, UNLIMITED, GrantCredit, Granted, ReturnCredit

# The first block that a worker asks for, beside what it needs at once, as a part of the layer's capacity.
_FIRST_BLOCK = 1 / 4096
# A worker that uses a block up within so many seconds asks for twice as much the next time.
_FAST_SECONDS = 1.0
# Credit that was granted so many seconds ago lies idle.
_IDLE_SECONDS = 5.0


class Credits:
    """The credit of one worker for the newest layer. `monotonic` gives seconds that never go back."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._layer: Layer | None = None
        self._held = 0
        self._block = 0.0
        self._given_at = -math.inf
        self._process = os.getpid()

    def held(self, layer: Layer) -> int:
        """Return how many items may be added to a layer. A forked process has none of its parent's credit."""
        # Nearly always it is the same object: a call of `__eq__` is spared.
        if layer is not self._layer and layer != self._layer:
            self._switch_to(layer)
        elif self._process != os.getpid():
            self._process, self._held = os.getpid(), 0
        return self._held

    def ask(self, layer: Layer, need: int, likely: int, *, may_exceed: bool) -> GrantCredit:
        """Return the operation that asks for `need` items and, with room, for as many as are `likely` to follow."""
        self.held(layer)
        waited = self._monotonic() - self._given_at
        if waited <= _FAST_SECONDS:
            self._block = min(2 * self._block, layer.capacity / BLOCK_DIVISOR)
        elif waited > _IDLE_SECONDS:
            self._block = layer.capacity * _FIRST_BLOCK
        block = min(max(self._block, likely), layer.capacity / BLOCK_DIVISOR)
        limit = UNLIMITED if may_exceed else layer.most_items
        return GrantCredit(layer.key, layer.credit_field, need, math.floor(block), limit)

    def take(self, layer: Layer, granted: Granted) -> None:
        """Hold what was granted; it is void where another layer has become the newest meanwhile."""
        if layer == self._layer and granted.number:
            self._held += granted.number
            self._given_at = self._monotonic()

    def spend(self, number: int) -> None:
        """Use credit up, before the items are sent: whether they arrive nobody may ever know."""
        self._held -= number

    def refund(self, layer: Layer, number: int) -> None:
        """Hold credit again that was spent for items that turned out to be in the layer."""
        if layer == self._layer:
            self._held += number

    @property
    def low(self) -> int:
        """Credit below which more is asked for in time."""
        return math.floor(self._block / 2)

    @property
    def is_idle(self) -> bool:
        """True if there is credit, and it was granted some seconds ago."""
        return self._held > 0 and self._monotonic() - self._given_at > _IDLE_SECONDS

    def give_back(self, keep: int) -> list[ReturnCredit]:
        """Return the operation that gives back all but `keep` items, if there is more; it may be sent once only."""
        layer = self._layer
        number = 0 if layer is None else self.held(layer) - keep
        if layer is None or number <= 0:
            return []
        self._held, self._given_at = keep, self._monotonic()
        return [ReturnCredit(layer.key, layer.credit_field, number)]

    def void(self) -> None:
        """Hold nothing any more: the filter is gone."""
        self._layer, self._held = None, 0

    def _switch_to(self, layer: Layer) -> None:
        self._layer, self._held = layer, 0
        self._block = layer.capacity * _FIRST_BLOCK
        self._given_at = -math.inf
        self._process = os.getpid()
