"""How the layers of a filter change: making, growing, ageing, clearing, as steps (see `stored`).

A layer is stored in this order: the field that describes it, its shards, its counter. Nobody adds to a layer without
credit, and only the counter gives that: so additions find all shards, and a shard that is missing was lost.
"""

import logging
import math
from collections.abc import Sequence

from scrapy_bloom import keys, sampling, shards
from scrapy_bloom.credit_ops import Charge, Close, GiveBack, Grant, Granted, closed
from scrapy_bloom.errors import RefusedError, WrongTypeError
from scrapy_bloom.metadata import Layer
from scrapy_bloom.ops import DropField, Load, PutBeside, Snapshot, Unlink
from scrapy_bloom.shards import Create, Creation, Discard, Inspect, Seal
from scrapy_bloom.stored import Steps, StoredLayers, foreign_string

logger = logging.getLogger(__name__)

# The epoch of what a late write left where no shard is.
NO_EPOCH = 0
# A server that loses the filter as often as this while something is added has no room for it.
MOST_RECOVERIES = 8


class Layers(StoredLayers):
    """One worker's view of the layers of a filter, and the steps that change them.

    There are none before something is added: opening a filter stores its parameters alone.
    """

    def verify(self) -> Steps[None]:
        """Adopt the stored filter, or store what this worker wants it to be; it takes no room for bits yet.

        Workers that begin together agree, or are refused, at their start.
        """
        yield from self.open()
        if self.identity is None:
            yield from self._store_parameters()
        # Whoever may not do with bits what a filter does learns that now.
        yield [Inspect(keys.shard_key(self.key, 0, 0))]

    def obtain(self, need: int) -> Steps[bool]:
        """Get credit for `need` items of the newest layer, or for some of them; makes and grows what must be.

        Gives False where the server loses the filter again and again.
        """
        losses = 0
        while losses < MOST_RECOVERIES:
            if not self.all:
                losses += 1
                yield from self._prepare()
                continue
            layer = self.newest
            (granted,) = yield [self._ask(layer, need - self.credits.held(layer), likely=need)]
            if granted is None:
                losses += 1
                yield from self.open()
                if self.all and self.newest == layer and not self._is_metered(layer):
                    yield from self._complete(layer)
                continue
            self.take(layer, granted)
            if self.credits.held(layer) > 0:
                return True
            yield from self.grow(layer)
            losses += not self.after(layer.index)
        return False

    def ask_ahead(self, layer: Layer, following: int, likely: int) -> list[Grant]:
        """The operation that asks for credit where there is too little for the next items.

        So many are `following`, or if none is known to follow, so many are `likely` to.
        """
        wanted = following or max(likely, self.credits.low)
        missing = wanted - self.credits.held(layer)
        return [self._ask(layer, missing if following else 1, likely=missing)] if missing > 0 else []

    def take(self, layer: Layer, granted: Granted | None) -> None:
        """Hold the credit that was granted for a layer."""
        if granted is None:
            return
        self.credits.take(layer, granted)
        if layer in self.all and layer.index in self._given:
            self._given[layer.index] = granted.given
            if not self.plan.expansion:
                self._warn_if_full()

    def hash_key(self) -> Steps[int]:
        """The secret key of the filter's hash; the filter is made where there is none."""
        while self.identity is None:
            yield from self.verify()
        return self.identity.hash_key

    def charge(self, index: int, number: int) -> Steps[None]:
        """Count items that were marked without credit, in a layer that had taken the place of another."""
        charged = [layer for layer in self.all if layer.index == index]
        if charged and number:
            yield [Charge(self.key, charged[0].credit_field, number)]

    def give_back(self, keep: int = 0) -> Steps[None]:
        """Return all credit but for `keep` items; these steps may be carried out once only."""
        returned: list[GiveBack] = self.credits.give_back(keep)
        if returned:
            yield returned

    def recover(self, lost: set[str]) -> Steps[None]:
        """Open anew after shards at these keys were not what they should be, and delete what late writes left there."""
        yield from self.open()
        strays = lost.difference(key for layer in self.all for key in layer.shard_keys)
        if strays:
            yield [Discard(key, NO_EPOCH) for key in strays]
        if not self.all:
            return
        is_whole = self._is_metered(self.newest) or self.count(self.newest) > 0
        whole = self.all if is_whole else self.all[:-1]
        missing = yield from self._missing(whole)
        made: list[str] = []
        for layer in whole:
            of_layer = [key for key in layer.shard_keys if key in missing]
            yield from self._make(layer, of_layer, made, sealed=layer != self.newest)
        if made:
            self._forget()
            logger.warning(
                "The filter at %r lost %d of %d shards (evicted?). The crawl goes on, and may fetch again what they "
                "knew",
                self.key,
                len(made),
                sum(layer.size.shards for layer in self.all),
            )
        if not is_whole:
            yield from self._complete(self.newest)

    def grow(self, full: Layer) -> Steps[None]:
        """Seal a layer and begin the next, or finish what another worker has begun of that.

        All shards are sealed before the next layer exists: with the other order two workers could both be told that an
        item is new, one by each layer. The counter is closed before that: what it gave is all that the layer can hold.
        """
        now = yield from self.open()
        if not self.all or self.newest != full:
            return
        if not self._is_metered(full):
            yield from self._complete(full)
        given, *seals = yield [Close(self.key, full.credit_field), *(Seal(key) for key in full.shard_keys)]
        if given is None or not all(self.is_ours(found) for found in seals):
            yield from self.recover(set())
            return
        self._given[full.index] = given
        error_rate = sum(layer.error_bound(self.count(layer)) for layer in self.all)
        following = self.plan.next_layer(full, error_rate, now)
        if (yield from self._begin(following)):
            self._log_growth(full, following, given)

    def age(self) -> Steps[None]:
        """Delete the layers whose time is over, and begin another generation where it is time for that."""
        now = yield from self.open()
        if self.all and self.plan.is_over_age(self.newest, now):
            yield from self.grow(self.newest)

    def clear(self) -> Steps[None]:
        """Delete the filter, or whatever else is at its key; nobody's parameters matter."""
        snapshot: Snapshot = (yield [Load(self.key)])[0]
        try:
            stored = self._stored(snapshot, hash_key=0)
        except WrongTypeError:
            # A newer format may name its strings otherwise: they are not ours to guess.
            stored = []
        doomed = {key for layer in (*self.all, *stored) for key in layer.shard_keys}
        yield [Unlink(self.key), *(Discard(key) for key in sorted(doomed))]
        yield from self._discard_unknown(max((layer.index for layer in (*self.all, *stored)), default=-1) + 1)
        self.all = []
        self.identity = None
        self.deadline = math.inf
        self.credits.void()
        self._forget()

    def _ask(self, layer: Layer, need: int, likely: int) -> Grant:
        return self.credits.ask(layer, need, likely, may_exceed=not self.plan.expansion)

    def _prepare(self) -> Steps[None]:
        """Make the filter where there is none, and a layer where none is alive."""
        now = yield from self.open()
        if self.identity is None:
            now = yield from self._store_parameters()
        if self.identity is not None and not self.all:
            yield from self._begin(self.plan.first_layer(self.key, self.identity, self._next_index, now))

    def _begin(self, layer: Layer) -> Steps[bool]:
        """Put a layer where no worker has put one yet, and open anew; says whether this one did, and has made it."""
        is_begun: bool = (yield [PutBeside(self.key, layer.field, layer.dump(), self.text)])[0]
        yield from self._complete(layer, layer.shard_keys) if is_begun else self.open()
        return is_begun

    def _complete(self, layer: Layer, missing: Sequence[str] | None = None) -> Steps[float]:
        """Make the shards that a layer lacks which has no counter, then the counter: with it additions begin.

        Which shards are `missing` is looked up if it is not known. A filter of format 1 has no counters, and begins
        with what its bits say.
        """
        made: list[str] = []
        try:
            if missing is None:
                missing = yield from self._missing([layer])
            yield from self._make(layer, missing, made, sealed=False)
        except (RefusedError, WrongTypeError):
            yield [*(Discard(key, layer.identity.epoch) for key in made), DropField(self.key, layer.field)]
            raise
        count = 0
        if len(made) < layer.size.shards:
            taken = sampling.samples(layer)
            count = sampling.count(layer, taken, (yield taken))
        # Only a filter of format 1 may have bits and no counter. If one was lost, nobody knows who was given what.
        counter = closed(layer.most_items) if count and self.has_counters else str(count)
        now = yield from self.open(PutBeside(self.key, layer.credit_field, counter, self.text))
        if made and self.identity != layer.identity:
            yield [Discard(key, layer.identity.epoch) for key in made]
        return now

    def _discard_unknown(self, index: int) -> Steps[None]:
        """Delete the shards of layers from this one on, of which no hash tells any more."""
        shard = 0
        while True:
            key = keys.shard_key(self.key, index, shard)
            if (yield [Inspect(key)])[0].kind == shards.SHARD:
                yield [Discard(key)]
                shard += 1
            elif shard:
                index, shard = index + 1, 0
            else:
                return

    def _missing(self, layers: Sequence[Layer]) -> Steps[list[str]]:
        """The keys of shards of these layers that are not there."""
        wanted = [key for layer in layers for key in layer.shard_keys]
        found = yield [Inspect(key) for key in wanted]
        return [key for key, each in zip(wanted, found, strict=True) if not self._is_ours(each.identity)]

    def _make(self, layer: Layer, missing: Sequence[str], made: list[str], *, sealed: bool) -> Steps[None]:
        """Make shards of a layer, each in a round trip of its own; the keys of those that were made go to `made`.

        A large string takes a server tens of milliseconds, in which nobody else is answered.
        """
        for key in missing:
            creation: Creation = (yield [Create(key, layer.size.shard_bytes, layer.identity.epoch, sealed)])[0]
            if creation.outcome == shards.FOREIGN:
                raise foreign_string(key)
            if creation.outcome == shards.FULL:
                raise self._no_room(layer, creation)
            if creation.outcome == shards.MADE:
                made.append(key)

    def _no_room(self, layer: Layer, creation: Creation) -> RefusedError:
        use = f"it uses {creation.used:,} of {creation.limit:,} bytes" if creation.limit else "it is full"
        advice = (
            "raise its maxmemory or delete what it need not keep; the crawl can then go on where it is"
            if self.all
            else "raise its maxmemory, or set a smaller BLOOMFILTER_CAPACITY or a larger BLOOMFILTER_ERROR_RATE"
        )
        return RefusedError(
            f"Redis has no room for layer {layer.index} of the filter at {self.key!r}, which takes "
            f"{layer.size.memory_bytes:,} bytes ({use}): {advice}"
        )

    def _warn_if_full(self) -> None:
        newest = self.newest
        for share in (1.0, 0.8):
            if self.count(newest) >= share * newest.capacity:
                if share > self._warned:
                    self._warned = share
                    logger.warning(
                        "The filter at %r holds %d %% of its capacity of %s; its error rate is now %.2g. It may not "
                        "grow (BLOOMFILTER_EXPANSION = 0): begin a new one that may, or with a larger capacity",
                        self.key,
                        share * 100,
                        f"{newest.capacity:,}",
                        self.error_rate,
                    )
                return

    def _log_growth(self, full: Layer, following: Layer, given: int) -> None:
        logger.info(
            "The filter at %r grew: layer %d holds about %s requests and is sealed; layer %d takes %s more at an error "
            "rate of %.2g, in %.1f MB",
            self.key,
            full.index,
            f"{given:,}",
            following.index,
            f"{following.capacity:,}",
            following.error_rate,
            following.size.memory_bytes / 1e6,
        )
