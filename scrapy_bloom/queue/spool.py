"""The file for the requests that Redis never took."""

import base64
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from scrapy_bloom._text import as_bytes
from scrapy_bloom.queue.entries import OutboxEntry


class Spool:
    """The files of JSON lines with what Redis never took from workers of the queue `key`, in the current directory.

    Several workers may load one: what is sent twice is one request in the queue, and new to the filter once.
    """

    def __init__(self, key: str) -> None:
        self._stem = "undelivered-" + re.sub(r"[^\w.-]", "_", key)

    def save(self, entries: Iterable[OutboxEntry]) -> Path:
        """Write entries to a new file, and return its path when they are on the disk."""
        path = Path(f"{self._stem}-{secrets.token_hex(4)}.jsonl").absolute()
        # Nobody loads it before it is whole.
        unfinished = path.with_suffix(".part")
        with unfinished.open("x", encoding="utf-8") as file:
            for entry in entries:
                file.write(json.dumps(_as_json(entry)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return unfinished.rename(path)

    def load(self) -> Iterator[tuple[Path, list[OutboxEntry]]]:
        """Yield each file and its entries; it is to be deleted when they are delivered."""
        for path in sorted(Path().glob(f"{self._stem}-*.jsonl")):
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            yield path.absolute(), [_from_json(line) for line in lines]


def _as_json(entry: OutboxEntry) -> dict[str, Any]:
    """Return what a line holds; bytes that are no text have one character each."""
    return {
        "request": base64.b64encode(as_bytes(entry.member)).decode(),
        "score": entry.score,
        "fingerprint": None if entry.fingerprint is None else entry.fingerprint.decode("latin-1"),
    }


def _from_json(line: dict[str, Any]) -> OutboxEntry:
    text = line["fingerprint"]
    fingerprint = None if text is None else text.encode("latin-1")
    return OutboxEntry(base64.b64decode(line["request"]), line["score"], fingerprint)
