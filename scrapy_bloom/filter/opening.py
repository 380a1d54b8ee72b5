"""Steps that read the stored state of a filter: adopting it, restoring it, and refusing what is foreign."""

import secrets
from collections.abc import Callable, Mapping, Sequence

from scrapy_bloom._names import SETTINGS, Names
from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.filter.events import Events
from scrapy_bloom.filter.layer import NO_IDENTITY, Identity, Layer, sample_bits, sampled_count
from scrapy_bloom.filter.layer_stack import LayerStack, ShardState
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.storage import filter_keys, shard_header, shards
from scrapy_bloom.storage.counters import closed
from scrapy_bloom.storage.filter_hash import (
    DeleteField,
    DeleteUnusedHash,
    Load,
    RestoreFields,
    SetFieldIfAbsent,
    Snapshot,
)
from scrapy_bloom.storage.operation import Operation, Steps
from scrapy_bloom.storage.shards import DeleteShard, InspectShard


class Opening:
    """Steps that bring one worker's `stack` in line with what is stored of its filter.

    `forget` is called when answers that the process remembers become invalid. One that is not filled yet is opened by
    a caller that `opens_unfinished` ones. Errors use the user's `names`.
    """

    def __init__(
        self,
        stack: LayerStack,
        events: Events,
        forget: Callable[[], None],
        *,
        opens_unfinished: bool = False,
        names: Names = SETTINGS,
        randbelow: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self.stack = stack
        self.events = events
        self._forget = forget
        self._opens_unfinished = opens_unfinished
        self._names = names
        self._randbelow = randbelow

    @property
    def key(self) -> str:
        """The key of the filter's hash."""
        return self.stack.key

    @property
    def parameters(self) -> FilterParameters:
        """The parameters that this worker wants the filter to have."""
        return self.stack.parameters

    def open(self, *first: Operation) -> Steps[float]:
        """Adopt what is stored of the filter, if anything is, and return the server's time. Nothing is made.

        Operations that come `first` are carried out in the same round trip.
        """
        snapshot = yield from self._load(first)
        yield from self._adopt_snapshot(snapshot)
        return snapshot.now

    def look(self) -> Steps[float | None]:
        """Adopt what is stored as `open` does, but restore nothing: only an addition restores a hash.

        Return None, and change nothing, if the hash alone is gone. The last user's worker may be deleting the filter.
        """
        snapshot: Snapshot = (yield [Load(self.key)])[0]
        reject_foreign_key(self.key, snapshot, self._names)
        if self._lacks_hash(snapshot) and (yield from self._has_all_shards()):
            return None
        yield from self._adopt_snapshot(snapshot)
        return snapshot.now

    def verify(self) -> Steps[None]:
        """Adopt the stored filter, or store what this worker wants it to be; it takes no room for bits yet.

        Workers that begin together agree, or are refused, at their start.
        """
        now = yield from self.open()
        if self.stack.identity is None:
            yield from self.store_parameters(now)
        # Whoever may not do with bits what a filter does learns that now.
        yield [InspectShard(filter_keys.shard_key(self.key, 0, 0))]

    def store_parameters(self, now: float) -> Steps[float]:
        """Make the hash of a filter, unless another worker has done so, and return the server's time after that."""
        yield from self._refuse_occupied()
        text = self.parameters.to_json(self._randbelow)
        expires = self.parameters.expires_at(now)
        return (yield from self.open(SetFieldIfAbsent(self.key, filter_keys.FILTER_FIELD, text, expires)))

    def _load(self, first: Sequence[Operation]) -> Steps[Snapshot]:
        """Return a look at the filter's key; a hash that alone is gone is put back before that."""
        while True:
            snapshot: Snapshot = (yield [*first, Load(self.key)])[-1]
            first = ()
            reject_foreign_key(self.key, snapshot, self._names)
            if not self._lacks_hash(snapshot) or not (yield from self._has_all_shards()):
                return snapshot
            yield from self._restore()

    def _lacks_hash(self, snapshot: Snapshot) -> bool:
        """Return whether the hash of this worker's filter is gone; a filter whose time is over has expired instead."""
        is_gone = filter_keys.FILTER_FIELD not in snapshot.fields and bool(self.stack.layers)
        return is_gone and not self.stack.is_over(snapshot.now)

    def _adopt_snapshot(self, snapshot: Snapshot) -> Steps[None]:
        text = snapshot.fields.get(filter_keys.FILTER_FIELD)
        if text is None:
            self._adopt(None, [], snapshot)
        else:
            yield from self._adopt_stored(text, snapshot)

    def _adopt_stored(self, text: str, snapshot: Snapshot) -> Steps[None]:
        """Go on with the layers of a stored filter that are alive, and delete the others."""
        identity = self.parameters.verify_stored(self.key, text, self._names)
        if not self._opens_unfinished:
            _refuse_unfinished(self.key, snapshot)
        self.stack.text = text
        stored = stored_layers(self.key, snapshot.fields, identity.hash_key)
        self.stack.next_index = stored[-1].index + 1 if stored else 0
        alive = [
            layer
            for layer in stored
            if layer.identity == identity and not self.parameters.has_ended(layer, snapshot.now)
        ]
        # Where all are over they are left until the next one has begun: no index is ever used twice.
        if alive:
            yield from self._delete_ended([layer for layer in stored if layer not in alive], alive, snapshot)
        self._adopt(identity, alive, snapshot)
        yield from self._count_bits()

    def _adopt(self, identity: Identity | None, alive: Sequence[Layer], snapshot: Snapshot) -> None:
        """Go on with these layers, and forget what others knew."""
        stack = self.stack
        if any(layer not in alive for layer in stack.layers):
            self._forget()
        if stack.identity is not None and identity != stack.identity and not stack.is_over(snapshot.now):
            self.events.on_replaced(self.key)
        stack.adopt(identity, alive, snapshot)

    def _has_all_shards(self) -> Steps[bool]:
        """Return whether all shards that this worker knows of are there, and none of a layer that it does not know.

        They prove that the filter was not cleared, though its deletion may have begun.
        """
        stack = self.stack
        wanted = [key for layer in stack.layers for key in layer.shard_keys]
        following = filter_keys.shard_key(self.key, stack.newest.index + 1, 0)
        *known, unknown = yield [InspectShard(key) for key in (*wanted, following)]
        return all(self._is_ours(each.identity) for each in known) and not self._is_ours(unknown.identity)

    def _restore(self) -> Steps[None]:
        """Restore the hash of a filter of which the hash alone is gone.

        What others were given credit for nobody knows any more: the newest layer gives no more.
        """
        fields = yield from self._restored_fields()
        expires = self.parameters.expires_at(self.stack.newest.created)
        if not (yield [RestoreFields(self.key, filter_keys.FILTER_FIELD, tuple(fields.items()), expires)])[0]:
            return
        if (yield from self._has_all_shards()):
            self.events.on_restored(self.key)
        else:
            # The filter was being deleted, and the worker that did so may have looked for a hash before.
            yield [DeleteUnusedHash(self.key, self.stack.text)]

    def _restored_fields(self) -> Steps[dict[str, str]]:
        """Return the hash of this worker's filter, as far as a worker can know it; all counters are closed."""
        stack = self.stack
        fields = {filter_keys.FILTER_FIELD: stack.text}
        for layer in stack.layers:
            samples = sample_bits(layer)
            count = max(stack.granted(layer), sampled_count(layer, samples, (yield samples)))
            fields[layer.field] = layer.to_json()
            fields[layer.credit_field] = closed(count)
        return fields

    def _is_ours(self, identity: int) -> bool:
        return self.stack.state_of_identity(identity) is not ShardState.FOREIGN

    def _refuse_occupied(self) -> Steps[None]:
        """Refuse to make a filter over somebody else's strings, and tell of a lost filter's."""
        layer = self.parameters.first_layer(self.key, NO_IDENTITY, 0, 0.0)
        inspections = yield [InspectShard(key) for key in layer.shard_keys]
        for key, inspection in zip(layer.shard_keys, inspections, strict=True):
            if inspection.kind == shards.FOREIGN:
                raise foreign_string(key, self._names)
        if any(shard_header.is_alive(inspection.identity) for inspection in inspections):
            self.events.on_orphaned(self.key)

    def _delete_ended(self, ended: Sequence[Layer], alive: Sequence[Layer], snapshot: Snapshot) -> Steps[None]:
        """Delete layers, and counters of layers that are not alive."""
        if ended:
            # The shards go first: a worker that dies in between leaves the field, and so the work, to the next one.
            yield [DeleteShard(key, layer.identity.epoch) for layer in ended for key in layer.shard_keys]
        fields = _ended_fields(ended, alive, snapshot)
        if fields:
            yield [DeleteField(self.key, name) for name in fields]

    def _count_bits(self) -> Steps[None]:
        """Count what is in the layers that have no counter, by their bits."""
        uncounted = self.stack.uncounted()
        if not uncounted:
            return
        samples = [sample_bits(layer) for layer in uncounted]
        ones = iter((yield [sample for of_layer in samples for sample in of_layer]))
        for layer, of_layer in zip(uncounted, samples, strict=True):
            self.stack.note_counted(layer, sampled_count(layer, of_layer, [next(ones) for _ in of_layer]))


def stored_layers(key: str, fields: Mapping[str, str], hash_key: int) -> list[Layer]:
    """Return the layers that the fields of a filter's hash describe, oldest first."""
    texts = {filter_keys.layer_of_field(name): text for name, text in fields.items()}
    indexes = sorted(index for index in texts if index is not None)
    return [Layer.from_json(key, index, texts[index], hash_key) for index in indexes]


def foreign_string(key: str, names: Names = SETTINGS) -> WrongTypeError:
    """Return the error of a string that is not a filter's, where one keeps its bits."""
    return WrongTypeError(
        f"the key {key!r}, where the filter keeps its bits, holds something that is not a filter's: use another key "
        f"for the filter ({names.key}), or delete that"
    )


def _ended_fields(ended: Sequence[Layer], alive: Sequence[Layer], snapshot: Snapshot) -> list[str]:
    """Return the fields of layers that ended, and the counters that belong to no layer that is alive."""
    counters = {layer.credit_field for layer in alive}
    strange = [name for name in snapshot.fields if filter_keys.is_credit_field(name) and name not in counters]
    return strange + [layer.field for layer in ended]


def _refuse_unfinished(key: str, snapshot: Snapshot) -> None:
    by = snapshot.fields.get(filter_keys.UNFINISHED_FIELD)
    if by is not None:
        raise WrongTypeError(
            f"the filter at {key!r} is not complete: `scrapy bloom {by}` is filling it, or was stopped. Start again "
            "when it has ended; if it was stopped, run it again first"
        )


def reject_foreign_key(key: str, snapshot: Snapshot, names: Names = SETTINGS) -> None:
    """Raise a WrongTypeError where something that is no filter is at its key."""
    if snapshot.kind == "set":
        raise WrongTypeError(
            f"the key {key!r} holds a SET of {snapshot.members:,} members, as scrapy-redis leaves it: move it in by "
            f"`scrapy bloom import` with the spider's name or --key, use another {names.key}, or delete it "
            f"and begin anew with {names.anew}"
        )
    strangers = snapshot.fields and not any(filter_keys.is_field(name) for name in snapshot.fields)
    if snapshot.kind not in ("none", "hash") or strangers:
        raise WrongTypeError(f"the key {key!r} holds a {snapshot.kind} that is not a filter: use another key")
