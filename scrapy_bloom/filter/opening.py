"""Steps that read a filter: adopt it, restore its hash, refuse foreign data."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from scrapy_bloom.errors import SETTING_NAMES, MismatchError, Names, WrongTypeError
from scrapy_bloom.filter.events import Events
from scrapy_bloom.filter.layer import NO_IDENTITY, Identity, Layer, sample_bits, sampled_count
from scrapy_bloom.filter.layer_stack import LayerStack
from scrapy_bloom.storage import filter_keys, shard_header, shards
from scrapy_bloom.storage.counters import closed
from scrapy_bloom.storage.filter_hash import (
    DeleteField,
    DeleteUnusedHash,
    Load,
    RestoreFields,
    SetFieldFenced,
    SetFieldIfAbsent,
    Snapshot,
)
from scrapy_bloom.storage.operation import Operation, Steps, one
from scrapy_bloom.storage.shards import DeleteShard, InspectShard

# The bytes that one round trip deletes at most, if that is not a single shard.
_MAX_FREED_BYTES = 32 * 1024 * 1024


class ReplacedError(MismatchError):
    """Raised when the unfinished filter that this process fills is finished or gone.

    Another process has it, or another filter has its shards.
    """

    def __init__(self, key: str) -> None:
        super().__init__(f"the unfinished filter at {key!r} was finished, replaced or deleted: run the command again")


class Opening:
    """Steps that bring a worker's `stack` in line with the stored filter.

    `forget` is called when the process's cache of seen items becomes invalid. Errors use the user's
    `names`. An unfinished filter is refused, unless this worker `fills` it. Such a worker opens no
    other filter, restores no hash, and replaces no shard of another filter in use.
    """

    def __init__(
        self,
        stack: LayerStack,
        events: Events,
        forget: Callable[[], None] = lambda: None,
        *,
        fills: bool = False,
        names: Names = SETTING_NAMES,
        randbelow: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self.stack = stack
        self.events = events
        self.forget = forget
        self.names = names
        self.fills = fills
        self._randbelow = randbelow

    def open(self, *first: Operation[Any]) -> Steps[float]:
        """Adopt the stored filter, if there is one, and return the server's time.

        Creates nothing. The `first` operations share the round trip, ahead of the load.
        """
        snapshot = yield from self._load(first)
        yield from self._adopt_snapshot(snapshot)
        return snapshot.now

    def refresh(self) -> Steps[float | None]:
        """Adopt the stored filter as `open` does, but restore nothing.

        Only an addition restores a hash. Return None, and change nothing, if only the hash is gone:
        another worker may be deleting the filter.
        """
        snapshot = yield from self._snapshot()
        if self._lacks_hash(snapshot) and (yield from self._has_all_shards()):
            return None
        yield from self._adopt_snapshot(snapshot)
        return snapshot.now

    def verify(self) -> Steps[None]:
        """Adopt the stored filter, or store this worker's parameters. Allocates no bits.

        Workers that start together agree on the parameters, or are refused, before any of them adds
        an item.
        """
        now = yield from self.open()
        if self.stack.identity is None:
            yield from self.store_parameters(now)
        # A user without BITFIELD permission fails here instead of at the first addition.
        yield [InspectShard(filter_keys.shard_key(self.stack.prefix, 0, 0))]

    def store_parameters(self, now: float) -> Steps[float]:
        """Create the filter's hash unless another worker has; return the server's time."""
        yield from self._refuse_occupied()
        stack = self.stack
        text = stack.parameters.to_json(self._randbelow, is_spread=stack.placement.is_spread)
        expires = stack.parameters.expires_at(now)
        return (yield from self.open(SetFieldIfAbsent(stack.key, filter_keys.FILTER_FIELD, text, expires)))

    def draw_version(self) -> int:
        """Draw the first version of a set of forgotten items, far from those of earlier sets as a rule."""
        return self._randbelow(1 << shard_header.VERSION_BITS)

    def _load(self, first: Sequence[Operation[Any]]) -> Steps[Snapshot]:
        """Return a snapshot of the hash; a hash that alone is gone is restored first."""
        while True:
            snapshot = yield from self._snapshot(*first)
            first = ()
            if not self._lacks_hash(snapshot) or not (yield from self._has_all_shards()):
                return snapshot
            yield from self._restore()

    def _snapshot(self, *first: Operation[Any]) -> Steps[Snapshot]:
        results = yield [*first, Load(self.stack.key)]
        snapshot: Snapshot = results[-1]
        reject_foreign_key(self.stack.key, snapshot, self.names)
        if self.fills:
            self._require_same_unfinished(snapshot)
        return snapshot

    def _require_same_unfinished(self, snapshot: Snapshot) -> None:
        is_same = self.stack.identity is None or self.stack.text == snapshot.fields.get(filter_keys.FILTER_FIELD)
        if not is_same or filter_keys.UNFINISHED_FIELD not in snapshot.fields:
            raise ReplacedError(self.stack.key)

    def _lacks_hash(self, snapshot: Snapshot) -> bool:
        """Return whether the hash is gone although the known layers have not expired."""
        is_gone = filter_keys.FILTER_FIELD not in snapshot.fields and bool(self.stack.layers)
        return is_gone and not self.stack.has_expired(snapshot.now)

    def _adopt_snapshot(self, snapshot: Snapshot) -> Steps[None]:
        text = snapshot.fields.get(filter_keys.FILTER_FIELD)
        if text is None:
            self._adopt(None, [], snapshot)
        else:
            yield from self._adopt_stored(text, snapshot)

    def _adopt_stored(self, text: str, snapshot: Snapshot) -> Steps[None]:
        """Adopt the live layers of a stored filter, and delete the expired ones."""
        stack = self.stack
        identity = stack.parameters.verify_stored(stack.key, text, self.names)
        if not self.fills:
            _refuse_unfinished(stack.key, snapshot)
        stack.text = text
        stored = stored_layers(stack.key, snapshot.fields, identity.hash_key)
        stack.next_index = stored[-1].index + 1 if stored else 0
        alive = [
            layer
            for layer in stored
            if layer.identity == identity and not stack.parameters.has_ended(layer, snapshot.now)
        ]
        # If all layers have expired, they stay until the next layer exists: no index is ever used
        # twice.
        if alive:
            yield from self._delete_ended([layer for layer in stored if layer not in alive], alive, snapshot)
        yield from self._renew_references(text, snapshot)
        self._adopt(identity, alive, snapshot)
        yield from self._count_bits()

    def _renew_references(self, text: str, snapshot: Snapshot) -> Steps[None]:
        """Add this worker's references to a filter that lacks them, before it is used.

        Another worker has replaced the filter, or restored its hash.
        """
        lacking = sorted(self.stack.references - snapshot.fields.keys())
        if lacking:
            yield [SetFieldFenced(self.stack.key, field, "1", text) for field in lacking]

    def _adopt(self, identity: Identity | None, alive: Sequence[Layer], snapshot: Snapshot) -> None:
        """Adopt these layers, and invalidate the cache if a known layer is not among them."""
        stack = self.stack
        if any(layer not in alive for layer in stack.layers):
            self.forget()
        if stack.identity is not None and identity != stack.identity and not stack.has_expired(snapshot.now):
            self.events.on_replaced(stack.key)
        stack.adopt(identity, alive, snapshot)

    def _has_all_shards(self) -> Steps[bool]:
        """Return whether all known shards exist, and no shard of an unknown layer.

        All shards together prove that the filter was not cleared, though its deletion may have
        begun.
        """
        stack = self.stack
        wanted = [key for layer in stack.layers for key in layer.shard_keys]
        newest = stack.newest
        spread_over = 1 if newest.identity.is_spread else None
        following = filter_keys.shard_key(stack.key, newest.index + 1, 0, spread_over)
        *known, unknown = yield [InspectShard(key) for key in (*wanted, following)]
        return all(stack.owns(inspection.identity) for inspection in known) and not stack.owns(unknown.identity)

    def _restore(self) -> Steps[None]:
        """Restore the hash of a filter that has lost only its hash.

        The restored fields contain none of the references: each worker that uses the filter adds
        its own when it opens the filter.
        """
        stack = self.stack
        fields = yield from self._restored_fields()
        expires = stack.parameters.expires_at(stack.newest.created)
        restoring = RestoreFields(stack.key, filter_keys.FILTER_FIELD, tuple(fields.items()), expires)
        if not (yield from one(restoring)):
            return
        if (yield from self._has_all_shards()):
            self.events.on_restored(stack.key)
        else:
            # Another worker is deleting the filter, and may have looked for a hash before this one
            # restored it.
            yield [DeleteUnusedHash(stack.key, stack.text)]

    def _restored_fields(self) -> Steps[dict[str, str]]:
        """Return the hash as far as a worker knows it.

        Its counters are closed: other workers' credit is unknown. A filter that may not grow keeps
        its newest layer, and grants room without a limit.
        """
        stack = self.stack
        fields = {filter_keys.FILTER_FIELD: stack.text}
        for layer in stack.layers:
            samples = sample_bits(layer)
            count = max(stack.granted(layer), sampled_count(layer, samples, (yield samples)))
            fields[layer.field] = layer.to_json()
            is_open = layer == stack.newest and not stack.parameters.expansion
            fields[layer.credit_field] = str(count) if is_open else closed(count)
        return fields

    def _refuse_occupied(self) -> Steps[None]:
        """Refuse to create a filter over foreign strings; report shards of a lost filter."""
        key = self.stack.key
        layer = self.stack.first_layer(NO_IDENTITY._replace(is_spread=self.stack.placement.is_spread), 0, 0.0)
        inspections = yield [InspectShard(shard_key) for shard_key in layer.shard_keys]
        for shard_key, inspection in zip(layer.shard_keys, inspections, strict=True):
            if inspection.kind == shards.FOREIGN:
                raise foreign_string(shard_key, self.names)
        if any(shard_header.is_alive(inspection.identity) for inspection in inspections):
            self.events.on_orphaned(key)

    def _delete_ended(self, ended: Sequence[Layer], alive: Sequence[Layer], snapshot: Snapshot) -> Steps[None]:
        """Delete expired layers, and counters that belong to no live layer."""
        if ended:
            # Shards before fields: a worker that dies in between leaves the field, and so the work,
            # to the next worker.
            owners = {key: layer for layer in ended for key in layer.shard_keys}
            for keys in portions(owners):
                yield [DeleteShard(key, owners[key].identity.epoch) for key in keys]
        counters = {layer.credit_field for layer in alive}
        fields = [name for name in snapshot.fields if filter_keys.is_credit_field(name) and name not in counters]
        fields += [layer.field for layer in ended]
        if fields:
            yield [DeleteField(self.stack.key, name) for name in fields]

    def _count_bits(self) -> Steps[None]:
        """Estimate the items of layers without a counter from their bits."""
        uncounted = self.stack.uncounted()
        if not uncounted:
            return
        samples = [sample_bits(layer) for layer in uncounted]
        ones = iter((yield [sample for of_layer in samples for sample in of_layer]))
        for layer, of_layer in zip(uncounted, samples, strict=True):
            self.stack.note_counted(layer, sampled_count(layer, of_layer, [next(ones) for _ in of_layer]))


def portions(owners: Mapping[str, Layer]) -> Iterator[list[str]]:
    """Yield the keys of shards, given with their layers, in portions to delete in one round trip.

    A server that frees 512 MB at once does not serve other clients for 35 to 47 ms.
    """
    portion: list[str] = []
    size = 0
    for key, layer in sorted(owners.items(), key=lambda owner: owner[0]):
        size += layer.size.shard_bytes
        if portion and size > _MAX_FREED_BYTES:
            yield portion
            portion, size = [], layer.size.shard_bytes
        portion.append(key)
    if portion:
        yield portion


def stored_layers(key: str, fields: Mapping[str, str], hash_key: int) -> list[Layer]:
    """Return the layers that the fields of a filter's hash describe, oldest first."""
    prefix = filter_keys.prefix_of(key, fields)
    texts = {filter_keys.layer_of_field(name): text for name, text in fields.items()}
    indexes = sorted(index for index in texts if index is not None)
    return [Layer.from_json(prefix, index, texts[index], hash_key) for index in indexes]


