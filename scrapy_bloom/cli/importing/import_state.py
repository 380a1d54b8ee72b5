"""The keys, the stored state and the scripts of an import; a later run resumes it from its state."""

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol, Self

from scrapy_bloom._format import as_bytes, as_text
from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.queue.queue_keys import tagged
from scrapy_bloom.transport.client import Client, transport_for
from scrapy_bloom.transport.commands import Argument, Command
from scrapy_bloom.transport.retry import retry_until
from scrapy_bloom.transport.scripts import load_script

# The phases of an import, in their order.
COPYING, COPIED, CHECKING = "copying", "copied", "checking"
# The cursor before the first and after the last batch of a scan.
START = "0"
# The prefix of marks. No fingerprint begins with it.
_MARK_PREFIX = "scrapy-bloom import "
_FINGERPRINT = re.compile(rb"[0-9a-f]{40}")


class ImportKeys(NamedTuple):
    """The keys of an import, all in one cluster slot.

    Attributes:
        key: the key of the SET before the swap, and of the filter after it.
        source_backup: the key of the SET after the swap.
        staging: the key of the filter's hash before the swap. Its shards are those of a filter at `key`.
    """

    key: str
    source_backup: str
    staging: str

    @classmethod
    def of(cls, key: str) -> Self:
        """Return the keys of an import to a key."""
        return cls(key, f"{tagged(key)}:set", f"{tagged(key)}:import")


@dataclass(frozen=True)
class ImportState:
    """The stored state of an import.

    Attributes:
        owner: the random name of the process that runs the import; another process takes over under its own.
        mark: an additional member of the SET. A SET without it is not the SET of this import.
        phase: the present phase.
        cursor: the position of the scan; text, since it may have 64 bits.
        run: the server run that the cursor belongs to.
        copied: members read while copying.
        added: members among them that were new to the filter.
        checked: members read while checking.
        caught_up: members among them that were added after the copying had passed them.
    """

    owner: str
    mark: str = field(default_factory=lambda: _MARK_PREFIX + secrets.token_hex(8))
    phase: str = COPYING
    cursor: str = START
    run: str = ""
    copied: int = 0
    added: int = 0
    checked: int = 0
    caught_up: int = 0

    def to_json(self) -> str:
        """Return the stored text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, key: str, text: str) -> Self:
        """Return the state in a stored text.

        Raises:
            WrongTypeError: the text is not a state, or a newer release wrote it.
        """
        try:
            return cls(**json.loads(text))
        except (TypeError, ValueError):
            raise WrongTypeError(
                f"the state of the import at {key!r} cannot be read: resume it with the release of scrapy-bloom that "
                "began it"
            ) from None


def is_mark(member: bytes) -> bool:
    """Return whether a member is the mark of an import, possibly of an abandoned one."""
    return member.startswith(_MARK_PREFIX.encode())


def is_fingerprint(member: bytes) -> bool:
    """Return whether a member is a fingerprint of scrapy-redis, or a mark."""
    return _FINGERPRINT.fullmatch(member) is not None or is_mark(member)


class Progress(Protocol):
    """The interface that shows the progress of an import."""

    def begin(self, task: str, total: int, done: int = 0) -> None:
        """Begin a task; an earlier run may have done a part of it."""

    def advance(self, number: int) -> None:
        """Count further units as done."""


@dataclass(frozen=True)
class ImportReport:
    """The outcome of an import.

    Attributes:
        key: the key of the filter.
        source: the key of the SET, or the name of the file.
        members: members of the SET, or lines of the file.
        added: members that were new to the filter.
        already_known: members that were in the filter before, or that its error rate took for seen.
        caught_up: new members that workers added to the SET while it was copied.
        checked: members that were found in the filter at the end.
        seconds: duration of this run.
        members_a_second: rate of this run, without the wait for additions.
        added_meanwhile: growth of the SET in this run, which prevented the swap.
        deleted_source: whether the SET was deleted.
        was_finished: whether an earlier run had finished the import.
        is_finished: whether workers can open the filter.
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
# The kinds of a batch: members of a SET, or a cursor of another server run. Any other kind is the type of the key.
SET, OTHER_RUN = "set", "other"
# The outcomes of a swap: done; the SET is gone or another one; the backup key is occupied; another process has the
# import; the SET has grown.
SWAPPED, GONE, OCCUPIED, TAKEN_OVER, GROWN = "moved", "gone", "occupied", "taken", "grown"


class Batch(NamedTuple):
    """Members of a SET, read from `cursor` of the server run `run`; `is_first` begins a scan."""

    kind: str
    run: str
    cursor: str
    members: list[bytes]
    is_first: bool = False


class ImportScripts:
    """The scripts over a client; an unreachable server is retried for up to `wait` seconds."""

    def __init__(self, client: Client, wait: float) -> None:
        self._transport = transport_for(client)
        self._wait = wait

    def scan(self, key: str, cursor: str, run: str, count: int) -> Batch:
        """Read about `count` members of a SET; the batch has the next cursor."""
        kind, run, cursor, members = self._call(_SCAN, [key], cursor, count, run)
        return Batch(as_text(kind), as_text(run), as_text(cursor), [as_bytes(member) for member in members])

    def mark(self, key: str, mark: str) -> bool | str:
        """Add a mark to a SET; return whether it was there, or the type of other data at the key."""
        reply = self._call(_MARK, [key], mark)
        return bool(reply) if isinstance(reply, int) else as_text(reply)

    def unmark(self, key: str, *marks: str | bytes) -> None:
        """Remove marks from a SET."""
        self._send("SREM", key, *marks)

    def kinds(self, *names: str) -> list[str]:
        """Return the type of each key, all read at the same moment."""
        return [as_text(kind) for kind in self._call(_KINDS, names)]

    def delete(self, key: str) -> None:
        """Delete a key without blocking the server."""
        self._send("UNLINK", key)

    def save(self, key: str, before: ImportState, after: ImportState) -> bool:
        """Replace a stored state; return False if another one is stored."""
        return bool(self._call(_SAVE, [key], before.to_json(), after.to_json()))

    def swap(self, at: ImportKeys, before: ImportState, after: ImportState, members: int | None) -> str:
        """Swap the SET and the staging filter, if the SET has `members` members (None: any number).

        Returns:
            The outcome.
        """
        required = "" if members is None else members
        return as_text(self._call(_SWAP, at, before.to_json(), after.to_json(), before.mark, required))

    def finish(self, key: str, state: ImportState, text: str) -> bool:
        """Let workers open the filter with this text; return False if another process has its import."""
        return bool(self._call(_FINISH, [key], state.to_json(), text))

    def _call(self, script: str, names: Sequence[str], *arguments: Argument) -> Any:
        return self._send("EVAL", script, len(names), *names, *arguments)

    def _send(self, *command: Argument) -> Any:
        return retry_until(lambda: self._transport.execute([Command(*command)])[0], self._wait)
