"""Steps that change the layers of a filter: making, growing, rotating, recovering, clearing.

A layer is stored in this order: the field that describes it, its shards, its counter. Nobody adds to a layer without
credit, and only the counter gives that. So additions find all shards, and a shard that is missing was lost.
"""

from collections.abc import Mapping, Sequence

from scrapy_bloom.errors import RefusedError, WrongTypeError
from scrapy_bloom.filter.layer import Layer, sample_bits, sampled_count
from scrapy_bloom.filter.layer_stack import ShardState
from scrapy_bloom.filter.opening import Opening, foreign_string, stored_layers
from scrapy_bloom.filter.parameters import has_counters
from scrapy_bloom.storage import filter_keys, shards
from scrapy_bloom.storage.counters import CloseCounter, closed
from scrapy_bloom.storage.filter_hash import (
    DeleteField,
    DeleteUnusedHash,
    Load,
    RemoveReference,
    SetFieldFenced,
    SetFieldIfAbsent,
    Snapshot,
    Unlink,
)
from scrapy_bloom.storage.operation import Operation, Steps
from scrapy_bloom.storage.shards import CreateShard, Creation, DeleteShard, InspectShard, SealShard

# The epoch of what a late write left where no shard is.
_NO_EPOCH = 0


class Lifecycle(Opening):
    """Steps that change the layers of a filter.

    There are none before something is added: opening a filter stores its parameters alone.
    """

    def prepare(self) -> Steps[None]:
        """Make the filter where there is none, and a layer where none is alive."""
        now = yield from self.open()
        if self.stack.identity is None:
            now = yield from self.store_parameters(now)
        identity = self.stack.identity
        if identity is not None and not self.stack.layers:
            yield from self._append_layer(self.parameters.first_layer(self.key, identity, self.stack.next_index, now))

    def complete_newest(self, layer: Layer) -> Steps[None]:
        """Look at the filter again, and make what its newest layer lacks if that is this one, and nobody else does."""
        yield from self.open()
        if self.stack.layers and self.stack.newest == layer and not self.stack.has_counter(layer):
            yield from self._complete(layer)

    def grow(self, full: Layer) -> Steps[None]:
        """Seal a layer and begin the next, or finish what another worker has begun of that.

        All shards are sealed before the next layer exists. With the other order two workers could both be told that an
        item is new, one by each layer. The counter is closed before that: what it gave is all that the layer can hold.
        """
        stack = self.stack
        now = yield from self.open()
        if not stack.layers or stack.newest != full:
            return
        if not stack.has_counter(full):
            yield from self._complete(full)
        granted = yield from self._seal(full)
        if granted is None:
            yield from self.recover(set(full.shard_keys))
            return
        stack.note_granted(full, granted)
        following = self.parameters.next_layer(full, stack.error_bound, now)
        if (yield from self._append_layer(following)):
            if self.parameters.has_expired_generation(full, now):
                self.events.on_rotation(full, following)
            else:
                self.events.on_growth(full, following, granted)

    def rotate(self, *, adds: bool) -> Steps[None]:
        """Delete the layers whose time is over, and begin another generation where it is time for that.

        A worker that `adds` nothing restores no hash.
        """
        now = yield from self.open() if adds else self.look()
        if now is None or not self.stack.layers:
            return
        if self.parameters.has_expired_generation(self.stack.newest, now):
            yield from self.grow(self.stack.newest)

    def recover(self, lost: set[str]) -> Steps[None]:
        """Open anew after shards at these keys were not what they should be, and delete what late writes left there."""
        stack = self.stack
        yield from self.open()
        yield from self._delete_strays(lost)
        if not stack.layers:
            return
        is_whole = stack.has_counter(stack.newest) or stack.count(stack.newest) > 0
        yield from self._remake_shards(stack.layers if is_whole else stack.layers[:-1])
        if not is_whole:
            yield from self._complete(stack.newest)

    def clear(self) -> Steps[None]:
        """Delete the filter, or whatever else is at its key; nobody's parameters matter."""
        snapshot: Snapshot = (yield [Load(self.key)])[0]
        yield from self._delete_shards(snapshot.fields, Unlink(self.key))

    def add_reference(self, user: str) -> Steps[None]:
        """Use the filter for somebody."""
        yield [SetFieldIfAbsent(self.key, filter_keys.reference_field(user), "1")]

    def remove_reference(self, user: str) -> Steps[bool]:
        """Use the filter for somebody no more; with the last user it is deleted. Return whether it was."""
        fields: dict[str, str] | None = (yield [RemoveReference(self.key, filter_keys.reference_field(user))])[0]
        if fields is None:
            return False
        yield from self._delete_shards(fields)
        return True

    def _delete_shards(self, fields: Mapping[str, str], *first: Operation) -> Steps[None]:
        """Delete the shards of a hash with these fields, and those that it does not tell of, after the `first`."""
        try:
            stored = stored_layers(self.key, fields, hash_key=0)
        except WrongTypeError:
            # A newer format may name its strings otherwise: they are not ours to guess.
            stored = []
        layers = (*self.stack.layers, *stored)
        doomed = {key for layer in layers for key in layer.shard_keys}
        yield [*first, *(DeleteShard(key) for key in sorted(doomed))]
        yield from self._delete_unknown(max((layer.index for layer in layers), default=-1) + 1)
        text = fields.get(filter_keys.FILTER_FIELD)
        if text is not None:
            # A worker that adds may have restored the hash while the shards were there. One that does so later finds
            # that they are gone, and deletes it itself.
            yield [DeleteUnusedHash(self.key, text)]
        self.stack.void()
        self._forget()

    def _seal(self, layer: Layer) -> Steps[int | None]:
        """Close a layer's counter, seal its shards, and return the room that was given away.

        Returns None where one of them was not there.
        """
        granted, *headers = yield [
            CloseCounter(self.key, layer.credit_field),
            *(SealShard(key) for key in layer.shard_keys),
        ]
        is_lost = any(self.stack.state_of(header) is ShardState.FOREIGN for header in headers)
        return None if is_lost else granted

    def _delete_strays(self, lost: set[str]) -> Steps[None]:
        """Delete what late writes left at those of these keys where the filter has no shard."""
        strays = lost.difference(key for layer in self.stack.layers for key in layer.shard_keys)
        if strays:
            yield [DeleteShard(key, _NO_EPOCH) for key in strays]

    def _append_layer(self, layer: Layer) -> Steps[bool]:
        """Put a layer where no worker has put one yet, and open anew; return whether this one did, and has made it."""
        expires = self.parameters.expires_at(layer.created)
        begin = SetFieldFenced(self.key, layer.field, layer.to_json(), self.stack.text, expires)
        is_begun: bool = (yield [begin])[0]
        yield from self._complete(layer, layer.shard_keys) if is_begun else self.open()
        return is_begun

    def _complete(self, layer: Layer, missing: Sequence[str] | None = None) -> Steps[None]:
        """Make the shards that a layer lacks which has no counter, then the counter: with it additions begin.

        Which shards are `missing` is looked up if it is not known.
        """
        made: list[str] = []
        try:
            if missing is None:
                missing = yield from self._missing_shards([layer])
            yield from self._create_missing_shards(layer, missing, made, sealed=False)
        except (RefusedError, WrongTypeError):
            yield [*(DeleteShard(key, layer.identity.epoch) for key in made), DeleteField(self.key, layer.field)]
            raise
        counter = yield from self._first_counter(layer, is_new=len(made) == layer.size.shards)
        yield from self.open(SetFieldFenced(self.key, layer.credit_field, counter, self.stack.text))
        if made and self.stack.identity != layer.identity:
            yield [DeleteShard(key, layer.identity.epoch) for key in made]

    def _first_counter(self, layer: Layer, *, is_new: bool) -> Steps[str]:
        """Return the text that a layer's counter begins with.

        A filter of format 1 has no counters, and begins with what its bits say. Any other may not have bits and no
        counter: if it was lost, nobody knows who was given what, and it gives no more.
        """
        count = 0
        if not is_new:
            samples = sample_bits(layer)
            count = sampled_count(layer, samples, (yield samples))
        return closed(layer.most_items) if count and has_counters(self.stack.text) else str(count)

    def _remake_shards(self, layers: Sequence[Layer]) -> Steps[None]:
        """Make the shards of layers that were lost."""
        missing = yield from self._missing_shards(layers)
        made: list[str] = []
        for layer in layers:
            of_layer = [key for key in layer.shard_keys if key in missing]
            yield from self._create_missing_shards(layer, of_layer, made, sealed=layer != self.stack.newest)
        if made:
            self._forget()
            self.events.on_shards_lost(self.key, len(made), sum(layer.size.shards for layer in self.stack.layers))

    def _delete_unknown(self, index: int) -> Steps[None]:
        """Delete the shards of layers from this one on, of which no hash tells any more."""
        shard = 0
        while True:
            key = filter_keys.shard_key(self.key, index, shard)
            if (yield [InspectShard(key)])[0].kind == shards.SHARD:
                yield [DeleteShard(key)]
                shard += 1
            elif shard:
                index, shard = index + 1, 0
            else:
                return

    def _missing_shards(self, layers: Sequence[Layer]) -> Steps[list[str]]:
        """Return the keys of shards of these layers that are not there."""
        wanted = [key for layer in layers for key in layer.shard_keys]
        inspections = yield [InspectShard(key) for key in wanted]
        return [
            key for key, inspection in zip(wanted, inspections, strict=True) if not self._is_ours(inspection.identity)
        ]

    def _create_missing_shards(
        self, layer: Layer, missing: Sequence[str], made: list[str], *, sealed: bool
    ) -> Steps[None]:
        """Make shards of a layer, each in a round trip of its own; the keys of those that were made go to `made`.

        A large string takes a server tens of milliseconds, in which nobody else is answered.
        """
        size, epoch, expires = layer.size.shard_bytes, layer.identity.epoch, self.parameters.expires_at(layer.created)
        for key in missing:
            creation: Creation = (yield [CreateShard(key, size, epoch, sealed, expires)])[0]
            if creation.outcome == shards.FOREIGN:
                raise foreign_string(key, self._names)
            if creation.outcome == shards.FULL:
                raise self._no_room(layer, creation)
            if creation.outcome == shards.MADE:
                made.append(key)

    def _no_room(self, layer: Layer, creation: Creation) -> RefusedError:
        use = f"it uses {creation.used:,} of {creation.limit:,} bytes" if creation.limit else "it is full"
        capacity, error_rate = self._names.option("capacity"), self._names.option("error_rate")
        advice = (
            "raise its maxmemory or delete what it need not keep; the crawl can then go on where it is"
            if self.stack.layers
            else f"raise its maxmemory, or set a smaller {capacity} or a larger {error_rate}"
        )
        return RefusedError(
            f"Redis has no room for layer {layer.index} of the filter at {self.key!r}, which takes "
            f"{layer.size.memory_bytes:,} bytes ({use}): {advice}"
        )
