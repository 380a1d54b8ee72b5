"""A file of requests that wait for Redis: a header and JSON lines, which one process at a time holds."""

import base64
import json
import logging
import math
import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scrapy_bloom._format import as_bytes
from scrapy_bloom.queue.entries import OutboxEntry

FORMAT = 1
# Nobody else can have made it before, to read along.
NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW

logger = logging.getLogger(__name__)


class SpoolFile:
    """Entries on the disk, appended at the end and read from the start; its length is what was not read yet.

    `SpoolDirectory` creates and finds the files. The length counts the entries that this process appended. A
    later start claims the file of a killed process, and reads from the first undelivered entry.
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
        self._aside: Path | None = None
        self._unreadable = 0

    def __len__(self) -> int:
        return self._waiting

    def append(self, entries: Iterable[OutboxEntry]) -> None:
        """Hand entries over to the operating system: all of them, or none, and then it raises an OSError."""
        lines = [_as_line(entry) for entry in entries]
        try:
            write(self._descriptor, b"".join(lines), self._end)
        except OSError:
            os.ftruncate(self._descriptor, self._end)
            raise
        self._end += sum(map(len, lines))
        self._waiting += len(lines)

    def read(self, count: int) -> list[OutboxEntry]:
        """Return the next entries, at most `count`, or none: there are no more. Unreadable lines are set aside.

        An entry is skipped if an unsure one before it had the same fingerprint. Of two unsure entries the filter calls
        each new: a link that many pages have would be fetched as often.
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
            self._set_aside(unreadable)
        return entries

    def _unless_repeated(self, entry: OutboxEntry) -> list[OutboxEntry]:
        if entry.fingerprint is None:
            return [entry]
        is_repeated = entry.fingerprint in self._unsure
        if entry.is_unsure:
            self._unsure.add(entry.fingerprint)
        return [] if is_repeated else [entry]

    def mark_delivered(self) -> None:
        """Note that Redis has all that was read so far: whoever claims the file begins behind it."""
        if not self._is_kept:
            write(self._descriptor, header(self._queue, self._read_to), 0)
            self._delivered_to = self._read_to

    def sync(self) -> None:
        """Wait until the file is on the disk."""
        os.fsync(self._descriptor)

    def close(self, *, delete: bool = False) -> None:
        """Leave the file to whoever claims it, or delete it: all of it is delivered, or it is asked for."""
        if self._unreadable:
            place = self._aside or "left in it, since no file could be made beside it"
            logger.error("%d lines of %s cannot be read; they are kept: %s", self._unreadable, self.path, place)
        try:
            if delete or self._delivered_to == self._end:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s is delivered, and cannot be deleted: %s", self.path, error.strerror)
        finally:
            self._reader.close()

    def _set_aside(self, lines: list[bytes]) -> None:
        """Write lines to a file beside this one, which is loaded when it is mended and renamed; else keep this one."""
        self._unreadable += len(lines)
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
        try:
            if self._aside is None:
                path = self.path.with_suffix(f".{secrets.token_hex(4)}.unreadable")
                descriptor = os.open(path, flags | NEW_FILE, mode=0o600)
                self._aside = path
                lines = [header(self._queue), *lines]
            else:
                descriptor = os.open(self._aside, flags)
            with os.fdopen(descriptor, "ab") as file:
                file.writelines(lines)
        except OSError:
            self._is_kept = True


def header(queue: str, start: int = 0) -> bytes:
    """Return the first line of a file, which is as long for every `start`: the byte where undelivered entries begin."""
    return f'{{"format": {FORMAT}, "queue": {json.dumps(queue)}, "start": {start:>20}}}\n'.encode()


def write(descriptor: int, data: bytes, place: int) -> None:
    """Write all of the data at a place of a file."""
    while data:
        written = os.pwrite(descriptor, data, place)
        data, place = data[written:], place + written


def _as_line(entry: OutboxEntry) -> bytes:
    """Return what stands in the file; bytes that are no text have one character each."""
    line = {
        "request": base64.b64encode(as_bytes(entry.member)).decode(),
        "score": entry.score,
        "fingerprint": None if entry.fingerprint is None else entry.fingerprint.decode("latin-1"),
        "unsure": entry.is_unsure,
    }
    return json.dumps(line).encode() + b"\n"


def _from_line(line: bytes) -> OutboxEntry:
    """Return the entry, or raise one of the errors that such a line may lead to."""
    fields: dict[str, Any] = json.loads(line)
    score, text = fields["score"], fields["fingerprint"]
    if not math.isfinite(score):
        raise ValueError(f"score = {score}")
    member = base64.b64decode(fields["request"], validate=True)
    # A line of an earlier version does not say.
    is_unsure = fields.get("unsure") is not False
    return OutboxEntry(member, score, None if text is None else bytes(text, "latin-1"), is_unsure)
