"""Which layers a filter has and how that changes: opening, growing, ageing, clearing.

Everything here and in `protocol` is written as steps: a generator yields the operations of one round trip and is sent
what they say. It does no input or output itself, so that the same code runs over Redis, over memory, and in a test
that tries every order in which workers can come between each other.
"""

import logging
import math
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from scrapy_bloom import header, keys
from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.gauge import Gauge
from scrapy_bloom.info import Counters
from scrapy_bloom.metadata import Layer, Plan
from scrapy_bloom.ops import Create, DropField, Load, Op, PutNew, Seal, Snapshot, Unlink
from scrapy_bloom.store import Said

logger = logging.getLogger(__name__)

# The error rates of sealed layers are known from samples: what is left for the next is reckoned with a tenth more.
_CAUTION = 1.1

T = TypeVar("T")
Steps = Generator[Sequence[Op], Said, T]


class Layers:
    """One worker's view of the layers of the filter at `key`, oldest first, and the steps that change them.

    `forget` is called when something that was seen may not be seen any more. `monotonic` gives seconds that never go
    back; what time it is, only the server says.
    """

    def __init__(self, key: str, plan: Plan, forget: Callable[[], None], monotonic: Callable[[], float]) -> None:
        self.key = key
        self.plan = plan
        self.gauge = Gauge()
        self.counters = Counters()
        self.all: list[Layer] = []
        self.deadline = math.inf
        self._forget = forget
        self._monotonic = monotonic
        self.epoch = 0
        self._warned = 0.0

    @property
    def newest(self) -> Layer:
        """The layer that additions go to."""
        return self.all[-1]

    @property
    def error_rate(self) -> float:
        """The error rate of the filter as it is now."""
        return self.gauge.error_rate(self.all)

    @property
    def allowance(self) -> float:
        """Items that may be added at once; at least 1."""
        return max(1.0, self.gauge.allowance) if self.plan.expansion else math.inf

    @property
    def is_due(self) -> bool:
        """Whether a layer's time is over."""
        return self.deadline < math.inf and self._monotonic() >= self.deadline

    def after(self, index: int) -> list[Layer]:
        """The layers newer than the one with this index."""
        return [layer for layer in self.all if layer.index > index]

    def is_live(self, found: int) -> bool:
        """Whether a header is that of a shard of this filter that takes additions."""
        return header.identity(found) == header.live(self.epoch)

    def is_ours(self, found: int) -> bool:
        """Whether a header is that of a shard of this filter."""
        return self.is_live(found) or header.identity(found) == header.sealed(self.epoch)

    def open(self) -> Steps[float]:
        """Adopt the stored filter or make it, whatever part of it is there already; gives the server's time."""
        now, epoch, stored = yield from self._load()
        alive = [layer for layer in stored if layer.epoch == epoch and now < layer.created + self.plan.lifetime]
        over = [layer for layer in stored if layer not in alive]
        if over:
            # The shards go first: a worker that dies in between leaves the field, and so the work, to the next one.
            yield [Unlink(key) for layer in over for key in layer.shard_keys]
            yield [DropField(self.key, keys.layer_field(layer.index)) for layer in over]
        if not alive:
            index = stored[-1].index + 1 if stored else 0
            yield from self._begin(self.plan.first_layer(self.key, index, epoch, now))
            return (yield from self.open())
        known = self._adopt(epoch, alive, now)
        yield from self._make_shards(known)
        return now

    def recover(self, lost: set[str]) -> Steps[None]:
        """Open anew after shards at these keys were not what they should be, and delete what late writes left there."""
        yield from self.open()
        strays = lost.difference(key for layer in self.all for key in layer.shard_keys)
        if strays:
            yield [Unlink(key) for key in strays]

    def grow(self, full: Layer) -> Steps[None]:
        """Seal a layer and begin the next, or finish what another worker has begun of that.

        All shards are sealed before the next layer exists: with the other order two workers could both be told that an
        item is new, one by each layer.
        """
        now = yield from self.open()
        if self.newest != full:
            return
        seals = [Seal(key) for key in full.shard_keys]
        taken = self.gauge.samples([full])
        said = yield [*seals, *taken]
        if all(self.is_ours(found) for found in said[: len(seals)]):
            self.gauge.note([full], taken, said[len(seals) :])
            following = self.plan.next_layer(full, self.gauge.error_rate(self.all) * _CAUTION, now)
            if (yield from self._begin(following)):
                self._log_growth(full, following)
        yield from self.open()

    def age(self) -> Steps[None]:
        """Delete the layers whose time is over, and begin another generation where it is time for that."""
        now = yield from self.open()
        if self.plan.is_over_age(self.newest, now):
            yield from self.grow(self.newest)

    def note_added(self, number: int) -> Steps[None]:
        """Count what this worker added to the newest layer, and look how full it is from time to time."""
        self.gauge.added(self.newest, number)
        if self.gauge.allowance <= 0:
            yield from self._measure()

    def _measure(self) -> Steps[None]:
        """Look how full the newest layer is; grow where it is full, or warn where that is not allowed."""
        newest = self.newest
        taken = self.gauge.samples([newest])
        self.gauge.note([newest], taken, (yield taken))
        if not self.plan.expansion:
            self._warn_if_full()
        elif self.gauge.room(newest) <= 0:
            yield from self.grow(newest)

    def clear(self) -> Steps[None]:
        """Delete the filter, or whatever else is at its key; nobody's parameters matter."""
        snapshot: Snapshot = (yield [Load(self.key)])[0]
        try:
            stored = self._stored(snapshot)
        except WrongTypeError:
            # A newer format may name its strings otherwise: they are not ours to guess.
            stored = []
        doomed = {key for layer in (*self.all, *stored) for key in layer.shard_keys}
        yield [Unlink(key) for key in (self.key, *sorted(doomed))]
        self.all = []
        self.deadline = math.inf
        self._forget()

    def _load(self) -> Steps[tuple[float, int, list[Layer]]]:
        """The server's time, the filter's epoch and its stored layers, after making the filter where there is none."""
        while True:
            snapshot: Snapshot = (yield [Load(self.key)])[0]
            self._refuse_foreign(snapshot)
            text = snapshot.fields.get(keys.FILTER_FIELD)
            if text is not None:
                return snapshot.now, self.plan.agree(self.key, text), self._stored(snapshot)
            yield [PutNew(self.key, keys.FILTER_FIELD, self.plan.dump())]

    def _stored(self, snapshot: Snapshot) -> list[Layer]:
        indexes = {keys.layer_of_field(name): text for name, text in snapshot.fields.items()}
        return [
            Layer.parse(self.key, index, indexes[index])
            for index in sorted(index for index in indexes if index is not None)
        ]

    def _refuse_foreign(self, snapshot: Snapshot) -> None:
        if snapshot.kind == "set":
            raise WrongTypeError(
                f"the key {self.key!r} holds a SET of {snapshot.members:,} members, as scrapy-redis leaves it: import "
                "it with `scrapy bloom import` (coming in a later release), use another SCHEDULER_DUPEFILTER_KEY, or "
                "delete it and begin anew with SCHEDULER_FLUSH_ON_START = True"
            )
        strangers = snapshot.fields and not any(
            name == keys.FILTER_FIELD or keys.layer_of_field(name) is not None for name in snapshot.fields
        )
        if snapshot.kind not in ("none", "hash") or strangers:
            raise WrongTypeError(f"the key {self.key!r} holds a {snapshot.kind} that is not a filter: use another key")

    def _begin(self, layer: Layer) -> Steps[bool]:
        """Put a layer where no worker has put one yet; says whether this one did."""
        return bool((yield [PutNew(self.key, keys.layer_field(layer.index), layer.dump())])[0])

    def _adopt(self, epoch: int, alive: list[Layer], now: float) -> list[Layer]:
        """Go on with these layers; gives those that were known before."""
        known = [layer for layer in alive if layer in self.all]
        if len(known) < len(self.all):
            self._forget()
        if self.all and epoch != self.epoch:
            logger.warning(
                "The filter at %r was replaced (cleared, flushed or evicted). The crawl goes on with a new one, and "
                "may fetch again what the lost one knew",
                self.key,
            )
        self.epoch, self.all = epoch, alive
        generation = self.plan.generation or math.inf
        ends = min(alive[-1].created + generation, alive[0].created + self.plan.lifetime)
        self.deadline = self._monotonic() + ends - now
        return known

    def _make_shards(self, known: list[Layer]) -> Steps[None]:
        """Make the shards that are missing, and look how full all are."""
        shards = [(layer, key) for layer in self.all for key in layer.shard_keys]
        creations = [Create(key, layer.size.shard_bytes, self.epoch, layer != self.newest) for layer, key in shards]
        taken = self.gauge.samples(self.all)
        said = yield [*creations, *taken]
        made, ones = said[: len(creations)], said[len(creations) :]
        self.gauge.note(self.all, taken, ones)
        lost = sum(1 for (layer, _), was_made in zip(shards, made, strict=True) if was_made and layer in known)
        if lost:
            self._forget()
            logger.warning(
                "The filter at %r lost %d of %d shards (evicted?). The crawl goes on, and may fetch again what they "
                "knew",
                self.key,
                lost,
                len(shards),
            )

    def _warn_if_full(self) -> None:
        newest = self.newest
        for share in (1.0, 0.8):
            if self.gauge.count(newest) >= share * newest.capacity:
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

    def _log_growth(self, full: Layer, following: Layer) -> None:
        logger.info(
            "The filter at %r grew: layer %d holds about %s requests and is sealed; layer %d takes %s more at an error "
            "rate of %.2g, in %.1f MB",
            self.key,
            full.index,
            f"{self.gauge.count(full):,.0f}",
            following.index,
            f"{following.capacity:,}",
            following.error_rate,
            following.size.memory_bytes / 1e6,
        )
