"""Steps that change the layers of a filter: create, grow, rotate, recover, clear.

A layer is stored in this order: the field that describes it, its shards, its counter. Additions
need credit, and only the counter grants credit. So an addition always finds all shards, and a
missing shard was lost.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scrapy_bloom.errors import RefusedError, WrongTypeError
from scrapy_bloom.filter import unlisted_shards
from scrapy_bloom.filter.layer import NO_IDENTITY, Layer, sample_bits, sampled_count
from scrapy_bloom.filter.layer_stack import NEARLY_FULL, ShardState
from scrapy_bloom.filter.opening import Opening, ReplacedError, foreign_string, portions, stored_layers
from scrapy_bloom.filter.parameters import has_counters
from scrapy_bloom.storage import filter_keys, shard_header, shards
from scrapy_bloom.storage.counters import ChargeCounter, CloseCounter, closed
from scrapy_bloom.storage.filter_hash import (
    DeleteField,
    DeleteUnusedHash,
    Load,
    RemoveReference,
    SetFieldFenced,
    SetFieldIfAbsent,
    Unlink,
)
from scrapy_bloom.storage.forgotten import LOST, DeleteForgotten, ForgetItems
from scrapy_bloom.storage.operation import Operation, Steps, one
from scrapy_bloom.storage.shards import CreateShard, Creation, DeleteShard, InspectShard, PrepareShard, SealShard

# The epoch of bits that a late write has left without a shard.
_NO_EPOCH = 0


# The last additions to a layer prepare a string each. They have so many items at most, as a rule.
_ITEMS_A_STRING = 1_000


class _Preparation(NamedTuple):
    """The strings `left` to prepare for the layer after `layer`, from `begin` granted items on."""

    layer: Layer
    begin: int
    left: list[PrepareShard]


class Lifecycle:
    """Steps that change the layers of a filter.

    The first addition creates the first layer: opening a filter stores none. A next layer of at
    least `min_prepared_bytes` is allocated ahead, once the newest one exceeds its capacity. The
    addition that grows the filter, and other clients, then need not wait for its memory. With a TTL
    the time of the next layer is not known ahead.
    """

    min_prepared_bytes = 16 * 1024 * 1024

    def __init__(self, opening: Opening) -> None:
        self._preparing: _Preparation | None = None
        self.opening = opening
        self.stack = opening.stack
        self._key = opening.stack.key
        self._parameters = opening.stack.parameters
        self._events = opening.events

    def ensure_layer(self) -> Steps[None]:
        """Create the filter if it does not exist, and a layer if none is alive."""
        now = yield from self.opening.open()
        if self.stack.identity is None:
            now = yield from self.opening.store_parameters(now)
        identity = self.stack.identity
        if identity is not None and not self.stack.layers:
            yield from self._append_layer(self.stack.first_layer(identity, self.stack.next_index, now))

    def complete_newest(self, layer: Layer) -> Steps[None]:
        """Reopen the filter, and complete this layer if it is still the newest one."""
        yield from self.opening.open()
        if self.stack.layers and self.stack.newest == layer and not self.stack.has_counter(layer):
            yield from self._complete(layer)

    def grow(self, full: Layer) -> Steps[None]:
        """Seal a layer and append the next, or finish another worker's growth.

        All shards are sealed before the next layer exists. In the other order two workers could
        both find an item new, one in each layer. The counter is closed even before that: its grants
        then bound the items of the layer.
        """
        stack = self.stack
        now = yield from self.opening.open()
        if not stack.layers or stack.newest != full:
            return
        if not stack.has_counter(full):
            yield from self._complete(full)
        granted = yield from self._seal(full)
        if granted is None:
            yield from self.recover(set(full.shard_keys))
            return
        stack.note_granted(full, granted)
        following = self._following(full, now)
        if (yield from self._append_layer(following)):
            if self._parameters.has_expired_generation(full, now):
                self._events.on_rotation(full, following)
            else:
                self._events.on_growth(full, following, granted)

    def prepare_next(self, newest: Layer) -> list[PrepareShard]:
        """Return the operation that allocates a string of the next layer, if that is due.

        It is due beyond the layer's capacity: a filter of the right size never takes the memory of a second layer.
        """
        granted = self.stack.granted(newest)
        if granted < newest.capacity * NEARLY_FULL or not self._parameters.expansion:
            return []
        if self._preparing is None or self._preparing.layer != newest:
            self._preparing = self._prepare(newest)
        return self._preparing.left[-1:] if granted >= self._preparing.begin else []

    def _prepare(self, newest: Layer) -> "_Preparation":
        following = self._following(newest, 0.0)
        keys = reversed(following.shard_keys) if self._is_prepared(following) else ()
        size, each = following.size.shard_bytes, following.size.memory_bytes // following.size.shards
        # In a cluster one node must have room for all, although the nodes share the layer.
        left = [PrepareShard(key, size, each * number) for number, key in enumerate(keys, 1)]
        room = newest.max_items - newest.capacity
        return _Preparation(newest, newest.max_items - max(room // 2, len(left) * _ITEMS_A_STRING), left)

    def note_prepared(self, creation: Creation) -> None:
        """Note the outcome of `prepare_next`. After a failure the growth allocates the rest."""
        if self._preparing is not None:
            left = self._preparing.left
            left.pop()
            if creation.outcome not in (shards.MADE, shards.PRESENT):
                left.clear()

    def _following(self, full: Layer, now: float) -> Layer:
        """Return the layer after `full`.

        Without a TTL its size is the same before and after `full` is sealed, so that the prepared
        strings fit.
        """
        items = 0 if self._parameters.ttl else full.max_items
        return self.stack.layer_after(full, items, now)

    def _is_prepared(self, layer: Layer) -> bool:
        is_large = layer.size.memory_bytes >= self.min_prepared_bytes
        return layer.index > 0 and is_large and not self._parameters.ttl

    def rotate(self, *, adds: bool) -> Steps[None]:
        """Delete expired layers, and begin another generation when it is due.

        Only a worker that `adds` restores a lost hash.
        """
        now = yield from self.opening.open() if adds else self.opening.refresh()
        if now is None or not self.stack.layers:
            return
        if self._parameters.has_expired_generation(self.stack.newest, now):
            yield from self.grow(self.stack.newest)

    def recover(self, lost: set[str]) -> Steps[None]:
        """Reopen the filter, recreate lost shards, and delete late writes at `lost` keys."""
        stack = self.stack
        try:
            yield from self.opening.open()
        except ReplacedError:
            yield [DeleteShard(key, _NO_EPOCH) for key in lost]
            raise
        yield from self._delete_strays(lost)
        if not stack.layers:
            return
        is_complete = stack.has_counter(stack.newest) or stack.count(stack.newest) > 0
        yield from self._recreate_shards(stack.layers if is_complete else stack.layers[:-1])
        if not is_complete:
            yield from self._complete(stack.newest)

    def discard_marked(self) -> Steps[set[str]]:
        """Delete the shards with the mark of a lost set of forgotten items, and return the keys of all shards.

        Any of their items may have been forgotten. A shard with the mark of the present set stays: this worker was
        stopped while others forgot items. So does a shard without a mark, which was created anew since.
        """
        stack = self.stack
        epoch = (stack.identity or NO_IDENTITY).epoch
        version: int | None = yield from one(ForgetItems(filter_keys.forgotten_key(self._key), epoch, (), None))
        if version == LOST:
            version = None
        owners = {key: layer for layer in stack.layers for key in layer.shard_keys}
        are_deleted = False
        for keys in portions(owners):
            deletions = [DeleteShard(key, epoch, if_marked=True, version=version) for key in keys]
            are_deleted |= any((yield deletions))
        if are_deleted:
            self._events.on_forgotten_lost(self._key)
        return set(owners)

    def charge(self, index: int, number: int) -> Steps[None]:
        """Count stray bits, marked without credit, in the current layer at this index."""
        charged = [layer for layer in self.stack.layers if layer.index == index]
        if charged and number:
            yield [ChargeCounter(self._key, charged[0].credit_field, number)]

    def clear(self) -> Steps[None]:
        """Delete the filter, or other data at its key, regardless of parameters."""
        snapshot = yield from one(Load(self._key))
        yield from self._delete_shards(snapshot.fields, Unlink(self._key))

    def add_reference(self, name: str) -> Steps[None]:
        """Add a reference to this filter and to its replacements."""
        field = filter_keys.reference_field(name)
        self.stack.references.add(field)
        yield [SetFieldIfAbsent(self._key, field, "1")]

    def remove_reference(self, name: str) -> Steps[bool]:
        """Remove a reference; delete the filter when none is left.

        Return whether it was deleted.
        """
        field = filter_keys.reference_field(name)
        self.stack.references.discard(field)
        fields = yield from one(RemoveReference(self._key, field))
        if fields is None:
            return False
        yield from self._delete_shards(fields)
        return True

    def _delete_shards(self, fields: Mapping[str, str], *first: Operation[bool]) -> Steps[None]:
        """Execute the `first` operations, then delete all shards, unlisted ones too.

        The `fields` are those of the hash.
        """
        try:
            stored = stored_layers(self._key, fields, hash_key=0)
        except WrongTypeError:
            # A newer format may name its strings differently; without that knowledge none is
            # deleted.
            stored = []
        layers = (*self.stack.layers, *stored)
        for keys in portions({key: layer for layer in layers for key in layer.shard_keys}):
            yield [*first, *(DeleteShard(key) for key in keys)]
            first = ()
        if first:
            yield first
        unlisted = yield from unlisted_shards.find(self._key, layers)
        for key in unlisted:
            yield [DeleteShard(key)]
        # The forgotten items last: a worker that forgets one meanwhile finds the shards gone, and drops its own. And
        # another worker's addition may have restored the hash while the shards existed. A worker that restores the hash
        # later finds them gone, and deletes the hash itself.
        text = fields.get(filter_keys.FILTER_FIELD)
        unused = [] if text is None else [DeleteUnusedHash(self._key, text)]
        yield [DeleteForgotten(filter_keys.forgotten_key(self._key)), *unused]
        self.stack.void()
        self.opening.forget()

    def _seal(self, layer: Layer) -> Steps[int | None]:
        """Close a layer's counter, seal its shards, and return the granted room.

        Return None if a shard was lost.
        """
        granted, *headers = yield [
            CloseCounter(self._key, layer.credit_field),
            *(SealShard(key) for key in layer.shard_keys),
        ]
        is_lost = any(self.stack.state_of(header) is ShardState.FOREIGN for header in headers)
        return None if is_lost else granted

    def _delete_strays(self, lost: set[str]) -> Steps[None]:
        """Delete late writes at those keys where the filter has no shard."""
        strays = lost.difference(key for layer in self.stack.layers for key in layer.shard_keys)
        if strays:
            yield [DeleteShard(key, _NO_EPOCH) for key in strays]

    def _append_layer(self, layer: Layer) -> Steps[bool]:
        """Append and complete a layer, and return True; False if another worker has."""
        expires = self._parameters.expires_at(layer.created)
        begin = SetFieldFenced(self._key, layer.field, layer.to_json(), self.stack.text, expires)
        is_begun = yield from one(begin)
        yield from self._complete(layer, layer.shard_keys) if is_begun else self.opening.open()
        return is_begun

    def _complete(self, layer: Layer, missing: Sequence[str] | None = None) -> Steps[None]:
        """Create a layer's missing shards, then its counter, which admits additions.

        Without `missing` the shards are inspected first.
        """
        made: list[str] = []
        try:
            if missing is None:
                missing = yield from self._missing_shards([layer])
            yield from self._create_shards(layer, missing, made, sealed=False)
        except (RefusedError, WrongTypeError):
            yield [*(DeleteShard(key, layer.identity.epoch) for key in made), DeleteField(self._key, layer.field)]
            raise
        counter = yield from self._first_counter(layer, is_new=len(made) == layer.size.shards)
        yield from self.opening.open(SetFieldFenced(self._key, layer.credit_field, counter, self.stack.text))
        if made and self.stack.identity != layer.identity:
            yield [DeleteShard(key, layer.identity.epoch) for key in made]

    def _first_counter(self, layer: Layer, *, is_new: bool) -> Steps[str]:
        """Return the initial text of a layer's counter.

        A filter of format 1 has no counters: each starts at the number of items that the bits show.
        In format 2, bits without a counter mean that the counter was lost. The outstanding credit
        is unknown then, and the new counter is closed.
        """
        count = 0
        if not is_new:
            samples = sample_bits(layer)
            count = sampled_count(layer, samples, (yield samples))
        return closed(layer.max_items) if count and has_counters(self.stack.text) else str(count)

    def _recreate_shards(self, layers: Sequence[Layer]) -> Steps[None]:
        """Create the lost shards of these layers anew."""
        missing = yield from self._missing_shards(layers)
        made: list[str] = []
        for layer in layers:
            of_layer = [key for key in layer.shard_keys if key in missing]
            yield from self._create_shards(layer, of_layer, made, sealed=layer != self.stack.newest)
        if made:
            self.opening.forget()
            self._events.on_shards_lost(self._key, len(made), sum(layer.size.shards for layer in self.stack.layers))

    def _missing_shards(self, layers: Sequence[Layer]) -> Steps[list[str]]:
        """Return the keys of these layers' missing shards."""
        wanted = [key for layer in layers for key in layer.shard_keys]
        inspections = yield [InspectShard(key) for key in wanted]
        checked = zip(wanted, inspections, strict=True)
        return [key for key, inspection in checked if not self.stack.owns(inspection.identity)]

    def _create_shards(self, layer: Layer, missing: Sequence[str], made: list[str], *, sealed: bool) -> Steps[None]:
        """Create shards of a layer, and append their keys to `made`.

        A large string blocks a server for tens of milliseconds. One shard per round trip lets it
        serve other clients in between.
        """
        size, epoch, expires = layer.size.shard_bytes, layer.identity.epoch, self._parameters.expires_at(layer.created)
        left = list(missing)
        replaced = (yield from self._leftovers(missing)) if self.opening.fills else dict.fromkeys(missing)
        if self._is_prepared(layer):
            ready = yield [
                CreateShard(key, size, epoch, sealed, expires, allocate=False, replaces=replaced[key])
                for key in missing
            ]
            outcomes = {key: creation.outcome for key, creation in zip(missing, ready, strict=True)}
            # All of them before the first allocation: if that fails, the caller deletes those made.
            made += [key for key in missing if outcomes[key] == shards.MADE]
            left = [key for key in missing if outcomes[key] not in (shards.MADE, shards.PRESENT)]
        for key in left:
            creation = yield from one(CreateShard(key, size, epoch, sealed, expires, replaces=replaced[key]))
            if creation.outcome == shards.FOREIGN:
                raise foreign_string(key, self.opening.names)
            if creation.outcome == shards.OTHER:
                raise ReplacedError(self._key)
            if creation.outcome == shards.FULL:
                raise self._no_room(layer, creation)
            if creation.outcome == shards.MADE:
                made.append(key)

    def _leftovers(self, missing: Sequence[str]) -> Steps[dict[str, int | None]]:
        """Return the epochs of shards at these keys that a deleted filter has left behind; 0: there is none.

        A hash is stored before its shards. So a shard belongs to no filter if the key holds another one after the shard
        was seen, or a SET.

        Raises:
            ReplacedError: another filter may be in use.
        """
        inspections = yield [InspectShard(key) for key in missing]
        epochs = {key: shard_header.epoch(each.identity) for key, each in zip(missing, inspections, strict=True)}
        if any(epochs.values()):
            snapshot = yield from one(Load(self.stack.prefix))
            is_ours = snapshot.fields.get(filter_keys.FILTER_FIELD) == self.stack.text
            if snapshot.kind != "set" and not is_ours:
                raise ReplacedError(self._key)
        return {**epochs}

    def _no_room(self, layer: Layer, creation: Creation) -> RefusedError:
        names = self.opening.names
        use = f"it uses {creation.used:,} of {creation.limit:,} bytes" if creation.limit else "it is full"
        advice = (
            "raise its maxmemory or delete other data; the crawl can then go on where it is"
            if self.stack.layers
            else f"raise its maxmemory, or set a smaller {names.option('capacity')} or a larger "
            f"{names.option('error_rate')}"
        )
        return RefusedError(
            f"Redis has no room for layer {layer.index} of the filter at {self._key!r}, which takes "
            f"{layer.size.memory_bytes:,} bytes ({use}): {advice}"
        )
