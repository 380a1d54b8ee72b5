"""The import of a SET that scrapy-redis left, while crawlers may still add to it.

1. The filter is made at a key of its own, with the mark that it is not complete. The SET gets a mark too.
2. *Copying*: all that the SET has is added to it.
3. The SET and the filter change places in one step. Nothing can be added to the SET any more: a worker that tries gets
   an error, and loses the request. So this step is not taken if the SET has grown since the copying began, unless the
   caller asks for it. No worker opens the filter yet.
4. *Checking*: all of the SET is added once more. What came after it was copied is new then; all else is found.
5. The marks go, and workers may open the filter.

A run that was ended goes on where the state says, which stands in the filter's hash. The state names the process that
has the import. Another that takes it over is known by that, and the first one ends. What both have added until then are
members of the same SET. A SET that was deleted and begun anew has no mark. What was copied of the old one is thrown
away then: the new crawl has not met it.
"""

import time
from dataclasses import replace
from typing import Any

from scrapy_bloom.cli.importing import import_errors
from scrapy_bloom.cli.importing import import_state as sources
from scrapy_bloom.cli.importing.import_state import (
    CHECKING,
    COPYING,
    START,
    ImportKeys,
    ImportReport,
    ImportScripts,
    ImportState,
    Progress,
    is_fingerprint,
)
from scrapy_bloom.cli.importing.passes import Passes
from scrapy_bloom.errors import BloomError
from scrapy_bloom.filter import stored_filter
from scrapy_bloom.filter.bloom_filter import CrawlFilter
from scrapy_bloom.filter.events import LoggedEvents
from scrapy_bloom.filter.layer_stack import LayerStack
from scrapy_bloom.filter.opening import foreign_string, reject_foreign_key
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.protocol import FilterProtocol
from scrapy_bloom.filter.stored_filter import StoredFilter
from scrapy_bloom.storage import filter_keys
from scrapy_bloom.storage.filter_hash import Load, RestoreFields, Snapshot
from scrapy_bloom.storage.operation import Store, run_steps
from scrapy_bloom.storage.stores import RedisStore, RetryingStore


class UnfinishedFilter(CrawlFilter):
    """A `CrawlFilter` for whoever fills it, with the mark that it is not complete, or without."""

    _opens_unfinished = True


class StagingFilter:
    """The filter of these parameters that an import fills at `key`."""

    def __init__(self, key: str, parameters: FilterParameters, store: Store) -> None:
        self.key = key
        self._parameters = parameters
        self._store = store

    def read(self) -> StoredFilter | None:
        """Return what is stored there, or None."""
        return run_steps(stored_filter.read(self.key), self._store.execute)

    def begun(self) -> tuple[StoredFilter, ImportState] | None:
        """Return the filter and the state of its import, or None.

        One without a state is what is left of an import that was taken over: it is thrown away.

        Raises:
            WrongTypeError: it is somebody's filter.
        """
        found = self.read()
        if found is None:
            return None
        state = import_errors.state_of(found)
        if state is None:
            self.throw_away()
            return None
        return found, state

    def make(self, state: ImportState) -> None:
        """Make the filter where there is none, with the mark and the state of its import from the first moment on."""
        fields = (
            (filter_keys.FILTER_FIELD, self._parameters.to_json()),
            (filter_keys.UNFINISHED_FIELD, import_errors.ACTION),
            (filter_keys.IMPORT_FIELD, state.to_json()),
        )
        self._store.execute([RestoreFields(self.key, filter_keys.FILTER_FIELD, fields)])

    def throw_away(self) -> None:
        """Delete the filter."""
        stack = LayerStack(self.key, self._parameters, time.monotonic)
        run_steps(FilterProtocol(stack, LoggedEvents()).lifecycle.clear(), self._store.execute)


_FIRST_MEMBERS = 1000


