"""A disk buffer for requests beyond the memory limit, while Redis is unreachable."""

import logging
from collections.abc import Callable, Iterator

from scrapy_bloom._runtime import TUNING, Tuning
from scrapy_bloom.queue.entries import OutboxEntry
from scrapy_bloom.spool.directory import SpoolDirectory
from scrapy_bloom.spool.file import SpoolFile

logger = logging.getLogger(__name__)


class DiskBuffer:
    """The entries behind those in memory, in one file of `directory`; `len()` counts them.

    Attributes:
        afterwards: receipts to call once all entries in the buffer are delivered.
    """

    def __init__(self, directory: SpoolDirectory, tuning: Tuning = TUNING) -> None:
        self.afterwards: list[Callable[[], object]] = []
        self._tuning = tuning
        self._directory = directory
        self._file: SpoolFile | None = None
        self._has_failed = False

    def __len__(self) -> int:
        return 0 if self._file is None else len(self._file)

    @property
    def is_empty(self) -> bool:
        """True if all entries are in memory."""
        return self._file is None

    def put(self, entry: OutboxEntry, in_memory: int) -> bool:
        """Buffer an entry if the buffer is in use or memory is full; return whether it was buffered."""
        is_full = in_memory >= self._tuning.requests_in_memory and not self._has_failed
        if self._file is None and not is_full:
            return False
        try:
            if self._file is None:
                self._file = self._directory.create()
                logger.warning(
                    "%s requests wait for Redis; further ones are buffered in %s", f"{in_memory:,}", self._file.path
                )
            self._file.append([entry])
        except OSError as error:
            if not self._has_failed:
                place = "" if self._file is None else f"{self._file.path} cannot take more requests: "
                logger.error("%s%s; the requests are kept in memory", place, error)
            self._has_failed = True
            return False
        return True

    def next_batch(self) -> list[OutboxEntry]:
        """Return the next entries once all entries returned before are delivered; delete the file after the last.

        The filter has never been asked about these entries, so its reply is valid: if it calls an entry seen, another
        worker has marked the entry, and leased it before that.
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
        """Return the receipts to call now, once."""
        due: list[Callable[[], object]] = []
        if self._file is None:
            due, self.afterwards = self.afterwards, due
        return due

    def close(self, undelivered: list[OutboxEntry]) -> Iterator[tuple[int, str]]:
        """Save the buffer and the undelivered entries in memory for a later start.

        Yields:
            The number of entries in each file, and its path. If the buffer's file takes no more, there is another one.

        Raises:
            OSError: no file can be written; the text has the number of lost requests.
        """
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.append(undelivered)
                undelivered = []
                file.sync()
            except OSError as error:
                logger.error("%s cannot be written: %s", file.path, error)
            number = len(file)
            file.close()
            if number:
                yield number, str(file.path)
        if undelivered:
            yield len(undelivered), str(self._directory.save(undelivered))
