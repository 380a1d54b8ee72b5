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
    """The filter at `key`, as its hash describes it.

    Attributes:
        key: the key of the hash.
        fields: the fields of the hash.
        parameters: its parameters.
        identity: its epoch and hash key.
        layers: its live layers, oldest first.
        now: the server's time of reading, in Unix seconds.
    """

    key: str
    fields: Mapping[str, str]
    parameters: FilterParameters
    identity: Identity
    layers: tuple[Layer, ...]
    now: float

    @property
    def text(self) -> str:
        """The field that describes the filter: another text means another filter."""
        return self.fields[filter_keys.FILTER_FIELD]

    @property
    def unfinished(self) -> str | None:
        """The command that is filling the filter, or None: workers may use it."""
        return self.fields.get(filter_keys.UNFINISHED_FIELD)

    @property
    def references(self) -> list[str]:
        """The queues that keep the filter."""
        prefix = filter_keys.reference_field("")
        return sorted(name.removeprefix(prefix) for name in self.fields if name.startswith(prefix))

    def is_made(self, layer: Layer) -> bool:
        """Return whether a layer was created completely; true in format 1."""
        return layer.credit_field in self.fields or not has_counters(self.text)


def read(key: str) -> Steps[StoredFilter | None]:
    """Return the filter at a key, or None if the key is empty.

    Raises:
        MismatchError: the filter has a newer format, or another hash scheme.
        WrongTypeError: the key holds foreign data.
    """
    snapshot = yield from one(Load(key))
    reject_foreign_key(key, snapshot)
    text = snapshot.fields.get(filter_keys.FILTER_FIELD)
    return None if text is None else of_fields(key, text, snapshot.fields, snapshot.now)


def of_fields(key: str, text: str, fields: Mapping[str, str], now: float) -> StoredFilter:
    """Return the filter of a hash with these fields; `text` is its description.

    Raises:
        MismatchError: the filter has a newer format, or another hash scheme.
        WrongTypeError: a field cannot be read.
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
    """An item in one layer: its shard's key, and whether all of its bits are set.

    In a lost shard nothing is known of the item.
    """

    layer: int
    key: str
    is_seen: bool
    is_lost: bool


def look_up(stored: StoredFilter, item: bytes) -> Steps[list[Place]]:
    """Return the item's place in each layer, oldest layer first."""
    located = [layer.locate(item) for layer in stored.layers]
    checks = [LookUpBits(key, positions) for key, positions in located]
    replies = (yield checks) if checks else []
    places = []
    for layer, check, (header, are_set) in zip(stored.layers, checks, replies, strict=True):
        is_lost = not shard_header.is_of(shard_header.identity(header), layer.identity.epoch)
        places.append(Place(layer.index, check.key, are_set and not is_lost, is_lost))
    return places
