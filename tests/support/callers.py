"""Callers of one filter on a simulated server, whose calls, faults and losses a random walk interleaves.

The callers are real, and so are the scripts. A connection loses requests and replies, and its packets arrive late. The
server goes back to an earlier state, and loses the filter or a shard.
"""

import contextlib
import random
from collections import Counter
from hashlib import sha1
from typing import Any

import pytest
import redis
from redis.exceptions import NoScriptError

from scrapy_bloom import UnavailableError
from scrapy_bloom.filter import bloom_filter
from scrapy_bloom.filter.bloom_filter import CACHE_SECONDS, BloomFilter
from scrapy_bloom.runtime import Runtime
from scrapy_bloom.transport.scripts import FILTER, Script
from tests.support.script_server import ScriptServer

KEY = "{k}"
ITEMS = [b"item %d" % number for number in range(10)]
# The filter grows twice with these items, and calls none of them seen by chance.
SMALL: dict[str, Any] = {"capacity": 3, "error_rate": 1e-12, "retry_timeout": 0}
_HAS, _MISSING = Script("contains", *FILTER, "call").text, Script("missing", *FILTER).text


class BrokenPromiseError(AssertionError):
    """Raised by a walk that breaks a promise."""


class Clock(Runtime):
    """A clock that a test or a walk sets."""

    now = 1000.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class Line:
    """A caller's connection, in place of a `HeldConnection`."""

    connection_pool = redis.ConnectionPool()

    def __init__(self, walk: "Walk") -> None:
        self._walk = walk
        self.made, self.is_broken = 0, True

    def execute_command(self, *command: Any, **_: object) -> Any:
        """Execute a command, or lose its request or its reply."""
        self.made += self.is_broken
        fault = self._walk.draw_fault()
        self.is_broken = fault != "none"
        if fault == "late":
            self._walk.late.append(command)
        if fault in ("request", "late"):
            raise redis.TimeoutError(fault)
        reply = self._walk.execute(command)
        if fault == "reply":
            raise redis.ConnectionError(fault)
        return reply

    def close(self) -> None:
        """Make another connection for the next call."""
        self.is_broken = True


