"""The queue that workers share, and what one of them holds of it: no request is ever in a process alone.

Each worker has a sorted set of the serialised requests that it is about to queue or has taken, with their scores. It is
told of before and released after each step, so that whatever a killed worker held is found there and put back.
Everything here is at least once: where a reply is lost, a request is fetched twice at worst.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from scrapy_bloom import keys
from scrapy_bloom.line import Line, Wire, as_bytes, pack

Member = bytes | str

# Where at least so many wait, a worker takes some at once; fewer it leaves to others, who may have nothing to do.
_HEAD = 16
_AT_ONCE = 8
_MOST_RACES = 1000
_CHUNK = 500

T = TypeVar("T")


class Waiting(NamedTuple):
    """A serialised request in the queue, and its score: the lowest goes first."""

    score: float
    member: Member


class Hold(NamedTuple):
    """Hold requests, before the filter is told of them; an operation that goes with the filter's."""

    key: str
    members: tuple[Waiting, ...]

    def wire(self) -> Wire:
        """ZADD with scores and members."""
        return pack("ZADD", self.key, *_scored(self.members))

    def reply(self, raw: Any) -> int:
        """How many were not held yet."""
        return int(raw)

    def apply(self, memory: Any) -> int:
        """There is no queue in memory."""
        raise NotImplementedError


class Custody:
    """What `worker` holds of the queue at `key`, a sorted set of serialised requests by their scores."""

    def __init__(self, line: Line, key: str, worker: str) -> None:
        self._line = line
        self._key = key
        self._held = keys.held_key(key, worker)
        # Equal requests are one member: how many of each this worker has, so that none is let go of too soon.
        self._owned: Counter[bytes] = Counter()
        self._done: list[Member] = []
        self._head: list[Waiting] = []
        self._claimed: list[Waiting] = []
        self._ready: deque[Waiting] = deque()

    @property
    def has_ready(self) -> bool:
        """Whether requests were taken that nobody has asked for yet."""
        return bool(self._ready)

    def hold(self, members: Iterable[Waiting]) -> Hold:
        """Hold requests that are about to be checked: what does it in the same round trip as the check."""
        return Hold(self._held, tuple(members))

    def release(self, members: Iterable[Member]) -> None:
        """Let go of requests that are finished, with the next round trip."""
        for member in members:
            self._disown(member)
            self._done.append(member)

    def put(self, members: Iterable[Waiting], settled: Iterable[Member]) -> None:
        """Queue requests, let go of them and of others that are settled, and take the next where none are ready."""
        new = list(members)
        back = self._behind(new)
        known = {as_bytes(each.member): each for each in (*back, *self._head, *new)}
        self._head = sorted(known.values(), key=lambda each: each.score)[:_HEAD]
        self._trade([*back, *new], [*(each.member for each in (*back, *new)), *settled], back)

    def take(self) -> Waiting | None:
        """The first request of the queue, which is this worker's now; None: there is none.

        What was reached for when a reply was lost is taken the next time, whoever may have it.
        """
        for _ in range(_MOST_RACES):
            if not self._ready:
                self._trade([], [], [])
            if self._ready:
                return self._ready.popleft()
            if not self._head:
                return None
        return None

    def count(self) -> int:
        """How many requests there are in the queue, besides those that are ready."""
        *_, number = self._line.send([*self._releases(self._done), pack("ZCARD", self._key)])
        self._done = []
        return int(number)

    def set_aside(self, taken: Waiting) -> bool:
        """Keep what was taken and cannot be read where nobody works on it, until `put_back` from there; gives True."""
        aside = pack("ZADD", keys.unreadable_key(self._key), *taken)
        self._line.send([aside, pack("ZREM", self._held, taken.member)], atomic=True)
        self._disown(taken.member)
        return True

    def _behind(self, new: Iterable[Waiting]) -> list[Waiting]:
        """What was taken ahead, if any of these go before some of it: all of it goes back then."""
        first = min((each.score for each in new), default=math.inf)
        return list(self._ready) if any(each.score > first for each in self._ready) else []

    def _trade(self, queued: Sequence[Waiting], settled: Sequence[Member], back: Sequence[Waiting]) -> None:
        """Queue some requests and let go of some, `back` of those that are ready, and reach for the first of the queue.

        All or nothing, on a server: one that is full refuses to hold a request, but would still take it from the queue.
        """
        was_claimed = bool(self._claimed)
        if not self._claimed and len(back) == len(self._ready):
            self._claimed = self._head[: _AT_ONCE if len(self._head) == _HEAD else 1]
        claimed = self._claimed
        commands: list[Wire] = [pack("ZADD", self._key, *_scored(queued))] if queued else []
        commands += self._releases([*self._done, *settled], back)
        if claimed:
            commands.append(pack("ZADD", self._held, *_scored(claimed)))
            commands += [pack("ZREM", self._key, each.member) for each in claimed]
        commands.append(pack("ZRANGE", self._key, 0, _HEAD - 1, "WITHSCORES"))
        *said, head = self._line.send(commands, atomic=True)
        were_there = said[len(said) - len(claimed) :]
        ours = [each for each, was_there in zip(claimed, were_there, strict=True) if was_there or was_claimed]
        if back:
            self._ready.clear()
        for each in back:
            self._disown(each.member)
        self._owned.update(as_bytes(each.member) for each in ours)
        self._ready.extend(ours)
        self._done = [each.member for each in claimed if each not in ours]
        self._claimed = []
        self._head = _waiting(head)

    def _disown(self, member: Member) -> None:
        equal = as_bytes(member)
        self._owned[equal] -= 1
        if self._owned[equal] <= 0:
            del self._owned[equal]

    def _releases(self, members: Sequence[Member], back: Sequence[Waiting] = ()) -> list[Wire]:
        """What lets go of members, but for those that this worker has, or may have, still or once more."""
        kept = self._owned - Counter(as_bytes(each.member) for each in back)
        kept.update(as_bytes(each.member) for each in self._claimed)
        return [
            pack("ZREM", self._held, *chunk)
            for chunk in _chunks([member for member in members if as_bytes(member) not in kept])
        ]


def put_back(line: Line, key: str, held: str) -> int:
    """Queue again whatever is in the sorted set `held`, and say how much that was."""
    found = _waiting(line.send([pack("ZRANGE", held, 0, -1, "WITHSCORES")])[0])
    for chunk in _chunks(found):
        members = [each.member for each in chunk]
        line.send([pack("ZADD", key, *_scored(chunk)), pack("ZREM", held, *members)], atomic=True)
    return len(found)


def _scored(waiting: Iterable[Waiting]) -> Iterable[Member | float]:
    return (part for each in waiting for part in each)


def _waiting(reply: Sequence[Any]) -> list[Waiting]:
    """What a ZRANGE WITHSCORES says: pairs in RESP3, one list in RESP2."""
    pairs = reply if reply and isinstance(reply[0], list) else zip(reply[::2], reply[1::2], strict=True)
    return [Waiting(float(score), member) for member, score in pairs]


def _chunks(each: Sequence[T]) -> Iterable[Sequence[T]]:
    return (each[start : start + _CHUNK] for start in range(0, len(each), _CHUNK))
