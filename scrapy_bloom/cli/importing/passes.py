"""The passes of an import over a SET: adding its members, and seeing that all are there."""

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace

from scrapy_bloom.cli.importing import import_errors
from scrapy_bloom.cli.importing import import_state as sources
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
from scrapy_bloom.filter.bloom_filter import BloomFilter

# Members that are read at once, and added in one batch.
BATCH = 1000
SAVE_SECONDS = 1.0


class Passes:
    """One run's passes over a SET, from where its `state` says. The state is saved every `save_seconds`."""

    def __init__(
        self,
        at: ImportKeys,
        scripts: ImportScripts,
        progress: Progress,
        *,
        batch: int = BATCH,
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
        """Return the members a second of a run that took so long; one that copies and checks handles each twice."""
        return self._handled / max(1, self._passes) / seconds

    def take_over(self, key: str, found: ImportState) -> None:
        """Go on with an import that has this state, in the hash at `key`.

        Raises:
            TakenOverError: another process has done so meanwhile.
        """
        self._saved = found
        self._save(key, replace(found, owner=self._owner))

    def note_moved(self, state: ImportState) -> None:
        """Take over the state that was saved when the filter took its key."""
        self.state = self._saved = state

    def copy(self, bloom: BloomFilter, total: int) -> None:
        """Add the members of the SET that were not read yet to the filter that is being filled."""
        self._begin("copying", total, self.state.copied)
        for batch in self._batches(self._at.key):
            state = replace(self.state, copied=0) if batch.is_first else self.state
            added = state.added + sum(bloom.add_many(batch.members))
            self._go_on(self._at.filling, replace(state, copied=state.copied + len(batch.members), added=added), batch)
        self._save(self._at.filling, replace(self.state, phase=COPIED))

    def check(self, bloom: BloomFilter, total: int) -> None:
        """Add the members that came late, and see that each one of the SET is in the filter."""
        self._begin("checking", total, self.state.checked)
        for batch in self._batches(self._at.aside):
            answers = bloom.add_many(batch.members)
            late = [member for member, is_new in zip(batch.members, answers, strict=True) if is_new]
            if late:
                import_errors.require_all(self._at, bloom.contains_many(late))
            state = self._checked(batch)
            self._go_on(self._at.key, replace(state, caught_up=state.caught_up + len(late)), batch)
        self._save(self._at.key, self.state)

    def look(self, bloom: BloomFilter, total: int) -> None:
        """See that each member of the SET is in a filter that is in use; nothing is added, and no state is saved."""
        self._begin("checking", total)
        for batch in self._batches(self._at.aside):
            import_errors.require_all(self._at, bloom.contains_many(batch.members))
            self.state = self._checked(batch)
            self._count(batch)

    def _begin(self, task: str, total: int, done: int = 0) -> None:
        self._passes += 1
        self._progress.begin(task, total, done)

    def _batches(self, key: str) -> Iterator[Batch]:
        """Yield the members that follow; all of them where the server is another one than that of the cursor."""
        cursor, run, is_over = self.state.cursor, self.state.run, False
        while not is_over:
            found = self._scripts.scan(key, cursor, run, self._batch)
            if found.kind == sources.OTHER_RUN:
                cursor = START
                continue
            if found.kind != sources.SET:
                raise import_errors.gone_while_read(self._at, key, found.kind)
            members = [member for member in found.members if not is_mark(member)]
            marks = [member for member in found.members if is_mark(member)]
            if marks and key == self._at.aside:
                # Nobody needs them any more: those of imports that were dropped, too.
                self._scripts.unmark(key, *marks)
            yield found._replace(members=members, is_first=cursor == START)
            cursor, run, is_over = found.cursor, found.run, found.cursor == START

    def _checked(self, batch: Batch) -> ImportState:
        state = replace(self.state, checked=0) if batch.is_first else self.state
        return replace(state, checked=state.checked + len(batch.members))

    def _go_on(self, key: str, state: ImportState, batch: Batch) -> None:
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
