"""The stored state of an import, which another run resumes, and the scripts that change it."""

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol, Self

from scrapy_bloom._format import as_bytes, as_text
from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.filter.opening import stored_layers
from scrapy_bloom.filter.stored_filter import StoredFilter
from scrapy_bloom.storage import filter_keys, shards
from scrapy_bloom.transport.client import Client, transport_for
from scrapy_bloom.transport.commands import Argument, Command
from scrapy_bloom.transport.retry import retry_until
from scrapy_bloom.transport.scripts import load_script

# The passes of an import, in their order: each is what is under way.
COPYING, COPIED, CHECKING = "copying", "copied", "checking"
# The cursor with which a pass begins, and that which the server gives when it is over.
START = "0"
# What stands before the random part of a mark. No fingerprint begins like that.
_MARK = "scrapy-bloom import "
_FINGERPRINT = re.compile(rb"[0-9a-f]{40}")


class ImportKeys(NamedTuple):
    """The keys of an import: the SET and later the filter, the SET later, the filter that is being filled."""

    key: str
    aside: str
    filling: str

    @classmethod
    def of(cls, key: str) -> Self:
        """Return the keys of an import into a key."""
        return cls(key, f"{key}:set", f"{key}:importing")


@dataclass(frozen=True)
class ImportState:
    """The stored state of an import.

    Attributes:
        owner: a random name of the process that carries it out; another one takes it over under its own.
        mark: a member that was put into the SET. A SET without it is another one than that which was begun with.
        phase: the pass that is under way.
        cursor: where the pass goes on; text, since it may have 64 bits.
        run: the run of the server that gave the cursor.
        copied: members that were read in the first pass.
        added: those of them that were new to the filter.
        checked: members that were read in the second pass.
        caught_up: those of them that had come after the first pass read their place.
    """

    owner: str
    mark: str = field(default_factory=lambda: _MARK + secrets.token_hex(8))
    phase: str = COPYING
    cursor: str = START
    run: str = ""
    copied: int = 0
    added: int = 0
    checked: int = 0
    caught_up: int = 0

    def to_json(self) -> str:
        """Return it as it is stored."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, key: str, text: str) -> Self:
        """Return the state that a text means.

        Raises:
            WrongTypeError: it is not one, or one of a newer release.
        """
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            raise WrongTypeError(
                f"the state of the import at {key!r} cannot be read: go on with it by the release of scrapy-bloom that "
                "began it"
            ) from None


def is_mark(member: bytes) -> bool:
    """Return whether an import has put a member into a SET, this one or an earlier one that was dropped."""
    return member.startswith(_MARK.encode())


def is_fingerprint(member: bytes) -> bool:
    """Return whether a member of a SET is one of scrapy-redis's fingerprints, or a mark among them."""
    return _FINGERPRINT.fullmatch(member) is not None or is_mark(member)


class Progress(Protocol):
    """The interface of what is told how far an import is."""

    def begin(self, task: str, total: int, done: int = 0) -> None:
        """Begin a task, of which so much is done already."""

    def advance(self, number: int) -> None:
        """Count so much more as done."""


@dataclass(frozen=True)
class ImportReport:
    """The results of an import.

    Attributes:
        key: the key of the filter.
        source: the key of the SET, or the name of the file.
        members: members of the SET, or lines of the file.
        added: those that were new to the filter.
        already_known: those that were in it before, or that its error rate took for such.
        caught_up: those of the new ones that were added to the SET while it was copied.
        checked: members that were looked up in the filter at the end, and found.
        seconds: what this run took.
        members_a_second: the rate of this run, without the time that it waited for additions.
        added_meanwhile: members by which the SET grew in this run, so that it stayed in its place.
        deleted_source: whether the SET was deleted.
        was_finished: whether an earlier run had moved it all.
        is_finished: whether the filter can be used now.
    """

    key: str
    source: str
    members: int
    added: int
    already_known: int
    caught_up: int
    checked: int
    seconds: float
    members_a_second: float
    added_meanwhile: int = 0
    deleted_source: bool = False
    was_finished: bool = False
    is_finished: bool = True


