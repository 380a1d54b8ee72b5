"""The file of what could not be delivered: it is whole, or not there at all."""

from pathlib import Path

import pytest

from scrapy_bloom.queue.entries import OutboxEntry
from scrapy_bloom.queue.spool import Spool


def test_what_was_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests come back as they were, those of other queues and unfinished files do not."""
    monkeypatch.chdir(tmp_path)
    undelivered, other = Spool("a queue"), Spool("another queue")
    path = undelivered.save([OutboxEntry(b"\xff\x00", -3, b"\xe4f"), OutboxEntry("text", 0.5, None)])
    other.save([OutboxEntry(b"other", 0, None)])
    Path(f"{path}.part").write_text("{")
    path.with_suffix(".part").write_text("{")
    ((found, parcels),) = undelivered.load()
    assert found == path
    assert [(parcel.member, parcel.score, parcel.fingerprint) for parcel in parcels] == [
        (b"\xff\x00", -3, b"\xe4f"),
        (b"text", 0.5, None),
    ]
