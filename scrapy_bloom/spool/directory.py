"""Spool files for undelivered requests: location, ownership, locking."""

import contextlib
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Collection, Generator
from pathlib import Path
from typing import TypeVar

from scrapy_bloom._format import plural
from scrapy_bloom._runtime import RUNTIME, TUNING, Runtime
from scrapy_bloom.queue.entries import OutboxEntry
from scrapy_bloom.spool.file import FORMAT, NEW_FILE, SpoolFile, header, write

_MAX_HEADER_BYTES = 65_536
_IF_TRUSTED = "if you trust it, make it private to you (chown and chmod 600), else delete it"
_IF_NEWER = "if a newer scrapy-bloom wrote it, upgrade here, else delete it"

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SpoolDirectory:
    """The spool files of one queue, in `directory` or, if that is not writable, in the temporary directory.

    Requests may be pickled, and loading a pickle runs code. So each file is private to its user, and a file that
    another user could have written is not read.
    """

    def __init__(self, key: str, directory: str | Path | None = None, runtime: Runtime = RUNTIME) -> None:
        self._token_hex = runtime.token_hex
        self._key = key
        self._stem = "undelivered-" + re.sub(r"[^\w.-]", "_", key, flags=re.ASCII)[:100]
        places = [directory or "."]
        with contextlib.suppress(FileNotFoundError):  # no temporary directory is writable
            places.append(runtime.temporary_directory())
        self._places = list(dict.fromkeys(Path(place).absolute() for place in places))

    def save(self, entries: Collection[OutboxEntry]) -> Path:
        """Write entries to a new file, and return its path once they are on disk.

        Raises:
            OSError: no directory is writable; the text has the number of lost requests.
        """
        lost = f"{plural(len(entries), 'request')} lost"
        return self._in_first_place(lambda path: self._save_at(path, entries), lost)

    def create(self) -> SpoolFile:
        """Create a file to append to, locked until it is closed.

        Raises:
            OSError: no directory is writable.
        """
        return self._in_first_place(self._create, "requests cannot be buffered on disk")

    def load(self, batch: int = TUNING.spool_batch) -> Generator[tuple[Path, list[OutboxEntry]], None, None]:
        """Yield the entries of all unlocked files in batches, each with the path of its file.

        A batch counts as delivered when the next one is requested, and a file is deleted after its last batch. If the
        next one is never requested, the next start repeats the batch.
        """
        pattern = f"{self._stem}-*.jsonl"
        for path in [path for place in self._places for path in sorted(place.glob(pattern))]:
            for entries in self.load_file(path, batch):
                yield path, entries

    def load_file(self, path: Path, batch: int = TUNING.spool_batch) -> Generator[list[OutboxEntry], None, None]:
        """Yield the entries of one file, as `load` does."""
        file = self._claim(path)
        if file is not None:
            with contextlib.closing(file):
                while entries := file.read(batch):
                    yield entries
                    file.mark_delivered()
                file.mark_delivered()

    def _in_first_place(self, make: Callable[[Path], T], consequence: str) -> T:
        """Call `make` with a new path in the first writable directory."""
        causes = []
        for place in self._places:
            try:
                return make(place / f"{self._stem}-{self._token_hex(8)}.jsonl")
            except OSError as error:
                causes.append(f"{place} ({error.strerror or error})")
        raise OSError(f"{consequence}: no file can be written in {' or in '.join(causes)}; free some space there")

    def _save_at(self, path: Path, entries: Collection[OutboxEntry]) -> Path:
        with contextlib.closing(self._create(path)) as file:
            try:
                file.append(entries)
                file.sync()
            except OSError:
                file.close(delete=True)
                raise
        return path

    def _create(self, path: Path) -> SpoolFile:
        """Create a file, which gets its name once it is locked and has its header."""
        unfinished = path.with_suffix(".part")
        descriptor = os.open(unfinished, os.O_RDWR | NEW_FILE, mode=0o600)
        try:
            _lock(descriptor)
            write(descriptor, header(self._key), 0)
            unfinished.rename(path)
        except BaseException:
            os.close(descriptor)
            unfinished.unlink(missing_ok=True)
            raise
        return SpoolFile(path, descriptor, self._key, len(header(self._key)))

    def _claim(self, path: Path) -> SpoolFile | None:
        """Lock an existing file; return None if another worker holds it, or this queue may not read it."""
        with contextlib.ExitStack() as unless_claimed:
            try:
                # O_NONBLOCK: opening a pipe would wait for its writer.
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
                unless_claimed.callback(os.close, descriptor)
                _lock(descriptor)
                _require_trusted(os.fstat(descriptor))
                start = self._start_of(descriptor)
            except (BlockingIOError, FileNotFoundError, LookupError):
                return None
            except (OSError, ValueError) as error:
                if isinstance(error, OSError):
                    cause, advice = f"cannot be opened ({error.strerror})", _IF_TRUSTED
                else:
                    cause, advice = error.args
                logger.warning("%s %s: its requests are not queued; %s", path, cause, advice)
                return None
            unless_claimed.pop_all()
            return SpoolFile(path, descriptor, self._key, start)

    def _start_of(self, descriptor: int) -> int:
        """Return the position of the first undelivered entry; raise LookupError for a file of another queue."""
        first, end, _ = os.pread(descriptor, _MAX_HEADER_BYTES, 0).partition(b"\n")
        fields = {}
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            fields = dict(json.loads(first))
        if fields.get("queue", self._key) != self._key:
            raise LookupError
        start = fields.get("start")
        if not isinstance(start, int) or first + end != header(self._key, start):
            raise ValueError(f"has no header of format {FORMAT}", _IF_NEWER)
        return max(start, len(first + end))


def queue_in(path: Path) -> str:
    """Return the queue named in a file's header.

    Raises:
        ValueError: the file is not a spool file.
        OSError: the file cannot be read.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file")
    with path.open("rb") as file:
        first = file.readline(_MAX_HEADER_BYTES)
    try:
        return str(json.loads(first)["queue"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{path} is not a file of undelivered requests: its first line names no queue") from None


def _require_trusted(status: os.stat_result) -> None:
    if not status.st_nlink:
        raise FileNotFoundError  # another worker has delivered it in the meantime
    if status.st_uid not in {os.geteuid(), 0}:
        raise ValueError("belongs to another user", _IF_TRUSTED)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError("is writable by other users", _IF_TRUSTED)


def _lock(descriptor: int) -> None:
    """Lock a file until it is closed or the process ends; raise BlockingIOError if another process holds it."""
    import fcntl  # noqa: PLC0415  # missing on Windows, where all else works

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
