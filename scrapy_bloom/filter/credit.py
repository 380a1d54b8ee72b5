"""Credit: a worker adds to a layer only as many items as it was granted room for.

A counter beside each layer records the room granted to all workers together, and never grants more
than the layer has. So no number of workers overfills a layer, however fast each of them is and
whenever it began. The error rate is kept by count, not by a guess.

Unused credit is room that stays empty. So a worker asks for little at first, and for more if it
uses that up quickly. It returns idle credit.
"""

import math
import os
from collections.abc import Callable

from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.storage.counters import BLOCK_DIVISOR, UNLIMITED, GrantCredit, Granted, ReturnCredit

# The first block, beyond the immediate need, as a share of the layer's capacity.
_FIRST_BLOCK = 1 / 4096
# A worker that uses up a block within so many seconds asks for twice as much the next time.
_FAST_SECONDS = 1.0
# Credit granted so many seconds ago is idle.
_IDLE_SECONDS = 5.0


class Credits:
    """The credit of one worker for the newest layer, whose counter is in the hash at `key`.

    `monotonic` gives seconds that never go back. A filter that may not grow may exceed its
    capacity: `is_unlimited`.
    """

    def __init__(self, key: str, monotonic: Callable[[], float], *, is_unlimited: bool = False) -> None:
        self._key = key
        self._monotonic = monotonic
        self._is_unlimited = is_unlimited
        self._layer: Layer | None = None
        self._held = 0
        self._block = 0.0
        self._granted_at = -math.inf
        self._process = os.getpid()

    def held(self, layer: Layer) -> int:
        """Return how many items may be added to a layer; 0 in a forked process."""
        # Nearly always the same object: identity spares a comparison of all fields.
        if layer is not self._layer and layer != self._layer:
            self._switch_to(layer)
        elif self._process != os.getpid():
            self._process, self._held = os.getpid(), 0
        return self._held

    def ask(self, layer: Layer, need: int, likely: int) -> GrantCredit:
        """Return the operation that asks for `need` items and, with room, `likely` more."""
        self.held(layer)
        waited = self._monotonic() - self._granted_at
        if waited <= _FAST_SECONDS:
            self._block = min(2 * self._block, layer.capacity / BLOCK_DIVISOR)
        elif waited > _IDLE_SECONDS:
            self._block = layer.capacity * _FIRST_BLOCK
        block = min(max(self._block, likely), layer.capacity / BLOCK_DIVISOR)
        limit = UNLIMITED if self._is_unlimited else layer.max_items
        return GrantCredit(self._key, layer.credit_field, need, math.floor(block), limit)

    def spend(self, layer: Layer, number: int, *, following: int, likely: int) -> list[GrantCredit]:
        """Spend credit for `number` items of a layer, before they are sent: a lost reply leaves their fate open.

        Return the operation that asks for the next items' credit, if any is missing. The number of next items is
        `following`, or if that is 0, `likely` or half a block.
        """
        self._held -= number
        wanted = following or max(likely, math.floor(self._block / 2))
        missing = wanted - self.held(layer)
        if missing <= 0:
            return []
        return [self.ask(layer, missing if following else 1, likely=missing)]

    def take(self, layer: Layer, granted: Granted) -> None:
        """Hold granted credit; void if another layer has become the newest meanwhile."""
        if layer == self._layer and granted.number:
            self._held += granted.number
            self._granted_at = self._monotonic()

    def refund(self, layer: Layer, number: int) -> None:
        """Refund credit that was spent for items that the layer already held."""
        if layer == self._layer:
            self._held += number

    @property
    def is_idle(self) -> bool:
        """True if the worker holds credit that was granted some seconds ago."""
        return self._held > 0 and self._monotonic() - self._granted_at > _IDLE_SECONDS

    def release(self, keep: int) -> list[ReturnCredit]:
        """Return the operation that returns all but `keep` items. Must not be sent twice."""
        layer = self._layer
        number = 0 if layer is None else self.held(layer) - keep
        if layer is None or number <= 0:
            return []
        self._held, self._granted_at = keep, self._monotonic()
        return [ReturnCredit(self._key, layer.credit_field, number)]

    def void(self) -> None:
        """Drop all credit: the filter is gone."""
        self._layer, self._held = None, 0

    def _switch_to(self, layer: Layer) -> None:
        self._layer, self._held = layer, 0
        self._block = layer.capacity * _FIRST_BLOCK
        self._granted_at = -math.inf
        self._process = os.getpid()
