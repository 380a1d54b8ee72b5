"""The requests that wait to be delivered to the queue."""

from collections.abc import Iterable

from scrapy_bloom.queue.entries import Member, OutboxEntry


class Outbox:
    """The entries that wait, oldest first, and the fingerprints among them."""

    def __init__(self) -> None:
        self.entries: list[OutboxEntry] = []
        self.duplicates_to_ack: list[Member] = []
        self._fingerprints: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return whether an entry with this fingerprint waits to be checked."""
        return fingerprint in self._fingerprints

    def add(self, entry: OutboxEntry) -> None:
        """Append an entry."""
        self.entries.append(entry)
        if entry.fingerprint is not None:
            self._fingerprints.add(entry.fingerprint)

    def resolve(self, batch: Iterable[OutboxEntry], new: Iterable[bool]) -> list[OutboxEntry]:
        """Take over the filter's answers to entries with fingerprints, and return the duplicates, which leave."""
        duplicates = []
        for entry, is_new in zip(batch, new, strict=True):
            self._fingerprints.discard(entry.fingerprint or b"")
            entry.fingerprint = None
            if not is_new:
                duplicates.append(entry)
        self.duplicates_to_ack += [entry.member for entry in duplicates]
        self._remove(duplicates)
        return duplicates

    def mark_delivered(self, batch: Iterable[OutboxEntry]) -> None:
        """Remove entries that are in the queue; the duplicates are acknowledged by then, too."""
        self.duplicates_to_ack = []
        self._remove(batch)

    def _remove(self, entries: Iterable[OutboxEntry]) -> None:
        removed = set(entries)
        self.entries = [entry for entry in self.entries if entry not in removed]
