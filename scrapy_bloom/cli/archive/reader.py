"""The filter in a file that `export` wrote: read to its end before anybody relies on it."""

from collections.abc import Iterator
from dataclasses import dataclass

from scrapy_bloom.cli.archive.exporting import Advance, bits_of
from scrapy_bloom.cli.archive.file_format import Archive, Piece
from scrapy_bloom.errors import BloomError, MismatchError
from scrapy_bloom.filter import stored_filter
from scrapy_bloom.filter.layer import DAMAGED
from scrapy_bloom.filter.stored_filter import StoredFilter
from scrapy_bloom.storage import filter_keys
from scrapy_bloom.storage.counters import granted_of


@dataclass(frozen=True)
class SavedFilter:
    """The filter in a file, with its counters among its fields."""

    archive: Archive
    filter: StoredFilter

    def counter(self, index: int) -> str | None:
        """Return the text of a layer's counter; a layer of format 1 has none."""
        return self.filter.fields.get(filter_keys.credit_field(index, self.filter.identity.epoch))

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of the layers that were whole, in their order."""
        indexes = {layer.index for layer in self.filter.layers}
        return (piece for piece in self.archive.pieces() if piece.layer in indexes)


def read(archive: Archive, advance: Advance = lambda _: None) -> SavedFilter:
    """Read a file to its end, and return the filter that is in it.

    Raises:
        ConfigError: the file was cut off or altered, or what is in it cannot be a filter.
        MismatchError: the filter has a newer format.
    """
    archive.verify(advance)
    try:
        saved = SavedFilter(archive, _filter_of(archive))
    except MismatchError:
        raise
    except (BloomError, *DAMAGED):
        raise archive.impossible() from None
    expected = (
        (layer.index, shard, start, end) for layer in saved.filter.layers for shard, _, start, end in bits_of(layer)
    )
    for piece in saved.pieces():
        if (piece.layer, piece.shard, piece.start, piece.start + len(piece.data)) != next(expected, None):
            raise archive.impossible()
    if next(expected, None) is not None:
        raise archive.impossible()
    return saved


def _filter_of(archive: Archive) -> StoredFilter:
    header, counters = archive.header, archive.trailer["counters"]
    key, text = str(header["key"]), header["filter"]
    # Their epoch tells the fields of the counters.
    bare = stored_filter.of_fields(key, text, {}, now=0.0)
    fields = {filter_keys.FILTER_FIELD: text}
    for index, counter in counters.items():
        fields[filter_keys.layer_field(int(index))] = header["layers"][index]
        if counter is not None:
            granted_of(counter)
            fields[filter_keys.credit_field(int(index), bare.identity.epoch)] = counter
    found = stored_filter.of_fields(key, text, fields, now=0.0)
    if len(found.layers) != len(counters):
        raise ValueError("a layer is another filter's")
    return found