_KINDS, _SCAN, _MARK, _SAVE, _SWAP, _FINISH = (
    load_script(__package__, name)
    for name in ("kinds", "scan_source", "mark_source", "save_state", "swap", "finish_import")
)
_SWAP = "\n".join((load_script(shards.__package__, "shard"), _SWAP))
# The kinds of what a scan finds at its key, beside what Redis calls them: a SET, for which the cursor means nothing.
SET, OTHER_RUN = "set", "other"
# The outcomes of changing places. They were changed; the SET is gone, or another one is there; something else is where
# it would go; another process has the import; the filter has other layers than it was asked for; or the SET has grown.
MOVED, GONE, OCCUPIED, TAKEN, CHANGED, GROWN = "moved", "gone", "occupied", "taken", "changed", "grown"


class Batch(NamedTuple):
    """Members of a SET: the `kind` of what is at its key, the run of the server, the cursor that follows, and they.

    A pass begins with the one that `is_first`.
    """

    kind: str
    run: str
    cursor: str
    members: list[bytes]
    is_first: bool = False


class ImportScripts:
    """The scripts over a client; a server that is away is waited for, for up to `wait` seconds."""

    def __init__(self, client: Client, wait: float) -> None:
        self._transport = transport_for(client)
        self._wait = wait

    def scan(self, key: str, cursor: str, run: str, count: int) -> Batch:
        """Read about so many members of a SET."""
        kind, run, cursor, members = self._call(_SCAN, [key], cursor, count, run)
        return Batch(as_text(kind), as_text(run), as_text(cursor), [as_bytes(member) for member in members])

    def mark(self, key: str, mark: str) -> bool | str:
        """Put a mark into a SET, and return whether it was there; or what Redis calls what else is at its key."""
        said = self._call(_MARK, [key], mark)
        return bool(said) if isinstance(said, int) else as_text(said)

    def unmark(self, key: str, *marks: str | bytes) -> None:
        """Take marks out of a SET."""
        self._send("SREM", key, *marks)

    def kinds(self, *names: str) -> list[str]:
        """Return what Redis calls what is at some keys, all at the same moment."""
        return [as_text(kind) for kind in self._call(_KINDS, names)]

    def delete(self, key: str) -> None:
        """Delete a key without blocking the server."""
        self._send("UNLINK", key)

    def save(self, key: str, before: ImportState, after: ImportState) -> bool:
        """Store a state in the place of another; return whether that one was stored."""
        return bool(self._call(_SAVE, [key], before.to_json(), after.to_json()))

    def swap(
        self, at: ImportKeys, before: ImportState, after: ImportState, filling: StoredFilter, members: int | None
    ) -> str:
        """Give a filter that is as it was read the key of the SET, if the SET has so many `members`, or any number.

        Returns the outcome, or a key where a shard would go and something is that is no filter's.
        """
        names = [name for move in _moves(filling, at.key) for name in move]
        fields = [text for layer in _layers(filling) for text in (layer.field, filling.fields[layer.field])]
        arguments = (before.to_json(), after.to_json(), before.mark, "" if members is None else members, *fields)
        return as_text(self._call(_SWAP, [*at, *names], *arguments))

    def finish(self, key: str, state: ImportState, text: str) -> bool:
        """Let workers open the filter of this text; return whether the state was that of its import."""
        return bool(self._call(_FINISH, [key], state.to_json(), text))

    def _call(self, script: str, names: Sequence[str], *arguments: Argument) -> Any:
        return self._send("EVAL", script, len(names), *names, *arguments)

    def _send(self, *command: Argument) -> Any:
        return retry_until(lambda: self._transport.execute([Command(*command)])[0], self._wait)


def _moves(filling: StoredFilter, key: str) -> list[tuple[str, str]]:
    """Return the key of each shard of a filter, and that which it has in a filter at `key`."""
    return [
        (name, filter_keys.shard_key(key, layer.index, shard))
        for layer in _layers(filling)
        for shard, name in enumerate(layer.shard_keys)
    ]


def _layers(filling: StoredFilter) -> list[Layer]:
    """Return all layers of which the hash tells, those whose time is over too."""
    return stored_layers(filling.key, filling.fields, filling.identity.hash_key)
