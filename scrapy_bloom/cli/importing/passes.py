"""The passes of an import over a SET: copy its members, check them, check them again."""

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace

from scrapy_bloom.cli.importing import import_errors, import_state
from scrapy_bloom.cli.importing.import_state import (
    COPIED,
    START,
    Batch,
    ImportKeys,
    ImportScripts,
    ImportState,
    Progress,
    is_mark,
)
from scrapy_bloom.cli.importing.staging import ImportFilter, UnfinishedFilter

# Members per scan and per addition.
SCAN_BATCH = 1000
SAVE_SECONDS = 1.0


class Passes:
    """The passes of one run, each from the cursor of its `state`, which is saved every `save_seconds`."""

    def __init__(
        self,
        at: ImportKeys,
        scripts: ImportScripts,
        progress: Progress,
        *,
        batch: int = SCAN_BATCH,
        save_seconds: float = SAVE_SECONDS,
    ) -> None:
        self.state = ImportState(secrets.token_hex(8))
        self._handled = self._passes = 0
        self._at = at
        self._scripts = scripts
        self._progress = progress
        self._batch = batch
        self._save_seconds = save_seconds
        self._owner = self.state.owner
        self._saved = self.state
        self._saved_at = 0.0

    def rate(self, seconds: float) -> float:
        """Return the members per second of a run; a run that copies and checks handles each member twice."""
        return self._handled / max(1, self._passes) / seconds

    def take_over(self, key: str, found: ImportState) -> None:
        """Take over the import with this state in the hash at `key`.

        Raises:
            TakenOverError: another process was faster.
        """
        self._saved = found
        self._save(key, replace(found, owner=self._owner))

    def adopt(self, state: ImportState) -> None:
        """Adopt the state that the swap has saved."""
        self.state = self._saved = state

    def copy(self, bloom: UnfinishedFilter, total: int) -> None:
        """Add the unread members of the SET to the staging filter."""
        self._begin("copying", total, self.state.copied)
        for batch in self._batches(self._at.key):
            state = replace(self.state, copied=0) if batch.is_first else self.state
            added = state.added + sum(bloom.add_many(batch.members))
            state = replace(state, copied=state.copied + len(batch.members), added=added)
            self._advance(self._at.staging, state, batch)
        self._save(self._at.staging, replace(self.state, phase=COPIED))

    def check(self, bloom: ImportFilter, total: int) -> None:
        """Add the members that came late, and check that the filter has each member of the SET."""
        for batch in self._all_batches(bloom, total):
            are_new = bloom.add_many(batch.members)
            late = [member for member, is_new in zip(batch.members, are_new, strict=True) if is_new]
            if late:
                import_errors.require_all(self._at, bloom.contains_many(late))
            state = self._count_checked(batch)
            self._advance(self._at.key, replace(state, caught_up=state.caught_up + len(late)), batch)
        self._save(self._at.key, self.state)

    def recheck(self, bloom: ImportFilter, total: int) -> None:
        """Check that a filter in use has each member of the SET; add nothing and save no state."""
        for batch in self._all_batches(bloom, total):
            import_errors.require_all(self._at, bloom.contains_many(batch.members))
            self.state = self._count_checked(batch)
            self._count(batch)

    def _begin(self, task: str, total: int, done: int = 0) -> None:
        self._passes += 1
        self._progress.begin(task, total, done)

    def _all_batches(self, bloom: ImportFilter, total: int) -> Iterator[Batch]:
        """Yield all members of the SET, and again from the first on if the filter may have lost some meanwhile.

        An earlier run may have checked members before such a loss: its cursor does not count.
        """
        handled = self._handled
        while True:
            self._begin("checking", total)
            self.state, losses = replace(self.state, cursor=START, run=""), bloom.losses
            for batch in self._batches(self._at.source_backup):
                yield batch
                if bloom.losses != losses:
                    break
            else:
                return
            self._handled = handled
            self._passes -= 1

    def _batches(self, key: str) -> Iterator[Batch]:
        """Yield the members from the cursor on; all of them, if the cursor is of another server run."""
        cursor, run, is_last = self.state.cursor, self.state.run, False
        while not is_last:
            found = self._scripts.scan(key, cursor, run, self._batch)
            if found.kind == import_state.OTHER_RUN:
                cursor = START
                continue
            if found.kind != import_state.SET:
                raise import_errors.source_gone(self._at, key, found.kind)
            members = [member for member in found.members if not is_mark(member)]
            marks = [member for member in found.members if is_mark(member)]
            if marks and key == self._at.source_backup:
                # After the swap no import needs them, and neither do abandoned ones.
                self._scripts.unmark(key, *marks)
            yield found._replace(members=members, is_first=cursor == START)
            cursor, run, is_last = found.cursor, found.run, found.cursor == START

    def _count_checked(self, batch: Batch) -> ImportState:
        state = replace(self.state, checked=0) if batch.is_first else self.state
        return replace(state, checked=state.checked + len(batch.members))

    def _advance(self, key: str, state: ImportState, batch: Batch) -> None:
        """Advance the cursor behind a batch, and save the state now and then."""
        self.state = replace(state, cursor=batch.cursor, run=batch.run)
        self._count(batch)
        if time.monotonic() - self._saved_at >= self._save_seconds:
            self._save(key, self.state)

    def _count(self, batch: Batch) -> None:
        self._handled += len(batch.members)
        self._progress.advance(len(batch.members))

    def _save(self, key: str, state: ImportState) -> None:
        if not self._scripts.save(key, self._saved, state):
            raise import_errors.TakenOverError(self._at.key)
        self.state = self._saved = state
        self._saved_at = time.monotonic()
