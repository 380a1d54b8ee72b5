"""Operations and scripts of start URLs, each with the state that they met."""

from typing import Any, NamedTuple, Self

from scrapy_bloom.queue.queue_keys import StartKeys
from scrapy_bloom.storage.filter_hash import Snapshot
from scrapy_bloom.storage.stores import MemoryStore
from scrapy_bloom.transport.commands import Command
from tests.support.replay import HOUR, State, Value
from tests.support.start_memory import StartMemory, StartScript, text_of


class StoreCase(NamedTuple):
    """An operation on one key of a filter, and the contents of the key.

    Only the order of times counts. Therefore a time is stored in hours from now, negative if past: on a server whose
    clock runs during the replay the order stays the same.
    """

    operation: Any
    fields: dict[str, str] | None
    string: bytes | None
    hours: int | None

    @classmethod
    def of(cls, memory: MemoryStore, operation: Any) -> Self:
        """Return the case of an operation and of the store that it meets."""
        now, key = int(memory.now() * 1000), operation.key
        expiry, asked = memory.expiries.get(key), getattr(operation, "expires", None)
        # Expired keys do not exist any more.
        coming = sorted({time for time in (expiry, asked) if time is not None and (time > now or time == expiry)})
        hours = {time: hour for hour, time in enumerate(coming, 1)}
        if asked is not None:
            operation = operation._replace(expires=hours.get(asked, -1))
        fields, string = memory.hashes.get(key), memory.strings.get(key)
        return cls(
            operation,
            None if fields is None else dict(fields),
            None if string is None else bytes(string),
            None if expiry is None else hours[expiry],
        )

    def before(self, key: str) -> State:
        """Return the state before the operation."""
        return _state(self._memory(key))

    def after(self, key: str) -> State:
        """Return the twin's state after the operation."""
        memory = self._memory(key)
        self._at(key, 0).apply(memory)
        return _state(memory)

    def command(self, key: str, now: int) -> Command:
        """Return the command for a server whose Unix time is `now`, in milliseconds."""
        command: Command = self._at(key, now).command()
        return command

    def difference(self, reply: Any, found: State, key: str) -> str:
        """Return how a server's reply and state differ from the twin's; "" if they are equal."""
        result, expected = self.operation.parse_reply(reply), self._at(key, 0).apply(self._memory(key))
        if isinstance(result, Snapshot):
            result, expected = result._replace(now=0), expected._replace(now=0)
        return _difference(self, (result, found), (expected, self.after(key)))

    def _at(self, key: str, now: int) -> Any:
        """Return the operation on a key, with its time relative to `now`."""
        hours = getattr(self.operation, "expires", None)
        times = {} if hours is None else {"expires": now + hours * HOUR}
        return self.operation._replace(key=key, **times)

    def _memory(self, key: str) -> MemoryStore:
        """Return the twin, whose clock stands at 0."""
        memory = MemoryStore(lambda: 0.0)
        memory.hashes = {} if self.fields is None else {key: dict(self.fields)}
        memory.strings = {} if self.string is None else {key: bytearray(self.string)}
        memory.expiries = {} if self.hours is None else {key: self.hours * HOUR}
        return memory


class StartCase(NamedTuple):
    """A script of start URLs, and the lists before it."""

    memory: StartMemory
    operation: StartScript

    @classmethod
    def of(cls, memory: StartMemory, operation: StartScript) -> Self:
        """Return the case of a script and of the twin that it meets."""
        return cls(memory.copy(), operation)

    def before(self, key: str) -> State:
        """Return the state before the script."""
        return _lists(self.memory, StartKeys(key))

    def after(self, key: str) -> State:
        """Return the twin's state after the script."""
        later = self.memory.copy()
        later.apply(self.operation)
        return _lists(later, StartKeys(key))

    def command(self, key: str, now: int) -> Command:  # noqa: ARG002  # no script has a time
        """Return the command."""
        names = StartKeys(key).start, StartKeys(key).leased, StartKeys(key).dead_letters
        return Command("EVAL", text_of(self.operation.script), len(names), *names, *self.operation.arguments)

    def difference(self, reply: Any, found: State, key: str) -> str:
        """Return how a server's reply and state differ from the twin's; "" if they are equal."""
        return _difference(self, (reply, found), (self.memory.copy().apply(self.operation), self.after(key)))


def _state(memory: MemoryStore) -> State:
    hashes = {key: {name.encode(): value.encode() for name, value in its.items()} for key, its in memory.hashes.items()}
    strings = {key: bytes(string) for key, string in memory.strings.items()}
    return State({**hashes, **strings}, {key: time // HOUR for key, time in memory.expiries.items()})


def _lists(memory: StartMemory, keys: StartKeys) -> State:
    # Only members of a sorted set have a score, which stands before the space.
    leased = {name.encode(): b" " + datum for name, datum in memory.leased.items()}
    values: dict[str, Value] = {keys.start: memory.waiting, keys.leased: leased, keys.dead_letters: memory.dead}
    return State(values)


def _difference(case: object, actual: object, expected: object) -> str:
    return "" if actual == expected else f"{actual}\nnot {expected}\nafter {case}"