def foreign_string(key: str, names: Names = SETTING_NAMES) -> WrongTypeError:
    """Return the error for a foreign string at a shard's key."""
    return WrongTypeError(
        f"the key {key!r}, where the filter keeps its bits, holds something that is not a filter's: use another key "
        f"for the filter ({names.key}), or delete this one"
    )


def _refuse_unfinished(key: str, snapshot: Snapshot) -> None:
    action = snapshot.fields.get(filter_keys.UNFINISHED_FIELD)
    if action is not None:
        raise WrongTypeError(
            f"the filter at {key!r} is not complete: `scrapy bloom {action}` is filling it, or was stopped. Start "
            "the crawl when the command has ended; if it was stopped, run it again first"
        )


def reject_foreign_key(key: str, snapshot: Snapshot, names: Names = SETTING_NAMES) -> None:
    """Raise a WrongTypeError if the key of a filter's hash holds anything else."""
    if snapshot.kind == "set":
        raise WrongTypeError(
            f"the key {key!r} holds a SET of {snapshot.members:,} members, as scrapy-redis leaves it: import it by "
            f"`scrapy bloom import` with the spider's name or --key, use another {names.key}, or delete it "
            f"and begin anew with {names.anew}"
        )
    is_strange = snapshot.fields and not any(filter_keys.is_field(name) for name in snapshot.fields)
    if snapshot.kind not in ("none", "hash") or is_strange:
        raise WrongTypeError(f"the key {key!r} holds a {snapshot.kind} that is not a filter: use another key")
