"""The place where an import makes its filter, before that has its key."""

import time

from scrapy_bloom.admin.importing import refusals
from scrapy_bloom.admin.importing.state import ImportState
from scrapy_bloom.filter import stored
from scrapy_bloom.filter.events import LoggedEvents
from scrapy_bloom.filter.layers import LayerStack
from scrapy_bloom.filter.lifecycle import Lifecycle
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.steps import carry_out
from scrapy_bloom.filter.stored import StoredFilter
from scrapy_bloom.storage import keys
from scrapy_bloom.storage.base import Store
from scrapy_bloom.storage.fields import RestoreFields


class FillingPlace:
    """The filter of these parameters that an import fills at `key`."""

    def __init__(self, key: str, parameters: FilterParameters, store: Store) -> None:
        self.key = key
        self._parameters = parameters
        self._store = store

    def read(self) -> StoredFilter | None:
        """Return what is stored there, or None."""
        return carry_out(stored.read(self.key), self._store.execute)

    def begun(self) -> tuple[StoredFilter, ImportState] | None:
        """Return the filter and the state of its import, or None.

        One without a state is what is left of an import that was taken over: it is thrown away.

        Raises:
            WrongTypeError: it is somebody's filter.
        """
        found = self.read()
        if found is None:
            return None
        state = refusals.state_of(found)
        if state is None:
            self.throw_away()
            return None
        return found, state

    def make(self, state: ImportState) -> None:
        """Make the filter where there is none, with the mark and the state of its import from the first moment on."""
        fields = (
            (keys.FILTER_FIELD, self._parameters.to_json()),
            (keys.UNFINISHED_FIELD, refusals.ACTION),
            (keys.IMPORT_FIELD, state.to_json()),
        )
        self._store.execute([RestoreFields(self.key, keys.FILTER_FIELD, fields)])

    def throw_away(self) -> None:
        """Delete the filter."""
        stack = LayerStack(self.key, self._parameters, time.monotonic)
        carry_out(Lifecycle(stack, LoggedEvents(), lambda: None).clear(), self._store.execute)
