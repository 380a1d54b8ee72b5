"""Import the SET of scrapy-redis into a filter while crawls may still add to the SET.

1. Create the filter at the staging key, marked as unfinished, and add a mark to the SET.
2. *Copying*: add all members of the SET to the filter.
3. Swap the SET and the filter in one step. From then on an old worker's addition fails, and the request is lost to its
   crawl. So the swap is skipped if the SET has grown since the copying began, unless the caller demands it.
4. *Checking*: add all members again. Members added after they were copied are new; all others are found.
5. Remove the marks. Until then no worker opens the filter.

The state in the filter's hash lets a later run resume, and names the process that runs the import. When another process
takes over, the first one notices and ends; both have added members of the same SET. A SET that was deleted and created
again lacks the mark: the copy of the old one is deleted, since the new crawl has not met its requests.
"""

import time
from dataclasses import replace
from typing import Any

from scrapy_bloom.cli.importing import import_errors, import_state
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
from scrapy_bloom.cli.importing.passes import SCAN_BATCH, Passes
from scrapy_bloom.errors import BloomError
from scrapy_bloom.filter import stored_filter
from scrapy_bloom.filter.bloom_filter import CrawlFilter
from scrapy_bloom.filter.events import LoggedEvents
from scrapy_bloom.filter.layer_stack import LayerStack
from scrapy_bloom.filter.lifecycle import Lifecycle
from scrapy_bloom.filter.opening import Opening, foreign_string, reject_foreign_key
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.stored_filter import StoredFilter
from scrapy_bloom.storage import filter_keys
from scrapy_bloom.storage.filter_hash import Load, RestoreFields, Snapshot
from scrapy_bloom.storage.operation import Store
from scrapy_bloom.storage.stores import RedisStore, RetryingStore, run_steps


class UnfinishedFilter(CrawlFilter):
    """A `CrawlFilter` that opens an unfinished filter, too."""

    _opens_unfinished = True


class StagingFilter:
    """The filter that an import fills at the staging key."""

    def __init__(self, key: str, parameters: FilterParameters, store: Store) -> None:
        self.key = key
        self._parameters = parameters
        self._store = store

    def read(self) -> StoredFilter | None:
        """Return the stored filter, or None."""
        return run_steps(stored_filter.read(self.key), self._store.execute)

    def load(self) -> tuple[StoredFilter, ImportState] | None:
        """Return the filter and the state of its import, or None; delete the remains of a lost takeover.

        Raises:
            WrongTypeError: the filter is in use.
        """
        found = self.read()
        if found is None:
            return None
        state = import_errors.state_of(found)
        if state is None:
            self.delete()
            return None
        return found, state

    def create(self, state: ImportState) -> None:
        """Create the filter, with its unfinished mark and the state of its import, unless there is one."""
        fields = (
            (filter_keys.FILTER_FIELD, self._parameters.to_json()),
            (filter_keys.UNFINISHED_FIELD, import_errors.ACTION),
            (filter_keys.IMPORT_FIELD, state.to_json()),
        )
        self._store.execute([RestoreFields(self.key, filter_keys.FILTER_FIELD, fields)])

    def delete(self) -> None:
        """Delete the filter."""
        stack = LayerStack(self.key, self._parameters, time.monotonic)
        run_steps(Lifecycle(Opening(stack, LoggedEvents())).clear(), self._store.execute)


