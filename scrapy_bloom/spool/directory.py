"""The files for the requests that Redis has not taken: where they are, whose they are, and who may have them."""

import contextlib
import json
import logging
import os
import re
import stat
from collections.abc import Callable, Collection, Generator
from pathlib import Path
from typing import TypeVar

from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom.queue.entries import OutboxEntry
from scrapy_bloom.queue.tuning import TUNING
from scrapy_bloom.spool.file import FORMAT, NEW_FILE, SpoolFile, header, write

_MAX_HEADER_BYTES = 65_536
_WHAT_TO_DO = "if you trust what is in it, make it yours alone (chown and chmod 600), or else delete it"

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SpoolDirectory:
    """The files with what Redis has not taken from workers of the queue `key`.

    They are in `directory`, or where that cannot be written to in the one for temporary files. The requests in them may
    be pickled, and reading a pickle runs what it says. So a file is private to its user, and one that is not is left.
    """

    def __init__(self, key: str, directory: str | Path | None = None, runtime: Runtime = RUNTIME) -> None:
        self._token_hex = runtime.token_hex
        self._key = key
        self._stem = "undelivered-" + re.sub(r"[^\w.-]", "_", key, flags=re.ASCII)[:100]
        places = [directory or "."]
        with contextlib.suppress(FileNotFoundError):  # no place can be written to at all
            places.append(runtime.temporary_directory())
        self._places = list(dict.fromkeys(Path(place).absolute() for place in places))

    def save(self, entries: Collection[OutboxEntry]) -> Path:
        """Write entries to a new file, and return its path when they are on the disk.

        Raises:
            OSError: no place could be written to; the text says how many requests are lost.
        """
        return self._somewhere(lambda path: self._save_at(path, entries), f"{len(entries)} requests are lost")

    def spill(self) -> SpoolFile:
        """Make a file for entries as they come, and hold it until it is closed; raises an OSError as `save` does."""
        return self._somewhere(self._create, "requests cannot be put aside")

    def load(self, portion: int = TUNING.spool_batch) -> Generator[tuple[Path, list[OutboxEntry]], None, None]:
        """Yield what was left, a portion of a file at a time, with the path of the file.

        A portion counts as delivered when the next one is asked for, and a file is deleted when all of it is. Where
        that is not asked for, the next start begins with the portion. A file that a worker holds is passed over.
        """
        for path in [path for place in self._places for path in sorted(place.glob(f"{self._stem}-*.jsonl"))]:
            for entries in self.load_file(path, portion):
                yield path, entries

    def load_file(self, path: Path, portion: int = TUNING.spool_batch) -> Generator[list[OutboxEntry], None, None]:
        """Yield what was left in a file, as `load` does."""
        file = self._claim(path)
        if file is not None:
            with contextlib.closing(file):
                while entries := file.read(portion):
                    yield entries
                    file.mark_delivered()
                file.mark_delivered()

    def _somewhere(self, make: Callable[[Path], T], or_else: str) -> T:
        """Return what is made at a path in the first place where that works."""
        causes = []
        for place in self._places:
            try:
                return make(place / f"{self._stem}-{self._token_hex(8)}.jsonl")
            except OSError as error:
                causes.append(f"{place} ({error.strerror or error})")
        raise OSError(f"{or_else}, since no file can be written in {' or in '.join(causes)}; make room there")

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
        """Make a file, which has its name only when it is locked and has its header."""
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
        """Lock a file that was left, or return None: another worker has it, or it is not for this queue to read."""
        with contextlib.ExitStack() as unless_claimed:
            try:
                # Whoever put a pipe there is not waited for.
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
                unless_claimed.callback(os.close, descriptor)
                _lock(descriptor)
                _require_trusted(os.fstat(descriptor))
                start = self._start_of(descriptor)
            except (BlockingIOError, FileNotFoundError, LookupError):
                return None
            except (OSError, ValueError) as error:
                why = f"cannot be opened ({error.strerror})" if isinstance(error, OSError) else error
                logger.warning("The requests in %s are left alone, since the file %s; %s", path, why, _WHAT_TO_DO)
                return None
            unless_claimed.pop_all()
            return SpoolFile(path, descriptor, self._key, start)

    def _start_of(self, descriptor: int) -> int:
        """Return where undelivered entries begin; raises LookupError in a file of another queue."""
        first, end, _ = os.pread(descriptor, _MAX_HEADER_BYTES, 0).partition(b"\n")
        told = {}
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            told = dict(json.loads(first))
        if told.get("queue", self._key) != self._key:
            raise LookupError
        if not isinstance(start := told.get("start"), int) or first + end != header(self._key, start):
            raise ValueError(f"does not begin as one of the format {FORMAT} does")
        return max(start, len(first + end))


def queue_of(path: Path) -> str:
    """Return the queue that a file's first line names.

    Raises:
        ValueError: it is no file of undelivered requests.
        OSError: it cannot be read.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file")
    with path.open("rb") as file:
        first = file.readline(_MAX_HEADER_BYTES)
    try:
        return str(json.loads(first)["queue"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{path} is no file of undelivered requests: its first line names no queue") from None


def _require_trusted(status: os.stat_result) -> None:
    if not status.st_nlink:
        raise FileNotFoundError  # another worker has delivered it meanwhile
    if status.st_uid not in {os.geteuid(), 0}:
        raise ValueError("belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError("can be written by other users")


def _lock(descriptor: int) -> None:
    """Hold a file until it is closed, or this process ends; raises BlockingIOError where another one holds it."""
    import fcntl  # noqa: PLC0415  # not on Windows, where the rest works

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
