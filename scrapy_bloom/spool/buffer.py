"""Requests that are more than a process should keep in memory while Redis is away: they wait on the disk."""

import logging
from collections.abc import Callable

from scrapy_bloom.queue.entries import OutboxEntry
from scrapy_bloom.queue.tuning import TUNING, Tuning
from scrapy_bloom.spool.directory import SpoolDirectory
from scrapy_bloom.spool.file import SpoolFile

logger = logging.getLogger(__name__)


class DiskBuffer:
    """The entries that follow those in memory, in one file; its length is how many there are."""

    def __init__(self, spool: SpoolDirectory, tuning: Tuning = TUNING) -> None:
        self._tuning = tuning
        self._spool = spool
        self._file: SpoolFile | None = None
        self._has_failed = False
        # What is to be called when all of it was delivered.
        self.afterwards: list[Callable[[], object]] = []

    def __len__(self) -> int:
        return 0 if self._file is None else len(self._file)

    @property
    def is_empty(self) -> bool:
        """True if all entries are in memory."""
        return self._file is None

    def put(self, entry: OutboxEntry, in_memory: int) -> bool:
        """Take an entry, if others wait here already, or too many in memory; return whether it was taken."""
        if self._file is None and (in_memory < self._tuning.requests_in_memory or self._has_failed):
            return False
        try:
            if self._file is None:
                self._file = self._spool.spill()
                logger.warning("%d requests wait for Redis: those that follow go to %s", in_memory, self._file.path)
            self._file.append([entry])
        except OSError as error:
            self._has_failed = True
            logger.error("%s; they are kept in memory", error)
            return False
        return True

    def next_batch(self) -> list[OutboxEntry]:
        """Return the next entries, when all that were returned before are delivered; the file goes with the last.

        The filter was never asked about an entry on the disk. So what it says counts, whatever happened meanwhile:
        another worker has marked an entry that it calls seen, and had leased it before.
        """
        if self._file is None:
            return []
        self._file.mark_delivered()
        entries = self._file.read(self._tuning.disk_batch)
        if not entries:
            self._file.mark_delivered()
            self._file.close()
            self._file = None
        return entries

    def take_receipts_due(self) -> list[Callable[[], object]]:
        """Return what is to be called now, once."""
        due: list[Callable[[], object]] = []
        if self._file is None:
            due, self.afterwards = self.afterwards, due
        return due

    def close(self, undelivered: list[OutboxEntry]) -> str | None:
        """Keep what waits for a later start, with what is in memory; return the path of the file, if there is one.

        Raises:
            OSError: no file could be written; the text says how many requests are lost.
        """
        if self._file is None:
            return str(self._spool.save(undelivered)) if undelivered else None
        file, self._file = self._file, None
        file.append(undelivered)
        file.sync()
        file.close()
        return str(file.path)
