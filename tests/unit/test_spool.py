"""What could not be delivered is in a file, whole, or not there at all."""

from pathlib import Path

import pytest

from scrapy_bloom.outbox import Parcel, Undelivered


def test_what_was_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests come back as they were, those of other queues and unfinished files do not."""
    monkeypatch.chdir(tmp_path)
    undelivered, other = Undelivered("a queue"), Undelivered("another queue")
    path = undelivered.write([Parcel(b"\xff\x00", -3, b"\xe4f"), Parcel("text", 0.5, None)])
    other.write([Parcel(b"other", 0, None)])
    Path(f"{path}.part").write_text("{")
    path.with_suffix(".part").write_text("{")
    ((found, parcels),) = undelivered.read()
    assert found == path
    assert [(parcel.member, parcel.score, parcel.item) for parcel in parcels] == [
        (b"\xff\x00", -3, b"\xe4f"),
        (b"text", 0.5, None),
    ]
