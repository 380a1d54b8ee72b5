"""The stored state of a filter, as one worker knows it: reading it, adopting it, and refusing what is foreign.

Everything here, in `layers` and in `protocol` is written as steps: a generator yields the operations of one round trip
and is sent what they say. It does no input or output itself, so that the same code runs over Redis, over memory, and in
a test that tries every order in which workers can come between each other.
"""

import logging
import math
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from scrapy_bloom import header, keys, metadata, sampling, shards
from scrapy_bloom.credit_ops import closed, given_of
from scrapy_bloom.credits import Credits
from scrapy_bloom.errors import MismatchError, WrongTypeError
from scrapy_bloom.info import Counters
from scrapy_bloom.metadata import NO_IDENTITY, Identity, Layer, Plan
from scrapy_bloom.ops import DropField, Load, Op, PutNew, Restore, Snapshot
from scrapy_bloom.shards import Discard, Inspect
from scrapy_bloom.store import Said

logger = logging.getLogger(__name__)

# A worker that did nothing for so many seconds looks whether the filter is still there before it adds.
_STALE_SECONDS = 5.0

T = TypeVar("T")
Steps = Generator[Sequence[Op], Said, T]


class StoredLayers:
    """One worker's view of the layers of the filter at `key`, oldest first, as they are stored.

    `forget` is called when something that was seen may not be seen any more. `monotonic` gives seconds that never go
    back; what time it is, only the server says. A filter that is made here takes the `hash_key`, if one is given, and
    one that is there must have it.
    """

    def __init__(
        self,
        key: str,
        plan: Plan,
        forget: Callable[[], None],
        monotonic: Callable[[], float],
        hash_key: int | None = None,
    ) -> None:
        self.key = key
        self.plan = plan
        self.counters = Counters()
        self.credits = Credits(monotonic)
        self.all: list[Layer] = []
        self.identity: Identity | None = None
        self.deadline = math.inf
        self._contact = -math.inf
        self._forget = forget
        self._monotonic = monotonic
        self._hash_key = hash_key
        self.text = ""
        self._next_index = 0
        self._warned = 0.0
        # Items in each layer: the room that its counter gave away or, where there is no counter, what its bits show.
        self._given: dict[int, int] = {}
        self._counted: dict[int, int] = {}

    @property
    def newest(self) -> Layer:
        """The layer that additions go to."""
        return self.all[-1]

    @property
    def error_rate(self) -> float:
        """The error rate of the filter as it is now, at most."""
        return min(1.0, sum(layer.error_rate_with(self.count(layer)) for layer in self.all))

    @property
    def is_due(self) -> bool:
        """Whether a layer's time is over."""
        return self.deadline < math.inf and self._monotonic() >= self.deadline

    @property
    def is_stale(self) -> bool:
        """Whether it is some seconds ago that this worker saw that the filter is still there."""
        return bool(self.all) and self._monotonic() - self._contact > _STALE_SECONDS

    def note_contact(self) -> None:
        """Remember that the filter was seen now."""
        self._contact = self._monotonic()

    def count(self, layer: Layer) -> int:
        """Items in a layer, as far as this worker knows; those that others were given room for are counted as added."""
        given = self._given.get(layer.index)
        if given is None:
            return self._counted.get(layer.index, 0)
        return max(0, given - self.credits.held(layer)) if layer == self.newest else given

    def after(self, index: int) -> list[Layer]:
        """The layers newer than the one with this index."""
        return [layer for layer in self.all if layer.index > index]

    def is_live(self, found: int) -> bool:
        """Whether a header is that of a shard of this filter that takes additions."""
        return self.identity is not None and header.identity(found) == header.live(self.identity.epoch)

    def is_ours(self, found: int) -> bool:
        """Whether a header is that of a shard of this filter."""
        return self._is_ours(header.identity(found))

    def _is_ours(self, identity: int) -> bool:
        epoch = None if self.identity is None else self.identity.epoch
        return epoch is not None and identity in (header.live(epoch), header.sealed(epoch))

    def open(self, *first: Op) -> Steps[float]:
        """Adopt what is stored of the filter, if anything is; gives the server's time. Nothing is made.

        Operations that come `first` are carried out in the same round trip.
        """
        while True:
            snapshot: Snapshot = (yield [*first, Load(self.key)])[-1]
            first = ()
            self._refuse_foreign(snapshot)
            text = snapshot.fields.get(keys.FILTER_FIELD)
            if text is not None or not self.all or not (yield from self._restore()):
                break
        if text is None:
            self._adopt(None, [], snapshot)
            return snapshot.now
        self.text, identity = text, self._agree(text)
        stored = self._stored(snapshot, identity.hash_key)
        self._next_index = stored[-1].index + 1 if stored else 0
        alive = [
            layer
            for layer in stored
            if layer.identity == identity and snapshot.now < layer.created + self.plan.lifetime
        ]
        # Where all are over they are left until the next one has begun: no index is ever used twice.
        if alive:
            yield from self._delete_ended([layer for layer in stored if layer not in alive], alive, snapshot)
        self._adopt(identity, alive, snapshot)
        yield from self._count_bits()
        return snapshot.now

    def _is_metered(self, layer: Layer) -> bool:
        """Whether a layer has a counter, so that all of its shards were made."""
        return layer.index in self._given

    @property
    def has_counters(self) -> bool:
        """Whether the filter was made with a counter for each layer, as formats from 2 on are."""
        return metadata.has_counters(self.text)

    def _agree(self, text: str) -> Identity:
        identity = self.plan.agree(self.key, text)
        if self._hash_key not in (None, identity.hash_key):
            raise MismatchError(
                f"the filter at {self.key!r} has another hash key than the filter given as key_of: use another key, "
                "or clear() it first"
            )
        return identity

    def _store_parameters(self) -> Steps[float]:
        """Make the hash of a filter, unless another worker has done so; gives the server's time."""
        yield from self._refuse_occupied()
        return (yield from self.open(PutNew(self.key, keys.FILTER_FIELD, self.plan.dump(self._hash_key))))

    def _restore(self) -> Steps[bool]:
        """Put back the hash of a filter of which the hash alone is gone; says whether it is to be looked at again.

        Its shards prove that the filter was not cleared. What others were given credit for nobody knows any more: the
        newest layer gives no more.
        """
        wanted = [key for layer in self.all for key in layer.shard_keys]
        following = keys.shard_key(self.key, self.newest.index + 1, 0)
        *found, unknown = yield [Inspect(key) for key in (*wanted, following)]
        if self._is_ours(unknown.identity) or not all(self._is_ours(each.identity) for each in found):
            return False
        fields = {keys.FILTER_FIELD: self.text}
        for layer in self.all:
            taken = sampling.samples(layer)
            count = max(self._given.get(layer.index, 0), sampling.count(layer, taken, (yield taken)))
            fields[layer.field] = layer.dump()
            fields[layer.credit_field] = closed(count)
        if (yield [Restore(self.key, keys.FILTER_FIELD, tuple(fields.items()))])[0]:
            logger.warning(
                "The hash of the filter at %r was deleted or evicted, and its bits were not: it is put back, and "
                "nothing is lost",
                self.key,
            )
        return True

    def _refuse_occupied(self) -> Steps[None]:
        """Refuse to make a filter over somebody else's strings, and tell of a lost filter's."""
        layer = self.plan.first_layer(self.key, NO_IDENTITY, 0, 0.0)
        found = yield [Inspect(key) for key in layer.shard_keys]
        for key, inspection in zip(layer.shard_keys, found, strict=True):
            if inspection.kind == shards.FOREIGN:
                raise foreign_string(key)
        if any(header.is_alive(inspection.identity) for inspection in found):
            logger.warning(
                "The hash of an earlier filter at %r is gone (deleted or evicted?), and without it its bits say "
                "nothing: a new filter takes their place, and what that one knew may be fetched again",
                self.key,
            )

    def _delete_ended(self, ended: Sequence[Layer], alive: Sequence[Layer], snapshot: Snapshot) -> Steps[None]:
        """Delete layers, and counters of layers that are not alive."""
        if ended:
            # The shards go first: a worker that dies in between leaves the field, and so the work, to the next one.
            yield [Discard(key, layer.identity.epoch) for layer in ended for key in layer.shard_keys]
        counters = {layer.credit_field for layer in alive}
        fields = [name for name in snapshot.fields if keys.is_credit_field(name) and name not in counters]
        fields += [layer.field for layer in ended]
        if fields:
            yield [DropField(self.key, name) for name in fields]

    def _count_bits(self) -> Steps[None]:
        """Count what is in the layers that have no counter, by their bits."""
        uncounted = [layer for layer in self.all if not self._is_metered(layer) and layer.index not in self._counted]
        if not uncounted:
            return
        taken = [sampling.samples(layer) for layer in uncounted]
        ones = iter((yield [sample for samples in taken for sample in samples]))
        for layer, samples in zip(uncounted, taken, strict=True):
            self._counted[layer.index] = sampling.count(layer, samples, [next(ones) for _ in samples])

    def _stored(self, snapshot: Snapshot, hash_key: int) -> list[Layer]:
        indexes = {keys.layer_of_field(name): text for name, text in snapshot.fields.items()}
        return [
            Layer.parse(self.key, index, indexes[index], hash_key)
            for index in sorted(index for index in indexes if index is not None)
        ]

    def _refuse_foreign(self, snapshot: Snapshot) -> None:
        if snapshot.kind == "set":
            raise WrongTypeError(
                f"the key {self.key!r} holds a SET of {snapshot.members:,} members, as scrapy-redis leaves it: import "
                "it with `scrapy bloom import` (coming in a later release), use another SCHEDULER_DUPEFILTER_KEY, or "
                "delete it and begin anew with SCHEDULER_FLUSH_ON_START = True"
            )
        strangers = snapshot.fields and not any(keys.is_field(name) for name in snapshot.fields)
        if snapshot.kind not in ("none", "hash") or strangers:
            raise WrongTypeError(f"the key {self.key!r} holds a {snapshot.kind} that is not a filter: use another key")

    def _adopt(self, identity: Identity | None, alive: list[Layer], snapshot: Snapshot) -> None:
        """Go on with these layers, and forget what others knew."""
        if any(layer not in alive for layer in self.all):
            self._forget()
        if self.identity is not None and identity != self.identity:
            logger.warning(
                "The filter at %r was replaced (cleared, flushed or evicted). The crawl goes on with a new one, and "
                "may fetch again what the lost one knew",
                self.key,
            )
        if identity != self.identity:
            self._counted = {}
        self.identity, self.all = identity, alive
        self.note_contact()
        self._given = self._counters(snapshot)
        self.deadline = math.inf
        if alive and self.plan.generation is not None:
            ends = min(alive[-1].created + self.plan.generation, alive[0].created + self.plan.lifetime)
            self.deadline = self._monotonic() + ends - snapshot.now

    def _counters(self, snapshot: Snapshot) -> dict[int, int]:
        try:
            return {
                layer.index: given_of(snapshot.fields[layer.credit_field])
                for layer in self.all
                if layer.credit_field in snapshot.fields
            }
        except ValueError:
            raise WrongTypeError(f"a counter of the filter at {self.key!r} cannot be read: use another key") from None


def foreign_string(key: str) -> WrongTypeError:
    """The error of a string that is not a filter's, where one keeps its bits."""
    return WrongTypeError(
        f"the key {key!r}, where the filter keeps its bits, holds something that is not a filter's: use another key "
        "for the filter (SCHEDULER_DUPEFILTER_KEY), or delete that"
    )