class SetImport:
    """One run of an import into the filter at `key`, which has these parameters.

    A server that goes away is waited for `retry_timeout` seconds. `tuning` are arguments of `Passes`.
    """

    def __init__(
        self,
        client: Any,
        key: str,
        parameters: FilterParameters,
        progress: Progress,
        *,
        retry_timeout: float,
        **tuning: float,
    ) -> None:
        self.at = ImportKeys.of(key)
        import_errors.refuse_other_slots(client, self.at)
        self._client = client
        self._retry_timeout = retry_timeout
        self._parameters = parameters
        self._store = RetryingStore(RedisStore(client), retry_timeout)
        self._filling = StagingFilter(self.at.filling, self._parameters, self._store)
        self._scripts = ImportScripts(client, retry_timeout)
        # The members of the SET as the copying begins, and the seconds in which nothing is done but wait.
        self._members = self._grown_by = 0
        self._waited = 0.0
        self._passes = Passes(self.at, self._scripts, progress, **tuning)  # type: ignore[arg-type]  # as they are

    def run(self, *, copy_only: bool = False, wait: float | None = 0.0, delete_source: bool = False) -> ImportReport:
        """Begin the import, or go on with it, and return its report.

        With `copy_only` it ends before the SET and the filter change places. It ends there, too, if the SET grows while
        it is copied or in the `wait` seconds after that. With None for `wait` they change places in any case.

        Raises:
            BloomError: there is nothing to import, or the import cannot go on; nothing is lost of the SET.
        """
        began = time.monotonic()
        try:
            if self._is_to_be_copied():
                self._copy()
                if copy_only or not self._change_places(wait):
                    return self._report(began, self._passes.state.copied, is_finished=False)
            elif filter_keys.UNFINISHED_FIELD not in self._load(self.at.key).fields:
                return self._look_again(began, delete_source=delete_source)
            members = self._check()
        except import_errors.GoneError:
            self._filling.throw_away()
            raise
        except import_errors.TakenOverError:
            # What this one has made where the other had moved the filter away.
            found = self._filling.begun()
            if found is not None and found[1].owner == self._passes.state.owner:
                self._filling.throw_away()
            raise
        if delete_source:
            self._scripts.delete(self.at.aside)
        return self._report(began, members, deleted_source=delete_source)

    def _is_to_be_copied(self) -> bool:
        """Return whether the SET is at its key; refuse what is no SET and no import."""
        kind, aside = self._scripts.kinds(self.at.key, self.at.aside)
        if kind == sources.SET:
            if aside != "none":
                raise import_errors.occupied(self.at, aside)
            return True
        snapshot = self._load(self.at.key)
        reject_foreign_key(self.at.key, snapshot)
        if not snapshot.fields:
            if self._filling.begun() is not None:
                raise import_errors.GoneError(self.at)
            raise import_errors.nothing(self.at, aside)
        import_errors.refuse_filter(self.at, snapshot.fields, aside)
        return False

    def _copy(self) -> None:
        """Take over the import that was begun of this SET, or begin one, and copy what is left."""
        found = self._filling.begun()
        if found is not None and not self._mark(found[1]):
            # It was deleted and begun anew, or this is where the run was ended that had just made the filter.
            self._filling.throw_away()
            found = None
        if found is None:
            self._require_fingerprints()
            self._filling.make(self._passes.state)
            found = self._filling.begun()
            if found is None:
                raise import_errors.TakenOverError(self.at.key)
            self._mark(found[1])
        self._take_over(*found)
        self._members = self._load(self.at.key).members
        total = self._members - 1
        import_errors.warn_of_size(self.at.key, total, self._parameters)
        if self._passes.state.phase == COPYING:
            bloom = self._open(UnfinishedFilter, self.at.filling)
            self._passes.copy(bloom, total)
            bloom.close()

    def _mark(self, state: ImportState) -> bool:
        """Put the mark of an import into the SET, and return whether it was there."""
        marked = self._scripts.mark(self.at.key, state.mark)
        if isinstance(marked, str):
            raise import_errors.gone_while_read(self.at, self.at.key, marked)
        return marked

    def _take_over(self, found: StoredFilter, state: ImportState) -> None:
        import_errors.refuse_other_parameters(found, self._parameters)
        self._passes.take_over(found.key, state)

    def _change_places(self, wait: float | None) -> bool:
        """Give the filter the key of the SET, however often the filter changes meanwhile; not if the SET has grown."""
        if wait is not None:
            time.sleep(wait)
            self._waited = wait
        members = None if wait is None else self._members
        before = self._passes.state
        after = replace(before, phase=CHECKING, cursor=START, run="")
        outcome = sources.CHANGED
        while outcome == sources.CHANGED:
            filling = self._filling.read()
            if filling is None:
                raise import_errors.TakenOverError(self.at.key)
            outcome = self._scripts.swap(self.at, before, after, filling, members)
        if outcome == sources.GROWN:
            self._grown_by = self._load(self.at.key).members - self._members
            return False
        if outcome != sources.MOVED:
            raise self._unmoved(outcome)
        self._passes.note_moved(after)
        return True

    def _unmoved(self, outcome: str) -> BloomError:
        """Return the error of a filter that could not take its key."""
        if outcome == sources.GONE:
            return import_errors.GoneError(self.at)
        if outcome == sources.TAKEN:
            return import_errors.TakenOverError(self.at.key)
        if outcome == sources.OCCUPIED:
            return import_errors.occupied(self.at, *self._scripts.kinds(self.at.aside))
        return foreign_string(outcome)

    def _check(self) -> int:
        """Check every member, let workers open the filter, and return how many members there are."""
        found = self._read(self.at.key)
        state = None if found is None else import_errors.state_of(found)
        if found is None or state is None:
            raise import_errors.TakenOverError(self.at.key)
        self._take_over(found, state)
        bloom = self._open(UnfinishedFilter, self.at.key)
        self._passes.check(bloom, self._load(self.at.aside).members)
        bloom.close()
        members = self._load(self.at.aside).members
        import_errors.require_count(self.at, members, self._passes.state.checked)
        if not self._scripts.finish(self.at.key, self._passes.state, found.fields[filter_keys.FILTER_FIELD]):
            raise import_errors.TakenOverError(self.at.key)
        return members

    def _look_again(self, began: float, *, delete_source: bool) -> ImportReport:
        """Look for every member once more: the filter may be another one by now."""
        members = self._load(self.at.aside).members
        self._passes.look(self._open(CrawlFilter, self.at.key), members)
        import_errors.require_count(self.at, members, self._passes.state.checked)
        if delete_source:
            self._scripts.delete(self.at.aside)
        return self._report(began, members, deleted_source=delete_source, was_finished=True)

    def _require_fingerprints(self) -> None:
        """Refuse a SET that is no dupefilter's, by the members that are met first."""
        members = self._scripts.scan(self.at.key, START, "", _FIRST_MEMBERS).members
        others = [each for each in members if not is_fingerprint(each)]
        import_errors.require_fingerprints(self.at.key, others)

    def _open(self, kind: type[CrawlFilter], key: str) -> CrawlFilter:
        """Open a filter that looks everything up: a cache would hide what the server has lost."""
        return kind.with_parameters(
            self._client, key, self._parameters, cache_size=0, retry_timeout=self._retry_timeout
        )

    def _load(self, key: str) -> Snapshot:
        snapshot: Snapshot = self._store.execute([Load(key)])[0]
        return snapshot

    def _read(self, key: str) -> StoredFilter | None:
        return run_steps(stored_filter.read(key), self._store.execute)

    def _report(self, began: float, members: int, **outcome: bool) -> ImportReport:
        state, seconds = self._passes.state, time.monotonic() - began
        is_finished = outcome.get("is_finished", True)
        return ImportReport(
            key=self.at.key,
            source=self.at.aside if is_finished else self.at.key,
            members=members,
            added=state.added,
            already_known=max(0, members - state.added - state.caught_up),
            caught_up=state.caught_up,
            checked=state.checked,
            seconds=round(seconds, 3),
            members_a_second=round(self._passes.rate(seconds - self._waited), 1),
            added_meanwhile=self._grown_by,
            **outcome,
        )
