"""The spool file of undelivered requests: a header and JSON lines, locked by one process."""

import base64
import json
import logging
import math
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scrapy_bloom._format import as_bytes, plural
from scrapy_bloom.queue.entries import OutboxEntry

FORMAT = 1
# Fails if the file exists: another user could have created it, to read along.
NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW

logger = logging.getLogger(__name__)


class SpoolFile:
    """Entries on disk, appended at the end and read from the start.

    `SpoolDirectory` creates and claims the files. `len()` is the number of unread entries that this process appended.
    After a crash, a later start claims the file and reads from the first undelivered entry.
    """

    def __init__(self, path: Path, descriptor: int, queue: str, start: int) -> None:
        self.path = path
        self._queue = queue
        self._descriptor = descriptor
        self._reader = os.fdopen(descriptor, "rb")
        self._read_to = self._delivered_to = start
        self._end = os.fstat(descriptor).st_size
        self._waiting = 0
        self._is_kept = False
        self._unsure: set[bytes] = set()
        self._unreadable = 0
        self._unreadable_path: Path | None = None

    def __len__(self) -> int:
        return self._waiting

    def append(self, entries: Iterable[OutboxEntry]) -> None:
        """Write entries to the operating system's cache: all of them, or none and raise OSError."""
        lines = [_as_line(entry) for entry in entries]
        try:
            write(self._descriptor, b"".join(lines), self._end)
        except OSError:
            os.ftruncate(self._descriptor, self._end)
            raise
        self._end += sum(map(len, lines))
        self._waiting += len(lines)

    def read(self, count: int) -> list[OutboxEntry]:
        """Return up to `count` entries, none at the end of the file; unreadable lines go to a file of their own.

        An entry is skipped if an unsure one with the same fingerprint precedes it: the filter calls both new, and a
        link of many pages would be fetched as often.
        """
        entries: list[OutboxEntry] = []
        unreadable: list[bytes] = []
        self._reader.seek(self._read_to)
        while len(entries) < count and (line := self._reader.readline()):
            self._read_to += len(line)
            self._waiting = max(self._waiting - 1, 0)
            try:
                entry = _from_line(line)
            except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
                unreadable.append(line.removesuffix(b"\n") + b"\n")
            else:
                entries += self._unless_repeated(entry)
        if unreadable:
            self._keep_unreadable(unreadable)
        return entries

    def _unless_repeated(self, entry: OutboxEntry) -> list[OutboxEntry]:
        if entry.fingerprint is None:
            return [entry]
        is_repeated = entry.fingerprint in self._unsure
        if entry.is_unsure:
            self._unsure.add(entry.fingerprint)
        return [] if is_repeated else [entry]

    def mark_delivered(self) -> None:
        """Store in the header that all entries read so far are delivered: a later start skips them."""
        if not self._is_kept:
            write(self._descriptor, header(self._queue, self._read_to), 0)
            self._delivered_to = self._read_to

    def sync(self) -> None:
        """Wait until the file is on disk."""
        os.fsync(self._descriptor)

    def close(self, *, delete: bool = False) -> None:
        """Unlock the file for a later start; delete it if everything is delivered, or on request."""
        if self._unreadable:
            place = self._unreadable_path or "place, since no file could be created beside it"
            lines = plural(self._unreadable, "line")
            logger.error("%s: %s cannot be read; kept in %s", self.path, lines, place)
        try:
            if delete or self._delivered_to == self._end:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s is delivered but cannot be deleted: %s", self.path, error.strerror)
        finally:
            self._reader.close()

    def _keep_unreadable(self, lines: list[bytes]) -> None:
        """Write lines to a file beside this one, to be repaired and renamed; if that fails, keep this file."""
        self._unreadable += len(lines)
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
        try:
            if self._unreadable_path is None:
                path = self.path.with_suffix(f".{secrets.token_hex(4)}.unreadable")
                descriptor = os.open(path, flags | NEW_FILE, mode=0o600)
                self._unreadable_path = path
                lines = [header(self._queue), *lines]
            else:
                descriptor = os.open(self._unreadable_path, flags)
            with os.fdopen(descriptor, "ab") as file:
                file.writelines(lines)
        except OSError:
            self._is_kept = True


def header(queue: str, start: int = 0) -> bytes:
    """Return a file's first line. `start` is the position of the first undelivered entry, in a fixed width."""
    return f'{{"format": {FORMAT}, "queue": {json.dumps(queue)}, "start": {start:>20}}}\n'.encode()


def write(descriptor: int, data: bytes, position: int) -> None:
    """Write all data at a position of a file."""
    while data:
        written = os.pwrite(descriptor, data, position)
        data, position = data[written:], position + written


def _as_line(entry: OutboxEntry) -> bytes:
    """Return an entry as JSON; the bytes of a fingerprint are Latin-1."""
    line = {
        "request": base64.b64encode(as_bytes(entry.member)).decode(),
        "score": entry.score,
        "fingerprint": None if entry.fingerprint is None else entry.fingerprint.decode("latin-1"),
        "unsure": entry.is_unsure,
    }
    return json.dumps(line).encode() + b"\n"


def _from_line(line: bytes) -> OutboxEntry:
    """Return the entry of a line; an invalid line raises any of the errors that `read` catches."""
    fields: dict[str, Any] = json.loads(line)
    score, text = fields["score"], fields["fingerprint"]
    if not math.isfinite(score):
        raise ValueError(f"score = {score}")
    member = base64.b64decode(fields["request"], validate=True)
    # Earlier versions did not store it.
    is_unsure = fields.get("unsure") is not False
    return OutboxEntry(member, score, None if text is None else bytes(text, "latin-1"), is_unsure)
