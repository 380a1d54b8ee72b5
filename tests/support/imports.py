"""SETs to import, and a client that dies or loses a reply at a known command."""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

import redis

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.text import as_text

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


class Faulty(redis.Redis):
    """A client, by the setting of `faulty`, that counts its commands."""

    between: ClassVar[Callable[[int], object]]
    at: ClassVar[int]
    how: ClassVar[str]
    steps: ClassVar[int]

    def execute_command(self, *args: Any, **options: Any) -> Any:
        command = super().execute_command
        return self._step(lambda: command(*args, **options))  # type: ignore[no-untyped-call]  # as the parent's

    def pipeline(self, *args: Any, **options: Any) -> Any:
        """Return a pipeline whose commands count as one."""
        pipeline: Any = super().pipeline(*args, **options)
        execute = pipeline.execute
        pipeline.execute = lambda: self._step(execute)
        return pipeline

    def _step(self, work: Callable[[], Any]) -> Any:
        kind = type(self)
        kind.steps += 1
        how = self.how if kind.steps == self.at else None
        kind.between(kind.steps)
        if how == BEFORE:
            raise KilledError
        reply = work()
        if how == AFTER:
            raise KilledError
        if how == LOST:
            raise redis.ConnectionError(LOST)
        return reply


def faulty(between: Callable[[int], object] = lambda _: None, at: int = 0, how: str = BEFORE) -> type[Faulty]:
    """Return a class of clients that call `between` with the number of each command, from 1 on, before it.

    At the command `at` the process is killed `before` or `after` it, or the reply is `lost`.
    """
    return type("Faulty", (Faulty,), {"between": staticmethod(between), "at": at, "how": how, "steps": 0})


@dataclass
class Moment:
    """A command of an action, by its number from 1 on: others act before it, or the process is killed at it."""

    at: int
    kind: type[Faulty] = Faulty

    def act(self, action: Callable[..., object], *arguments: Any) -> type[Faulty]:
        """Return a class of clients that call the action with these arguments before the command."""
        self.kind = faulty(lambda step: step == self.at and action(*arguments))
        return self.kind

    @property
    def is_past(self) -> bool:
        """True if the action had fewer commands."""
        return self.at > self.kind.steps


def each_moment() -> Iterator[Moment]:
    """Yield each command of an action whose clients have the moment's kind, and one behind the last."""
    for at in count(1):
        yield (moment := Moment(at))
        if moment.is_past:
            return


def backup(key: str) -> str:
    """The key of the SET after an import to a key."""
    return f"{{{key}}}:set"


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
