"""The steps of one worker: opening, lifecycle, and admission of items by credit."""

from collections.abc import Sequence

from scrapy_bloom.filter.layer import NO_IDENTITY, Layer
from scrapy_bloom.filter.lifecycle import Lifecycle
from scrapy_bloom.filter.opening import Opening
from scrapy_bloom.storage import filter_keys, shard_header
from scrapy_bloom.storage.bits import CheckBits, LookUpBits
from scrapy_bloom.storage.counters import Granted
from scrapy_bloom.storage.operation import Steps, one

# A server that loses the filter so many times during one addition has no room for it.
MAX_RECOVERIES = 8
# A filter that may not grow warns at these shares of its capacity.
_WARNING_SHARES = (1.0, 0.8)


class FilterProtocol:
    """One worker's steps over its `stack`, in three parts.

    `opening` reads the stored filter, `lifecycle` changes its layers, and the credit of `stack`
    admits items.
    """

    def __init__(self, opening: Opening) -> None:
        self.stack = opening.stack
        self.events = opening.events
        self.opening = opening
        self.lifecycle = Lifecycle(opening)
        self.forgotten_key = filter_keys.forgotten_key(opening.stack.key)

    @property
    def epoch(self) -> int:
        """The epoch of the filter, 0 if there is none."""
        return (self.stack.identity or NO_IDENTITY).epoch

    def note_marks(self, checks: Sequence[CheckBits | LookUpBits], replies: Sequence[tuple[int, bool]]) -> None:
        """Clear the cache if a shard has another mark than before: an item was forgotten since."""
        for header, _ in replies:
            if header & shard_header.MARK:
                break
        else:
            # As a rule, and each check comes here.
            return
        marked = ((check.key, header) for check, (header, _) in zip(checks, replies, strict=True))
        if self.stack.note_marks(marked):
            self.opening.forget()

    def obtain(self, need: int) -> Steps[bool]:
        """Get credit for some or all of `need` items; create layers and grow as necessary.

        Return False if the server loses the filter again and again.
        """
        stack, losses = self.stack, 0
        while losses < MAX_RECOVERIES:
            if not stack.layers:
                losses += 1
                yield from self.lifecycle.ensure_layer()
                continue
            layer = stack.newest
            granted = yield from one(stack.credits.ask(layer, need - stack.credits.held(layer), likely=need))
            if granted is None:
                losses += 1
                yield from self.lifecycle.complete_newest(layer)
                continue
            self.take(layer, granted)
            if stack.credits.held(layer) > 0:
                return True
            yield from self.lifecycle.grow(layer)
            if not stack.newer_than(layer.index):
                losses += 1
        return False

    def take(self, layer: Layer, granted: Granted | None) -> None:
        """Hold the credit that was granted for a layer."""
        stack = self.stack
        if granted is None:
            return
        stack.credits.take(layer, granted)
        if layer in stack.layers and stack.has_counter(layer):
            stack.note_granted(layer, granted.total)
            if not stack.parameters.expansion:
                self._warn_if_nearly_full()

    def return_credit(self, keep: int = 0) -> Steps[None]:
        """Return all credit but for `keep` items. Run these steps once only.

        A repeat would return the credit twice.
        """
        returned = self.stack.credits.release(keep)
        if returned:
            yield returned

    def _warn_if_nearly_full(self) -> None:
        """Warn once at each share of the capacity that the newest layer has reached."""
        stack = self.stack
        reached = stack.count(stack.newest) / stack.newest.capacity
        share = next((share for share in _WARNING_SHARES if reached >= share), 0.0)
        if share > stack.warned_share:
            stack.warned_share = share
            self.events.on_nearly_full(stack.newest, share, stack.error_rate)
