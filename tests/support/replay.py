"""Operations replayed on a server, each on its own state, beside their twins.

A case stands alone: the server gets its whole state, however rare a sequence of operations leads there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, TypeVar

from scrapy_bloom.transport.client import transport_for
from scrapy_bloom.transport.commands import Command

# Cases sent to a server at once.
_BATCH = 500
# Milliseconds. No replay takes half of it, so that the hours of an expiry are unambiguous.
HOUR = 3_600_000

# A sorted set, a hash, a list or a string.
Value = Mapping[bytes, float] | Mapping[bytes, bytes] | Sequence[bytes] | bytes


@dataclass
class State:
    """The values of a server by their keys, and the hours after which some of these keys expire."""

    values: dict[str, Value]
    hours: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A server has no empty sorted sets, hashes or lists, but it has empty strings.
        self.values = {key: value for key, value in self.values.items() if value or isinstance(value, bytes)}


class Case(Protocol):
    """An operation on a state, with all keys below the one of the case, and its effect in the twin."""

    def before(self, key: str) -> State:
        """Return the state before the operation."""

    def after(self, key: str) -> State:
        """Return the twin's state after the operation."""

    def command(self, key: str, now: int) -> Command:
        """Return the command for a server whose Unix time is `now`, in milliseconds."""

    def difference(self, reply: Any, found: State, key: str) -> str:
        """Return how a server's reply and state differ from the twin's; "" if they are equal."""


C = TypeVar("C", bound=Case)


def replay(client: Any, key: str, cases: Iterable[C]) -> Iterator[tuple[C, str]]:
    """Execute cases on a server, and yield each with its difference, "" if there is none.

    The database must be empty, without other clients: a key that is left there is a difference, too.
    """
    rest = iter(cases)
    while some := list(islice(rest, _BATCH)):
        keys = [f"{key}:{number}:" for number in range(len(some))]
        outcomes = _carried_out(client, keys, some)
        left = [name.decode() for name in client.scan_iter()] if client.dbsize() else []
        for case, its, (reply, found) in zip(some, keys, outcomes, strict=True):
            unknown = [name for name in left if its in name]
            yield case, f"{unknown} are left after {case}" if unknown else case.difference(reply, found, its)
        if left:
            client.unlink(*left)


def _carried_out(client: Any, keys: Sequence[str], some: Sequence[C]) -> list[tuple[Any, State]]:
    """Execute cases on a server; return each reply, and the contents of its keys."""
    setting, reading = (client.pipeline(transaction=False) for _ in range(2))
    values: list[dict[str, Value]] = []
    for key, case in zip(keys, some, strict=True):
        before = case.before(key)
        _set(setting, before)
        values.append({**before.values, **case.after(key).values})
        for name, value in values[-1].items():
            _read(reading, name, value)
    setting.execute()
    seconds, microseconds = client.time()
    now = seconds * 1000 + microseconds // 1000
    commands = [case.command(key, now) for key, case in zip(keys, some, strict=True)]
    replies = transport_for(client).execute(commands)
    found = iter(reading.execute(raise_on_error=False))
    client.unlink(*keys, *(name for its in values for name in its))
    return [(reply, _found(its, found)) for reply, its in zip(replies, values, strict=True)]


def _set(pipe: Any, state: State) -> None:
    for key, value in state.values.items():
        if isinstance(value, bytes):
            pipe.set(key, value)
        elif isinstance(value, Mapping):
            pipe.zadd(key, value) if _is_sorted_set(value) else pipe.hset(key, mapping=value)
        else:
            pipe.rpush(key, *value)
    for key, hours in state.hours.items():
        pipe.pexpire(key, hours * HOUR)


def _read(pipe: Any, key: str, value: Value) -> None:
    """Read a key that holds, or held, a value of this type, and its expiry."""
    if isinstance(value, bytes):
        pipe.get(key)
    elif isinstance(value, Mapping):
        pipe.zrange(key, 0, -1, withscores=True) if _is_sorted_set(value) else pipe.hgetall(key)
    else:
        pipe.lrange(key, 0, -1)
    pipe.pttl(key)


def _is_sorted_set(value: Mapping[bytes, Any]) -> bool:
    return not any(isinstance(each, bytes) for each in value.values())


def _found(keys: Iterable[str], replies: Iterator[Any]) -> State:
    """Return the state that was read."""
    values: dict[str, Value] = {}
    hours: dict[str, int] = {}
    for key in keys:
        value, left = next(replies), next(replies)
        # A sorted set comes as pairs.
        is_pairs = isinstance(value, list) and value and isinstance(value[0], tuple)
        if value is not None:
            values[key] = dict(value) if is_pairs else value
        if left >= 0:
            hours[key] = round(left / HOUR)
    return State(values, hours)
