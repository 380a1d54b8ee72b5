"""Read a stored filter without its parameters and without changing it."""

from collections.abc import Mapping
from dataclasses import dataclass

from scrapy_bloom.filter.layer import Identity, Layer
from scrapy_bloom.filter.opening import reject_foreign_key, stored_layers
from scrapy_bloom.filter.parameters import FilterParameters, has_counters
from scrapy_bloom.storage import filter_keys, shard_header
from scrapy_bloom.storage.bits import LookUpBits
from scrapy_bloom.storage.filter_hash import Load
from scrapy_bloom.storage.operation import Steps, one


@dataclass(frozen=True)
class StoredFilter:
    """The filter at `key`: all that its hash says.

    Attributes:
        key: the key of the hash.
        fields: the fields of the hash, by their names.
        parameters: those that it was made with.
        identity: its epoch and hash key.
        layers: those that live, oldest first.
        now: the server's time when it was read, in Unix seconds.
    """

    key: str
    fields: Mapping[str, str]
    parameters: FilterParameters
    identity: Identity
    layers: tuple[Layer, ...]
    now: float

    @property
    def text(self) -> str:
        """The field that describes the filter: of another text it is another filter."""
        return self.fields[filter_keys.FILTER_FIELD]

    @property
    def unfinished(self) -> str | None:
        """The action that fills it and has not ended, or None: it may be used."""
        return self.fields.get(filter_keys.UNFINISHED_FIELD)

    @property
    def users(self) -> list[str]:
        """The queues for which it is kept."""
        prefix = filter_keys.reference_field("")
        return sorted(name.removeprefix(prefix) for name in self.fields if name.startswith(prefix))

    def is_made(self, layer: Layer) -> bool:
        """Return whether all shards of a layer were made, as far as that is stored: format 1 tells nothing."""
        return layer.credit_field in self.fields or not has_counters(self.text)


def read(key: str) -> Steps[StoredFilter | None]:
    """Return the filter at a key, or None: nothing is there.

    Raises:
        MismatchError: it has a newer format, or other hashes.
        WrongTypeError: something else is there.
    """
    snapshot = yield from one(Load(key))
    reject_foreign_key(key, snapshot)
    text = snapshot.fields.get(filter_keys.FILTER_FIELD)
    return None if text is None else of_fields(key, text, snapshot.fields, snapshot.now)


def of_fields(key: str, text: str, fields: Mapping[str, str], now: float) -> StoredFilter:
    """Return the filter of a hash with these fields, of which `text` is the one that describes it.

    Raises:
        MismatchError: it has a newer format, or other hashes.
        WrongTypeError: they cannot be read.
    """
    parameters = FilterParameters.from_json(key, text)
    identity = parameters.verify_stored(key, text)
    layers = tuple(
        layer
        for layer in stored_layers(key, fields, identity.hash_key)
        if layer.identity == identity and not parameters.has_ended(layer, now)
    )
    return StoredFilter(key, fields, parameters, identity, layers, now)


@dataclass(frozen=True)
class Place:
    """The place of an item in one layer: the key of its shard, and whether its bits are all set there.

    It is lost where the string there is not this filter's; then nothing is known of the item.
    """

    layer: int
    key: str
    is_seen: bool
    is_lost: bool


def look_up(stored: StoredFilter, item: bytes) -> Steps[list[Place]]:
    """Return the places of an item, oldest layer first."""
    located = [layer.locate(item) for layer in stored.layers]
    checks = [LookUpBits(key, positions) for key, positions in located]
    replies = (yield checks) if checks else []
    places = []
    for layer, check, (header, are_set) in zip(stored.layers, checks, replies, strict=True):
        is_lost = not shard_header.is_of(shard_header.identity(header), layer.identity.epoch)
        places.append(Place(layer.index, check.key, are_set and not is_lost, is_lost))
    return places
