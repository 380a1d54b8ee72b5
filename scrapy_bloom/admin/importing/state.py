"""The state of an import as it is stored, so that another run goes on with it, and what an import reports."""

import json
import re
import secrets
from dataclasses import asdict, dataclass, field
from typing import NamedTuple, Protocol, Self

from scrapy_bloom.errors import WrongTypeError

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