class Walk:
    """A random walk.

    Args:
        seed: of its choices.
        patch: replaces what is not simulated.
        wrong: texts in the scripts to be replaced, for a planted mistake.
        faults: kinds of faults, of "request", "reply" and "late", and of losses: "rollback", "filter", "shard" and
            "forget".

    Attributes:
        callers: the callers.
        server: their server.
        late: commands that did not arrive so far.
    """

    def __init__(
        self, seed: int, patch: pytest.MonkeyPatch, wrong: dict[str, str] | None = None, faults: str = ""
    ) -> None:
        self._draw, self._wrong, self._faults = random.Random(seed), wrong or {}, faults.split()
        self.server, self.late = ScriptServer(is_recording=True), list[tuple[Any, ...]]()
        self._scripts: dict[str, str] = {}
        self._clock, self._is_calm = Clock(), True
        self._lines = [Line(self) for _ in range(3)]
        lines = iter(self._lines)
        patch.setattr(bloom_filter, "hold", lambda _: next(lines))
        patch.setattr(BloomFilter, "_runtime", self._clock)
        self.callers = [BloomFilter(redis.Redis(), KEY, **SMALL) for _ in self._lines]
        # How often each item was new to a caller; whether there was a loss, and the callers that may not know of it.
        self._new, self._has_lost, self._unaware = Counter[bytes](), False, set[int]()
        self._snapshot = self.server.copy(), self._new.copy()

    def draw_fault(self) -> str:
        """Return the fault of the next command, mostly none."""
        kinds = [kind for kind in ("request", "reply", "late") if kind in self._faults]
        return self._draw.choice(kinds) if kinds and not self._is_calm and self._draw.random() < 0.2 else "none"

    def execute(self, command: tuple[Any, ...]) -> Any:
        """Execute a command on the server."""
        self.server.time += 1000
        name, *arguments = command
        if name not in ("EVALSHA", "EVAL"):
            return self.server.call(name, *arguments)
        text, count, *rest = arguments
        if name == "EVAL":
            self._scripts[sha1(text.encode(), usedforsecurity=False).hexdigest()] = text
        elif text not in self._scripts:
            raise NoScriptError
        text = self._scripts.get(text, text)
        for right, wrong in self._wrong.items():
            text = text.replace(right, wrong)
        return self.server.eval(text, rest[:count], rest[count:])

    def run(self, steps: int = 60) -> None:
        """Make random moves, and then let everything arrive and each caller add each item."""
        self._is_calm = False
        for _ in range(steps):
            self._move()
        self._is_calm = True
        while self.late:
            self.arrive(0)
        self._clock.now += CACHE_SECONDS
        for number, caller in enumerate(self.callers):
            self._note(number, ITEMS, caller.add_many(ITEMS))
        for item in ITEMS:
            self._require(self._new[item], f"{item!r} was new to nobody")

    def arrive(self, place: int) -> None:
        """Let a late packet arrive, whose reply nobody gets."""
        with contextlib.suppress(redis.ResponseError):
            self.execute(self.late.pop(place))

    def _move(self) -> None:
        self._clock.now += self._draw.choice([0.1, 0.1, CACHE_SECONDS])
        kind = self._draw.random()
        if kind < 0.1 and self.late:
            self.arrive(self._draw.randrange(len(self.late)))
        elif kind < 0.15:
            self._lose()
        elif kind < 0.2 and "forget" in self._faults:
            self._forget()
        else:
            self._call()

    def _call(self) -> None:
        number = self._draw.randrange(len(self.callers))
        caller, items = self.callers[number], self._draw.sample(ITEMS, self._draw.choice([1, 1, 3]))
        try:
            found = [caller.add(items[0])] if len(items) == 1 else caller.add_many(items)
        except UnavailableError:
            return
        self._note(number, items, found)

    def _note(self, number: int, items: list[bytes], found: list[bool]) -> None:
        """Compare the answers to a caller with the promises."""
        caller = self.callers[number]
        if self._is_missing():  # nobody has met the lost shard so far
            self._unaware = set(range(len(self.callers)))
        elif caller._contact == self._clock.now:
            self._unaware.discard(number)
        for item, is_new in zip(items, found, strict=True):
            self._new[item] += is_new
            owed = any(
                item in (*each._owed, *(each._unsettled.items if each._unsettled else ())) for each in self.callers
            )
            self._require(
                self._new[item] or owed or number in self._unaware, f"{item!r} is seen, and was new to nobody"
            )
            self._require(self._new[item] <= 1 or self._has_lost, f"{item!r} was new twice")

    def _forget(self) -> None:
        """Let a caller forget an item, which may be new again; the others learn of it by their next replies."""
        number, item = self._draw.randrange(len(self.callers)), self._draw.choice(ITEMS)
        self._is_calm = True
        if self.callers[number].forget(item):
            self._new[item], self._has_lost = 0, True
            self._unaware = set(range(len(self.callers))) - {number}
        self._is_calm = False

    def _lose(self) -> None:
        """Lose data of the server, or remember its state; items that it does not know may be new again."""
        losses = [each for each in ("rollback", "filter", "shard") if each in self._faults]
        loss = self._draw.choice(["", *losses])
        if not loss:
            self._snapshot = self.server.copy(), self._new.copy()
            return
        if loss == "rollback":
            # No packet survives the end of its server.
            self.server, self.late = self._snapshot[0].copy(), []
            self._new |= self._snapshot[1]
            for line in self._lines:
                line.is_broken = True
        elif loss == "filter":
            self.server.call("DEL", KEY)
        else:
            names = sorted(name for name in self.server._values if name.startswith(b"{k}:"))
            self.server.call("DEL", self._draw.choice(names or [b"none"]))
        self._has_lost = True
        self._unaware = set(range(len(self.callers)))
        for item in ITEMS:
            self._new[item] *= self._knows(item)

    def _is_missing(self) -> bool:
        state = self.server.call("HGET", KEY, "state") or b""
        return bool(self.server.eval(_MISSING, [KEY], [state.partition(b" ")[0]]))

    def _knows(self, item: bytes) -> bool:
        state, secret = self.server.call("HMGET", KEY, "state", "secret")
        if state is None:
            return False
        digest = self.callers[0].parameters.hasher(secret)(item)
        return bool(self.server.eval(_HAS, [KEY], [state.partition(b" ")[0], digest])[0] == b"1")

    def _require(self, holds: object, text: str) -> None:
        if not holds:
            raise BrokenPromiseError(text)
