"""Requests on their way to the queue: those that wait for Redis, and the file for those it never took."""

import base64
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrapy import Request

from scrapy_bloom.custody import Member, Waiting
from scrapy_bloom.line import as_bytes


@dataclass(eq=False)
class Parcel:
    """A serialised request with its score; `item` is what the filter is asked for, None when it need not be any more.

    `request` is the one that it was made from, or None where it came from a file.
    """

    member: Member
    score: float
    item: bytes | None
    request: Request | None = None

    @property
    def waiting(self) -> Waiting:
        """As it stands in the queue."""
        return Waiting(self.score, self.member)


class Outbox:
    """The parcels that wait, oldest first, and the items among them."""

    def __init__(self) -> None:
        self.parcels: list[Parcel] = []
        self.settled: list[Member] = []
        self._items: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.parcels)

    def knows(self, item: bytes) -> bool:
        """Whether a parcel with this item waits to be checked."""
        return item in self._items

    def add(self, parcel: Parcel) -> None:
        """Let a parcel wait."""
        self.parcels.append(parcel)
        if parcel.item is not None:
            self._items.add(parcel.item)

    def settle(self, batch: Iterable[Parcel], new: Iterable[bool]) -> list[Parcel]:
        """Take over the filter's answers to parcels with items: repeats leave, and are given back."""
        repeats = []
        for parcel, is_new in zip(batch, new, strict=True):
            self._items.discard(parcel.item or b"")
            parcel.item = None
            if not is_new:
                repeats.append(parcel)
        self.settled += [parcel.member for parcel in repeats]
        self._remove(repeats)
        return repeats

    def sent(self, batch: Iterable[Parcel]) -> None:
        """These parcels are in the queue, and what was settled is released."""
        self.settled = []
        self._remove(batch)

    def _remove(self, parcels: Iterable[Parcel]) -> None:
        gone = set(parcels)
        self.parcels = [parcel for parcel in self.parcels if parcel not in gone]


class Undelivered:
    """The files of JSON lines, in the current directory, with what Redis never took from workers of the queue `key`.

    Several workers may read one: what is sent twice is one request in the queue, and new to the filter once.
    """

    def __init__(self, key: str) -> None:
        self._stem = "undelivered-" + re.sub(r"[^\w.-]", "_", key)

    def write(self, parcels: Iterable[Parcel]) -> Path:
        """Write parcels to a new file, and see to it that they are on the disk."""
        path = Path(f"{self._stem}-{secrets.token_hex(4)}.jsonl").absolute()
        # Nobody reads it before it is whole.
        unfinished = path.with_suffix(".part")
        with unfinished.open("x", encoding="utf-8") as file:
            for parcel in parcels:
                line = {"request": base64.b64encode(as_bytes(parcel.member)).decode(), "score": parcel.score}
                file.write(json.dumps({**line, "fingerprint": _text(parcel.item)}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return unfinished.rename(path)

    def read(self) -> Iterator[tuple[Path, list[Parcel]]]:
        """Each file and what is in it; it is to be deleted when that is sent."""
        for path in sorted(Path().glob(f"{self._stem}-*.jsonl")):
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            yield path.absolute(), [_parcel(line) for line in lines]


def _parcel(line: dict[str, Any]) -> Parcel:
    text = line["fingerprint"]
    return Parcel(base64.b64decode(line["request"]), line["score"], None if text is None else text.encode("latin-1"))


def _text(item: bytes | None) -> str | None:
    """Bytes as JSON can have them, one character each."""
    return None if item is None else item.decode("latin-1")
