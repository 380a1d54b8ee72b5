"""Import the SET of scrapy-redis into a filter while crawls may still add to the SET.

1. Create the filter's hash at the staging key, marked as unfinished, and add a mark to the SET.
2. *Copying*: add all members of the SET to the filter. Its shards have their final keys, since no filter is in use
   while a SET is at the key. So it prepares strings of its next layer, as any filter does.
3. Swap the SET and the hash in one step. From then on an old worker's addition fails, and the request is lost to its
   crawl. So the swap is skipped if the SET has grown since the copying began, unless the caller demands it. The
   three keys are in one slot; a cluster may have the shards on any of its nodes.
4. *Checking*: add all members again. Members added after they were copied are new; all others are found. After a loss
   of data, as by a failover, the check begins again.
5. Remove the marks. Until then no worker opens the filter.

If the SET is deleted meanwhile, a new crawl may create a filter at the key, whose shards have the same keys. A shard
belongs to the filter with its epoch. The import deletes shards of its own epoch only. It replaces shards of another
epoch only if it has seen them before it saw the SET, or its own filter, at the key. Additions in flight may leave
random bits in a shard of the new filter: one batch at most.

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
from scrapy_bloom.cli.importing.staging import ImportFilter, ImportFilterT, StagingFilter, UnfinishedFilter
from scrapy_bloom.errors import BloomError
from scrapy_bloom.filter import stored_filter
from scrapy_bloom.filter.opening import ReplacedError, reject_foreign_key
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.placement import Placement
from scrapy_bloom.filter.stored_filter import StoredFilter
from scrapy_bloom.storage import filter_keys
from scrapy_bloom.storage.filter_hash import Load, Snapshot
from scrapy_bloom.storage.stores import RedisStore, RetryingStore, run_steps


class SetImport:
    """One run of an import of the SET at `key`.

    An unreachable server is retried for `retry_timeout` seconds. `shard_bytes` is BLOOMFILTER_SHARD_BYTES. `tuning` are
    arguments of `Passes`.
    """

    def __init__(
        self,
        client: Any,
        key: str,
        parameters: FilterParameters,
        progress: Progress,
        *,
        retry_timeout: float,
        shard_bytes: int | None = None,
        **tuning: float,
    ) -> None:
        self.at = ImportKeys.of(key)
        import_errors.require_one_slot(client, self.at)
        self._client = client
        self._options = {"retry_timeout": retry_timeout, "shard_bytes": shard_bytes}
        self._parameters = parameters
        self._store = RetryingStore(RedisStore(client), retry_timeout)
        self._staging = StagingFilter(self.at, parameters, self._store, Placement.on(client, key, shard_bytes))
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
        except (import_errors.GoneError, import_errors.TakenOverError, ReplacedError) as error:
            raise self._abandon(error) from None
        if delete_source:
            self._scripts.delete(self.at.source_backup)
        return self._report(started, members, deleted_source=delete_source)

    def _abandon(self, error: BloomError) -> BloomError:
        """Delete the staging filter if no other process continues with it; return the error for the user."""
        (kind,) = self._scripts.kinds(self.at.key)
        found = self._staging.load()
        if found is not None and (kind == "none" or found[1].owner == self._passes.state.owner):
            self._staging.delete()
        if not isinstance(error, ReplacedError):
            return error
        if kind == "none" and self._passes.state.phase != CHECKING:
            return import_errors.GoneError(self.at)
        return import_errors.TakenOverError(self.at.key)

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
        import_errors.warn_about_size(self.at, total, self._parameters)
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
        """Swap the SET and the filter; return False if the SET has grown."""
        if wait is not None:
            time.sleep(wait)
            self._waited = wait
        members = None if wait is None else self._members
        before = self._passes.state
        after = replace(before, phase=CHECKING, cursor=START, run="")
        outcome = self._scripts.swap(self.at, before, after, members)
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
        return import_errors.occupied(self.at, *self._scripts.kinds(self.at.source_backup))

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
        self._passes.recheck(self._open(ImportFilter, self.at.key), members)
        import_errors.require_count(self.at, members, self._passes.state.checked)
        if delete_source:
            self._scripts.delete(self.at.source_backup)
        return self._report(started, members, deleted_source=delete_source, was_finished=True)

    def _open(self, kind: type[ImportFilterT], key: str) -> ImportFilterT:
        return kind(self._client, key, self._parameters, **self._options)

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
