"""The filter of an import, before workers may open it: its hash is at the staging key until the swap."""

from typing import Any, TypeVar

from scrapy_bloom.cli import key_contents
from scrapy_bloom.cli.importing import import_errors
from scrapy_bloom.cli.importing.import_state import ImportKeys, ImportState
from scrapy_bloom.filter import stored_filter
from scrapy_bloom.filter.bloom_filter import CrawlFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.placement import Placement
from scrapy_bloom.filter.stored_filter import StoredFilter
from scrapy_bloom.storage import filter_keys
from scrapy_bloom.storage.filter_hash import RestoreFields
from scrapy_bloom.storage.operation import Store
from scrapy_bloom.storage.stores import run_steps


class ImportFilter(CrawlFilter):
    """A `CrawlFilter` that counts its `losses`, without a cache, which would hide them."""

    def __init__(self, client: Any, key: str, parameters: FilterParameters, **options: Any) -> None:
        super().__init__(client, key, **parameters.arguments(), cache_size=0, **options)

    @property
    def losses(self) -> int:
        """How often items that this process has found may have been lost, as by a failover."""
        return self._forgets


ImportFilterT = TypeVar("ImportFilterT", bound=ImportFilter)


class UnfinishedFilter(ImportFilter):
    """An `ImportFilter` that fills an unfinished filter."""

    _fills = True


class StagingFilter:
    """The stored filter of an import, with its hash at the staging key and its shards where they stay."""

    def __init__(self, at: ImportKeys, parameters: FilterParameters, store: Store, placement: Placement) -> None:
        self._at = at
        self._parameters = parameters
        self._placement = placement
        self._store = store

    def load(self) -> tuple[StoredFilter, ImportState] | None:
        """Return the filter and the state of its import, or None.

        Raises:
            WrongTypeError: the filter is in use, or another SET's.
        """
        found = run_steps(stored_filter.read(self._at.staging), self._store.execute)
        return None if found is None else (found, import_errors.require_own(self._at, found))

    def create(self, state: ImportState) -> None:
        """Create the filter, with its unfinished mark and the state of its import, unless there is one."""
        fields = (
            (filter_keys.FILTER_FIELD, self._parameters.to_json(is_spread=self._placement.is_spread)),
            (filter_keys.PREFIX_FIELD, self._at.key),
            (filter_keys.UNFINISHED_FIELD, import_errors.ACTION),
            (filter_keys.IMPORT_FIELD, state.to_json()),
        )
        self._store.execute([RestoreFields(self._at.staging, filter_keys.FILTER_FIELD, fields)])

    def delete(self) -> None:
        """Delete the filter, and no shard of another one: a crawl may have begun anew at the key of the SET."""
        key_contents.delete_contents(self._store, key_contents.inspect_key(self._store, self._at.staging))