class SetImport:
    """One run of an import of the SET at `key`.

    An unreachable server is retried for `retry_timeout` seconds. `tuning` are arguments of `Passes`.
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
        import_errors.require_one_slot(client, self.at)
        self._client = client
        self._retry_timeout = retry_timeout
        self._parameters = parameters
        self._store = RetryingStore(RedisStore(client), retry_timeout)
        self._staging = StagingFilter(self.at.staging, self._parameters, self._store)
        self._scripts = ImportScripts(client, retry_timeout)
        # The size of the SET when the copying began, its growth since, and the seconds spent waiting for additions.
        self._members = self._grown_by = 0
        self._waited = 0.0
        self._passes = Passes(self.at, self._scripts, progress, **tuning)  # type: ignore[arg-type]  # as they are

    def run(self, *, copy_only: bool = False, wait: float | None = 0.0, delete_source: bool = False) -> ImportReport:
        """Begin or resume the import.

        Args:
            copy_only: whether to stop before the swap.
            wait: seconds to wait for additions to the SET before the swap, which growth prevents; None: swap anyway.
            delete_source: whether to delete the SET in the end.

        Returns:
            The report.

        Raises:
            BloomError: there is nothing to import, or the import cannot continue; no member of the SET is lost.
        """
        started = time.monotonic()
        try:
            if self._has_source():
                self._copy()
                if copy_only or not self._swap(wait):
                    return self._report(started, self._passes.state.copied, is_finished=False)
            elif filter_keys.UNFINISHED_FIELD not in self._load(self.at.key).fields:
                return self._recheck(started, delete_source=delete_source)
            members = self._check()
        except import_errors.GoneError:
            self._staging.delete()
            raise
        except import_errors.TakenOverError:
            # The other process swapped the filter away, and this one has created another since.
            found = self._staging.load()
            if found is not None and found[1].owner == self._passes.state.owner:
                self._staging.delete()
            raise
        if delete_source:
            self._scripts.delete(self.at.source_backup)
        return self._report(started, members, deleted_source=delete_source)

    def _has_source(self) -> bool:
        """Return whether the key holds the SET. Raises an error if it holds neither the SET nor an import's filter."""
        kind, backup = self._scripts.kinds(self.at.key, self.at.source_backup)
        if kind == import_state.SET:
            if backup != "none":
                raise import_errors.occupied(self.at, backup)
            return True
        snapshot = self._load(self.at.key)
        reject_foreign_key(self.at.key, snapshot)
        if not snapshot.fields:
            if self._staging.load() is not None:
                raise import_errors.GoneError(self.at)
            raise import_errors.nothing_to_import(self.at, backup)
        import_errors.require_import(self.at, snapshot.fields, backup)
        return False

    def _copy(self) -> None:
        """Take over the import of this SET, or begin one, and copy the remaining members."""
        found = self._staging.load()
        if found is not None and not self._mark(found[1]):
            # The SET was deleted and created again, or the earlier run stopped before it marked the SET.
            self._staging.delete()
            found = None
        if found is None:
            members = self._scripts.scan(self.at.key, START, "", SCAN_BATCH).members
            import_errors.require_fingerprints(self.at.key, [each for each in members if not is_fingerprint(each)])
            self._staging.create(self._passes.state)
            found = self._staging.load()
            if found is None:
                raise import_errors.TakenOverError(self.at.key)
            self._mark(found[1])
        self._take_over(*found)
        self._members = self._load(self.at.key).members
        total = self._members - 1
        import_errors.warn_about_size(self.at.key, total, self._parameters)
        if self._passes.state.phase == COPYING:
            bloom = self._open(UnfinishedFilter, self.at.staging)
            self._passes.copy(bloom, total)
            bloom.close()

    def _mark(self, state: ImportState) -> bool:
        """Add the mark of an import to the SET; return whether it was there."""
        marked = self._scripts.mark(self.at.key, state.mark)
        if isinstance(marked, str):
            raise import_errors.source_gone(self.at, self.at.key, marked)
        return marked

    def _take_over(self, found: StoredFilter, state: ImportState) -> None:
        import_errors.require_same_parameters(found, self._parameters)
        self._passes.take_over(found.key, state)

    def _swap(self, wait: float | None) -> bool:
        """Swap the SET and the filter, also if the filter grows meanwhile; return False if the SET has grown."""
        if wait is not None:
            time.sleep(wait)
            self._waited = wait
        members = None if wait is None else self._members
        before = self._passes.state
        after = replace(before, phase=CHECKING, cursor=START, run="")
        outcome = import_state.CHANGED
        while outcome == import_state.CHANGED:
            staging = self._staging.read()
            if staging is None:
                raise import_errors.TakenOverError(self.at.key)
            outcome = self._scripts.swap(self.at, before, after, staging, members)
        if outcome == import_state.GROWN:
            self._grown_by = self._load(self.at.key).members - self._members
            return False
        if outcome != import_state.SWAPPED:
            raise self._swap_error(outcome)
        self._passes.adopt(after)
        return True

    def _swap_error(self, outcome: str) -> BloomError:
        if outcome == import_state.GONE:
            return import_errors.GoneError(self.at)
        if outcome == import_state.TAKEN_OVER:
            return import_errors.TakenOverError(self.at.key)
        if outcome == import_state.OCCUPIED:
            return import_errors.occupied(self.at, *self._scripts.kinds(self.at.source_backup))
        return foreign_string(outcome)

    def _check(self) -> int:
        """Check every member, let workers open the filter, and return the number of members."""
        found = run_steps(stored_filter.read(self.at.key), self._store.execute)
        state = None if found is None else import_errors.state_of(found)
        if found is None or state is None:
            raise import_errors.TakenOverError(self.at.key)
        self._take_over(found, state)
        bloom = self._open(UnfinishedFilter, self.at.key)
        self._passes.check(bloom, self._load(self.at.source_backup).members)
        bloom.close()
        members = self._load(self.at.source_backup).members
        import_errors.require_count(self.at, members, self._passes.state.checked)
        if not self._scripts.finish(self.at.key, self._passes.state, found.fields[filter_keys.FILTER_FIELD]):
            raise import_errors.TakenOverError(self.at.key)
        return members

    def _recheck(self, started: float, *, delete_source: bool) -> ImportReport:
        """Check every member once more after a finished import: the filter may have been replaced."""
        members = self._load(self.at.source_backup).members
        self._passes.recheck(self._open(CrawlFilter, self.at.key), members)
        import_errors.require_count(self.at, members, self._passes.state.checked)
        if delete_source:
            self._scripts.delete(self.at.source_backup)
        return self._report(started, members, deleted_source=delete_source, was_finished=True)

    def _open(self, kind: type[CrawlFilter], key: str) -> CrawlFilter:
        """Open a filter without a cache, which would hide losses of the server."""
        return kind.with_parameters(
            self._client, key, self._parameters, cache_size=0, retry_timeout=self._retry_timeout
        )

    def _load(self, key: str) -> Snapshot:
        snapshot: Snapshot = self._store.execute([Load(key)])[0]
        return snapshot

    def _report(self, started: float, members: int, **outcome: bool) -> ImportReport:
        state, seconds = self._passes.state, time.monotonic() - started
        is_finished = outcome.get("is_finished", True)
        return ImportReport(
            key=self.at.key,
            source=self.at.source_backup if is_finished else self.at.key,
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
