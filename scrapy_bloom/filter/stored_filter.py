"""Read a stored filter without its parameters and without changing it."""

from collections.abc import Mapping
from dataclasses import dataclass

from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.filter.layer import Identity, Layer
from scrapy_bloom.filter.opening import reject_foreign_key, stored_layers
from scrapy_bloom.filter.parameters import FilterParameters, has_counters
from scrapy_bloom.storage import filter_keys, shard_header
from scrapy_bloom.storage.bits import LookUpBits
from scrapy_bloom.storage.filter_hash import Load
from scrapy_bloom.storage.filter_keys import forgotten_key
from scrapy_bloom.storage.forgotten import SET, ForgottenSet, InspectForgotten, LookUpForgotten, ScanForgotten, epoch_of
from scrapy_bloom.storage.operation import Steps, one
from scrapy_bloom.storage.shard_header import HEADER_BYTES, MARK
from scrapy_bloom.storage.shards import ReadPiece


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

    def require_finished(self) -> None:
        """Raise a WrongTypeError if an action is filling the filter."""
        if self.unfinished is not None:
            raise WrongTypeError(
                f"the filter at {self.key!r} is incomplete: `scrapy bloom {self.unfinished}` is filling it, or was "
                "stopped. Wait for it, or run it again"
            )

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


def look_up(stored: StoredFilter, item: bytes) -> Steps[tuple[list[Place], bool]]:
    """Return the item's place in each layer, oldest layer first, and whether it is forgotten."""
    located = [layer.locate(item) for layer in stored.layers]
    checks = [LookUpBits(key, positions) for key, positions in located]
    replies = (yield checks) if checks else []
    places = []
    marks = []
    for layer, check, (header, are_set) in zip(stored.layers, checks, replies, strict=True):
        is_lost = not shard_header.is_of(shard_header.identity(header), layer.identity.epoch)
        places.append(Place(layer.index, check.key, are_set and not is_lost, is_lost))
        marks += [(layer.index, header & MARK)] if places[-1].is_seen else []
    if not marks or not marks[0][1]:
        return places, False
    forgotten = yield from one(LookUpForgotten(forgotten_key(stored.key), stored.identity.epoch, (item,)))
    # Without the set, every item under a mark is new.
    return places, forgotten is None or forgotten[0] >= marks[0][0]


def inspect_forgotten(stored: StoredFilter) -> Steps[tuple[ForgottenSet, bool]]:
    """Return the set of a filter's forgotten items, and whether an earlier one was lost."""
    shards = [(key, layer.identity.epoch) for layer in stored.layers for key in layer.shard_keys]
    replies = (yield [ReadPiece(key, 0, HEADER_BYTES - 1) for key, _ in shards]) if shards else []
    headers = [int.from_bytes(reply, "big") for reply in replies]
    marks = {
        header & MARK
        for (_, epoch), header in zip(shards, headers, strict=True)
        if shard_header.is_of(shard_header.identity(header), epoch)
    }
    # The set comes before the marks.
    found = yield from one(InspectForgotten(forgotten_key(stored.key), stored.identity.epoch))
    return found, found.was_lost(marks - {0})


def read_forgotten(key: str) -> Steps[dict[bytes, int]]:
    """Return the members of the set of forgotten items beside a key, of all filters, with their scores.

    A member that is removed or added meanwhile may be missing.

    Raises:
        WrongTypeError: the key of the set holds foreign data.
    """
    name = forgotten_key(key)
    found = yield from one(InspectForgotten(name, 0))
    members: dict[bytes, int] = {}
    cursor = 0 if found.kind == SET else None
    while cursor is not None:
        following, part = yield from one(ScanForgotten(name, cursor))
        cursor = following or None
        members |= part
    if found.is_foreign or None in map(epoch_of, members):
        raise foreign_set(key)
    return members


def foreign_set(key: str) -> WrongTypeError:
    """Return the error for foreign data where the filter at `key` keeps its forgotten items."""
    return WrongTypeError(
        f"the key {forgotten_key(key)!r}, where the filter keeps its forgotten items, holds something that is not a "
        "filter's: use another key for the filter, or delete this one"
    )
