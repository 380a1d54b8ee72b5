"""Imports of a SET, and a client that dies or loses a reply at a known command."""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from scrapy_bloom._format import as_text
from scrapy_bloom.cli.importing.set_import import SetImport
from scrapy_bloom.filter.parameters import FilterParameters

OPTIONS: dict[str, Any] = {
    "capacity": 1000,
    "error_rate": 1e-6,
    "expansion": 2,
    "ttl": None,
    "fingerprint": "scrapy-redis",
}
PARAMETERS = FilterParameters(**OPTIONS)
BEFORE, AFTER, LOST = "before", "after", "lost"


class KilledError(BaseException):
    """The process is killed."""


class Silent:
    """Invisible progress."""

    def begin(self, task: str, total: int, done: int = 0) -> None:
        pass

    def advance(self, number: int) -> None:
        pass


class FaultyClient(redis.Redis):
    """A client that calls `between` before each step.

    At the step with the number `at`, from 1 on, the process is killed `before` or `after` it, or the reply is `lost`. A
    step is a command. Consecutive BITFIELDs, which add to the filter or read it, are one step: faults between these are
    tried in tests/protocol.
    """

    def arm(self, between: Callable[[], object], at: int = 0, how: str = BEFORE) -> None:
        """Set the fault; the next step is the first."""
        self.steps = 0
        self._between, self._at, self._how = between, at, how
        self._was_bitfield = False

    def execute_command(self, *args: Any, **options: Any) -> Any:
        is_bitfield = args[0] == "BITFIELD"
        is_step, self._was_bitfield = not (is_bitfield and self._was_bitfield), is_bitfield
        if not is_step:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # as the parent's
        self.steps += 1
        self._between()
        how = self._how if self.steps == self._at else None
        if how == BEFORE:
            raise KilledError
        reply = super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # as the parent's
        if how == AFTER:
            raise KilledError
        if how == LOST:
            raise redis.ConnectionError(LOST)
        return reply


class OldWorker:
    """A worker of scrapy-redis; `accepted` lists added members, `refusals` failures."""

    def __init__(self, client: redis.Redis, key: str, accepted: list[str]) -> None:
        self.accepted = accepted
        self.refusals = 0
        self._client = client
        self._key = key

    def add(self) -> None:
        """Add one more member."""
        member = fingerprint(len(self.accepted))
        if self._client.type(self._key) != b"set":
            with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
                self._client.sadd(self._key, member)
            self.refusals += 1
        elif self._client.sadd(self._key, member):
            self.accepted.append(member)


def backup(key: str) -> str:
    """The key of the SET after an import to a key."""
    return f"{{{key}}}:set"


def staging(key: str) -> str:
    """The key of the filter's hash during an import to a key."""
    return f"{{{key}}}:import"


def keys_of(client: redis.Redis, key: str) -> set[str]:
    """All keys of a SET, its import and its filter."""
    own = re.compile(rf"({re.escape(key)}|{{{re.escape(key)}}})(:.*)?")
    return {name for name in map(as_text, client.scan_iter(f"*{key}*", count=100_000)) if own.fullmatch(name)}


def fingerprint(number: int) -> str:
    """A fingerprint like scrapy-redis's."""
    return hashlib.sha1(b"%d" % number, usedforsecurity=False).hexdigest()


def fill(client: redis.Redis, key: str, members: int, first: int = 0) -> list[str]:
    """Create a SET of so many fingerprints, stored so that a scan takes several turns."""
    found = [fingerprint(number) for number in range(first, first + members)]
    # The server keeps a SET that ever had such a long member as a table, and returns any other small one at once.
    client.sadd(key, "x" * 100, *found)
    client.srem(key, "x" * 100)
    return found


def set_import(client: redis.Redis, key: str, **tuning: Any) -> SetImport:
    """An import that reads few members at once, and saves its state after each batch."""
    return SetImport(
        client, key, PARAMETERS, Silent(), retry_timeout=5.0, **{"batch": 2, "save_seconds": 0.0, **tuning}
    )
