"""Steps by which additions get room in a layer (admission control): asking for credit, returning it, paying later."""

from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.filter.lifecycle import Lifecycle
from scrapy_bloom.storage.counters import ChargeCounter, GrantCredit, Granted, ReturnCredit
from scrapy_bloom.storage.operation import Steps

# A server that loses the filter as often as this while something is added has no room for it.
MAX_RECOVERIES = 8
# The shares of its capacity at which a filter that may not grow warns.
_WARNING_SHARES = (1.0, 0.8)


class Admission(Lifecycle):
    """The steps of a `Lifecycle`, and those that get credit: nobody adds to a layer without it."""

    def obtain(self, need: int) -> Steps[bool]:
        """Get credit for `need` items of the newest layer, or for some of them; makes and grows what must be.

        Returns False where the server loses the filter again and again.
        """
        stack, losses = self.stack, 0
        while losses < MAX_RECOVERIES:
            if not stack.layers:
                losses += 1
                yield from self.prepare()
                continue
            layer = stack.newest
            (granted,) = yield [self._request(layer, need - stack.credits.held(layer), likely=need)]
            if granted is None:
                losses += 1
                yield from self.complete_newest(layer)
                continue
            self.take(layer, granted)
            if stack.credits.held(layer) > 0:
                return True
            yield from self.grow(layer)
            losses += not stack.newer_than(layer.index)
        return False

    def ask_ahead(self, layer: Layer, following: int, likely: int) -> list[GrantCredit]:
        """Return the operation that asks for credit where there is too little for the next items.

        So many are `following`, or if none is known to follow, so many are `likely` to.
        """
        credit = self.stack.credits
        wanted = following or max(likely, credit.low)
        missing = wanted - credit.held(layer)
        return [self._request(layer, missing if following else 1, likely=missing)] if missing > 0 else []

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

    def charge(self, index: int, number: int) -> Steps[None]:
        """Count items that were marked without credit, in a layer that had taken the place of another."""
        charged = [layer for layer in self.stack.layers if layer.index == index]
        if charged and number:
            yield [ChargeCounter(self.key, charged[0].credit_field, number)]

    def give_back(self, keep: int = 0) -> Steps[None]:
        """Return all credit but for `keep` items; these steps may be carried out once only."""
        returned: list[ReturnCredit] = self.stack.credits.give_back(keep)
        if returned:
            yield returned

    def _request(self, layer: Layer, need: int, likely: int) -> GrantCredit:
        return self.stack.credits.ask(layer, need, likely, may_exceed=not self.parameters.expansion)

    def _warn_if_nearly_full(self) -> None:
        """Warn once at each share of the capacity that the newest layer has reached."""
        stack = self.stack
        reached = stack.count(stack.newest) / stack.newest.capacity
        share = next((share for share in _WARNING_SHARES if reached >= share), 0.0)
        if share > stack.warned_share:
            stack.warned_share = share
            self.events.on_nearly_full(stack.newest, share, stack.error_rate)
