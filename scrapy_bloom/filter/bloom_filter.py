"""The Bloom filter in Redis: each call is one script, which the server executes whole or not at all.

Additions are *numbered*, see `steps`: a call whose reply was lost is repeated as it is, and gets the first one's
reply. So an item is new to exactly one call. A call that was given up, after `retry_timeout` or by a signal, is
*unsettled*: the next call repeats it first, and its new items are owed to the caller. Each filter has an id of its
own; a call that meets another id, or none, changes nothing.

The server writes nothing for a repeat. So a caller whose calls were all repeats has no trace there, and would not
notice that the server went back to an earlier state. But that takes another connection, with which the cache is
emptied.
"""

import math
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any, ClassVar, Self

from redis.crc import key_slot
from redis.exceptions import ResponseError

from scrapy_bloom import settings
from scrapy_bloom.cache import TwoGenerationCache
from scrapy_bloom.errors import ConfigError, RefusedError, WrongTypeError
from scrapy_bloom.filter.info import Counters, FilterInfo, describe_reply, foreign_key
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.steps import Steps
from scrapy_bloom.runtime import RUNTIME, Runtime
from scrapy_bloom.text import LimitedWarnings, get_logger
from scrapy_bloom.transport.connect import Client, is_cluster, require_usable, tagged
from scrapy_bloom.transport.failures import FAULTS, was_not_executed
from scrapy_bloom.transport.held import HeldConnection, hold
from scrapy_bloom.transport.retry import disable_client_retries, retry_until
from scrapy_bloom.transport.scripts import FILTER, Script

logger = get_logger(__name__)

Item = str | bytes

_OPEN, _ALLOCATE, _DELETE, _INFO = (Script(name, *FILTER) for name in ("open", "allocate", "delete", "info"))
_ADD, _FORGET, _CONTAINS = (Script(name, *FILTER, "steps", "call") for name in ("add", "forget", "contains"))
_LOST = (
    "The filter at %r was replaced (cleared, flushed or evicted). The crawl continues with a new filter, to which the "
    "%ss of the lost one are new"
)
_LOST_SHARDS = "The filter at %r lost %d shards (evicted?). The crawl continues, and their %ss are new again"
_WENT_BACK = (
    "The filter at %r lost its last additions: the server went back to an earlier state. The crawl continues, and "
    "these %ss are new again"
)
_GIVEN_UP = "The filter at %r is lost again and again (evicted?): every %s counts as new"
# A script of so many new items blocks the server for some 5 ms.
_BATCH = 500
_MOST_LOSSES = 3
# A record is pruned after an hour: a caller opens the filter again after half of that.
_RECORD_SECONDS = 1800.0
# A caller asks the server at least once in so many seconds in which it is asked: somebody may have deleted the filter.
CACHE_SECONDS = 10.0
# A filter with a TTL expires so many TTLs after its last layer's end at the earliest.
_EXPIRY_MARGIN = 0.25
_NEW = ord("1")


@dataclass
class _Numbered:
    """A call of `script` whose result was not used so far.

    Attributes:
        was_sent: an attempt may have been executed, or be executed late.
        next: the record of the last attempt, without the flags.
        is_partial: an attempt may have been executed in part, as in a cluster's slot that is being moved.
    """

    script: Script
    items: list[bytes]
    was_sent: bool = False
    is_partial: bool = False
    next: bytes = b""


class BloomFilter:
    """A Bloom filter in Redis, shared by all processes that open the same key.

    Opening stores its parameters, which must be the same everywhere; the first addition allocates
    its bits. Several threads may use it: each call waits for the one before.

    Args:
        server: a `redis.Redis` or `redis.RedisCluster`.
        key: the name of the filter's key. Its other keys begin with it in braces, in the same slot.
        capacity: items for which it is sized, at least 1. With a `ttl`, the items of one `ttl`.
        error_rate: share of new items that may be reported as seen, from 1e-15 to below 1. It holds
            for the whole filter, also after growth.
        expansion: growth factor of the layers, 1 for equal layers. With 0 the filter never grows,
            and exceeds its error rate beyond its capacity.
        ttl: minimum seconds for which an item is remembered; the maximum is 1.25 times as long.
            None: forever.
        fingerprint: name of the items' fingerprint scheme. It is stored, and compared like the
            other parameters.
        cache_size: items in the process's cache, 0 for none.
        retry_timeout: seconds to wait for an unreachable server, 0 not to wait.
        flush: delete the key, of any type, first.
        must_exist: raise an error rather than create a filter.

    Raises:
        ConfigError: an argument is invalid.
        MismatchError: the stored filter has other parameters, or a newer format.
        WrongTypeError: the key holds foreign data, or no filter, which `must_exist`.
        UnavailableError: the server was unreachable for `retry_timeout` seconds.
        RefusedError: the server refuses a command; retrying cannot help.

    Warning:
        It disables redis-py's retries on the client, since it repeats calls itself. Pass a dedicated client.

    Example:
        >>> bloom = BloomFilter(client, "pages", capacity=1_000_000, error_rate=1e-6)
        >>> bloom.add("https://example.com/"), bloom.add("https://example.com/")
        (True, False)
        >>> bloom.clear()
    """

    _runtime: ClassVar[Runtime] = RUNTIME
    _steps: Steps
    _unsettled: _Numbered | None
    _held: HeldConnection | None

    def __init__(
        self,
        server: Client,
        key: str | bytes,
        *,
        capacity: int = settings.CAPACITY.default,
        error_rate: float = settings.ERROR_RATE.default,
        expansion: int = settings.EXPANSION.default,
        ttl: float | None = settings.TTL.default,
        fingerprint: str = "bytes",
        cache_size: int = settings.CACHE_SIZE.default,
        retry_timeout: float = settings.RETRY_TIMEOUT.default,
        flush: bool = False,
        must_exist: bool = False,
    ) -> None:
        parameters = FilterParameters(capacity, error_rate, expansion, ttl, fingerprint).require_size()
        try:
            self.key = _as_item(key).decode()
        except (TypeError, ValueError):
            self.key = ""
        if not self.key:
            raise ConfigError(f"key = {key!r}: must be text, or text in UTF-8; pass the name of the filter's key")
        self.parameters = parameters
        self.counters = Counters()
        self._cache: TwoGenerationCache[bytes, bool] = TwoGenerationCache(settings.CACHE_SIZE.read(cache_size))
        self._clearings = 0  # of the cache
        self._cache_until = -math.inf  # by the process's clock
        # New items that the filter has, but of which the caller has got no result, perhaps of an interrupted call.
        self._owed: set[bytes] = set()
        if not isinstance(flush, bool):
            raise ConfigError(f"flush = {flush!r}: must be True or False; True deletes the key first")
        self.retry_timeout = settings.RETRY_TIMEOUT.read(retry_timeout)
        require_usable(server)
        # The beginning of the names of the other keys, which chooses the slot of the hash.
        self._tag = tagged(self.key)
        if is_cluster(server) and key_slot(self.key.encode()) != key_slot(self._tag.encode()):
            fault = "the unpaired brace puts this key into another cluster slot than the filter's other keys"
            raise ConfigError(f"key = {self.key!r}: {fault}; use a name without braces, or with one pair")
        self._client = disable_client_retries(server)
        self._warnings = LimitedWarnings(logger, self._runtime.monotonic)
        self._must_exist = must_exist
        self._id = self._lost_id = ""
        self._state = b""  # as the hash at the key has it
        self._counts = (0, 0)  # forgets and lost shards
        self._contact = 0.0  # the last reply, by the process's clock
        self._layers_until = math.inf  # the end of the oldest layer, by the process's clock
        self._begin_process()
        self._open(flush=flush)

    @classmethod
    def with_parameters(cls, server: Client, key: str | bytes, parameters: FilterParameters, **others: Any) -> Self:
        """Open a filter with another filter's parameters.

        Args:
            server: as for `BloomFilter`.
            key: as for `BloomFilter`.
            parameters: the attribute `parameters` of another filter.
            **others: `cache_size`, `retry_timeout`, `flush` and `must_exist`, as for `BloomFilter`.

        Returns:
            The filter at the key.

        Raises:
            BloomError: as for `BloomFilter`.

        Example:
            >>> pages = BloomFilter(client, "pages", capacity=5000)
            >>> images = BloomFilter.with_parameters(client, "images", pages.parameters)
            >>> images.parameters == pages.parameters
            True
            >>> images.clear(), pages.clear()
            (None, None)
        """
        return cls(server, key, **parameters.arguments(), **others)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r}>"

    def add(self, item: Item) -> bool:
        """Add an item.

        Args:
            item: bytes, or text, which is encoded in UTF-8.

        Returns:
            True if the item is new to every process, False if it was added before. A new item is
            reported as False with a probability of at most the filter's error rate.

        Raises:
            TypeError: the item is neither bytes nor text.
            ConfigError: the text cannot be encoded in UTF-8.
            BloomError: the server failed. The item does not count as seen.

        Example:
            >>> bloom = BloomFilter(client, "pages")
            >>> bloom.add("https://example.com/"), bloom.add("https://example.com/")
            (True, False)
            >>> bloom.clear()
        """
        encoded = item if type(item) is bytes else _as_item(item)
        if self._cache.get(encoded) and self._runtime.monotonic() < self._cache_until:
            self.counters.cache_hits += 1
            return False
        with self._calls():
            self._settle(_Numbered(_ADD, [encoded]))
        return self._deliver([encoded])[0]

    def is_cached(self, item: Item) -> bool:
        """Return whether the cache knows, without a round trip, that an item was added.

        Args:
            item: bytes, or text, which is encoded in UTF-8.

        Returns:
            False says nothing about the filter.

        Raises:
            TypeError: the item is neither bytes nor text.
            ConfigError: the text cannot be encoded in UTF-8.

        Example:
            >>> bloom = BloomFilter(client, "pages")
            >>> _ = bloom.add("a")
            >>> bloom.is_cached("a"), bloom.is_cached("b")
            (True, False)
            >>> bloom.clear()
        """
        return bool(self._cache.get(_as_item(item))) and self._runtime.monotonic() < self._cache_until

    def add_many(self, items: Iterable[Item]) -> list[bool]:
        """Add items in batches of 500, each in one round trip.

        Args:
            items: bytes or texts. Of equal items only the first can be new.

        Returns:
            For each item the result of `add`.

        Raises:
            TypeError: an item is neither bytes nor text, or one item is given instead of several; nothing is added.
            ConfigError: an item cannot be encoded in UTF-8; nothing is added.
            BloomError: the server failed. No item counts as seen that was new to this call.

        Example:
            >>> bloom = BloomFilter(client, "pages")
            >>> bloom.add_many(["a", "b", "a"])
            [True, True, False]
            >>> bloom.clear()
        """
        batch = _as_items(items)
        with self._calls():
            clearings = self._clearings
            is_current = self._runtime.monotonic() < self._cache_until
            asked = [item for item in dict.fromkeys(batch) if not (is_current and self._cache.get(item))]
            for part in _parts(asked):
                self._settle(_Numbered(_ADD, part))
            if self._clearings != clearings:  # the filter may have lost or forgotten items of the cache
                cached = [*dict.fromkeys(batch).keys() - asked]
                for part in _parts(cached):
                    self._settle(_Numbered(_ADD, part))
                asked += cached
            self.counters.cache_hits += len(batch) - len(asked)
        return self._deliver(batch)

    def _deliver(self, items: list[bytes]) -> list[bool]:
        """Return for each item whether it is owed, which it is no more.

        Not called while the calls are locked: an interrupt as they are unlocked would lose the results.
        """
        owed = self._owed
        new = owed.intersection(items)
        try:
            results = []
            for item in items:
                results.append(item in owed)
                owed.discard(item)
            self._cache.update(new, True)
            self.counters.added += len(new)
            # Inside the `try`: even an interrupt on this line leaves the caller without a result.
            return results
        except BaseException:
            owed |= new
            self._forget_cached()
            raise

    def __contains__(self, item: Item) -> bool:
        return self.contains_many([item])[0]

    def contains_many(self, items: Iterable[Item]) -> list[bool]:
        """Look items up in batches of 500, each in one round trip, without adding them.

        Args:
            items: bytes or texts.

        Returns:
            For each item whether it is in the filter. An absent item is reported as present with a
            probability of at most the filter's error rate.

        Raises:
            TypeError: an item is neither bytes nor text, or one item is given instead of several.
            ConfigError: an item cannot be encoded in UTF-8.
            BloomError: the server failed.

        Example:
            >>> bloom = BloomFilter(client, "pages")
            >>> _ = bloom.add("a")
            >>> bloom.contains_many(["a", "b"])
            [True, False]
            >>> bloom.clear()
        """
        batch = _as_items(items)
        with self._calls():
            results = [found for part in _parts(batch) for found in self._look_up(part)]
            self._cache.update([*compress(batch, results)], True)
            return results

    def forget(self, item: Item) -> bool:
        """Forget an item: the next addition reports it as new, to one process of all.

        Other processes learn of it at their next round trip; until then, their caches may still call it seen. The bits
        stay, and a field of the filter's hash holds the item until then: about 100 bytes of Redis's memory.

        Args:
            item: bytes, or text, which is encoded in UTF-8.

        Returns:
            True if the item was in the filter and is forgotten now, False if it was not in.

        Raises:
            TypeError: the item is neither bytes nor text.
            ConfigError: the text cannot be encoded in UTF-8.
            BloomError: the server failed. The item may be forgotten; a further call does no harm.

        Example:
            >>> bloom = BloomFilter(client, "pages")
            >>> _ = bloom.add("a")
            >>> bloom.forget("a"), bloom.forget("b")
            (True, False)
            >>> bloom.add("a"), bloom.add("a")
            (True, False)
            >>> bloom.clear()
        """
        return self.forget_many([item])[0]

    def forget_many(self, items: Iterable[Item]) -> list[bool]:
        """Forget items in batches of 500, each in one round trip.

        Each batch empties the caches of all processes: forget items together if there are several.

        Args:
            items: bytes or texts.

        Returns:
            For each item the result of `forget`.

        Raises:
            TypeError: an item is neither bytes nor text, or one item is given instead of several.
            ConfigError: an item cannot be encoded in UTF-8.
            BloomError: the server failed. Some items may be forgotten; a further call does no harm.

        Example:
            >>> bloom = BloomFilter(client, "pages")
            >>> _ = bloom.add_many(["a", "b"])
            >>> bloom.forget_many(["a", "c"]), bloom.contains_many(["a", "b"])
            ([True, False], [False, True])
            >>> bloom.clear()
        """
        batch = _as_items(items)
        with self._calls():
            parts = _parts([*dict.fromkeys(batch)])
            forgotten = {item for part in parts for item in self._settle(_Numbered(_FORGET, part))}
            self._forget_cached()
            return [item in forgotten for item in batch]

    def info(self) -> FilterInfo:
        """Describe the size and the fill of the filter.

        Returns:
            Its sizes and counts. For an empty filter, the sizes that the first addition will allocate.

        Raises:
            BloomError: the server failed.

        Example:
            >>> bloom = BloomFilter(client, "pages", capacity=1000)
            >>> _ = bloom.add_many(["a", "b", "c"])
            >>> bloom.info().count
            3
            >>> bloom.clear()
        """
        with self._calls():
            while True:
                status, *reply = self._send(_INFO, self._id)
                if status == b"OK":
                    return describe_reply(self.parameters, reply)
                self._open()

    def clear(self) -> None:
        """Delete the filter; the next addition creates another one.

        Raises:
            BloomError: the server failed.

        Example:
            >>> bloom = BloomFilter(client, "pages")
            >>> _ = bloom.add("a")
            >>> bloom.clear()
            >>> "a" in bloom
            False
        """
        with self._calls():
            self.close()
            while not self._send(_DELETE, self._id):  # another filter is there, or none
                self._id = ""
                if not self._open(creates=False):
                    break
            self._id = ""
            self._owed.clear()
            self._forget_cached()

    def close(self) -> None:
        """Delete the record of this caller, which is pruned later otherwise, and close its connection.

        Further calls begin anew.

        Raises:
            BloomError: the server failed.

        Example:
            >>> bloom = BloomFilter(client, "pages")
            >>> bloom.add("a"), bloom.close(), bloom.add("a")
            (True, None, False)
            >>> bloom.clear()
        """
        self._warnings.flush()
        with self._calls():
            field = self._steps.field
            self._steps, self._unsettled = Steps(), None
            try:
                if field:
                    self._execute(lambda: self._server.execute_command("HDEL", self.key, field))
            finally:
                if self._held is not None:
                    self._held.close()

    def revalidate(self) -> None:
        """Let the next call ask the filter, even about an item in the cache.

        The cache stays, unless the filter was replaced, or has lost or forgotten items.

        Example:
            >>> bloom = BloomFilter(client, "pages")
            >>> _ = bloom.add("a")
            >>> _ = client.delete("pages")
            >>> bloom.add("a")
            False
            >>> bloom.revalidate()
            >>> bloom.add("a")
            True
            >>> bloom.clear()
        """
        self._cache_until = -math.inf

    def _forget_cached(self) -> None:
        self._clearings += 1
        self._cache.clear()

    def _begin_process(self) -> None:
        """Begin to number the calls of this process.

        After a fork the parent settles its call, and gets the items that it is owed.
        """
        self._process = os.getpid()
        self._lock = threading.RLock()  # a thread of the parent may have held the former one
        self._steps = Steps()
        self._steps_until = 0.0  # by the process's clock
        self._unsettled = None
        self._held = hold(self._client)
        self._server: Any = self._held or self._client
        self._made = 0  # connections, at the last reply
        self._owed.clear()

    def _calls(self) -> threading.RLock:
        """Return the lock of this process's calls."""
        if os.getpid() != self._process:
            self._begin_process()
        return self._lock

    def _look_up(self, items: list[bytes]) -> list[bool]:
        """Return for each item whether the filter has it."""
        for _ in range(_MOST_LOSSES):
            reply = self._send(_CONTAINS, self._id, *map(self._hash, items))
            if reply:
                self._note_news(*reply[1:])
                return [flag == _NEW for flag in reply[0]]
            if not self._open(creates=False):
                break
        return [False] * len(items)

    def _settle(self, call: _Numbered) -> set[bytes]:
        """Execute a numbered call with distinct items, behind an unsettled one.

        Returns:
            The items with the flag '1'; of an addition, they are owed.
        """
        if self._unsettled is not None and self._unsettled is not call:
            self._settle(self._unsettled)
        for _ in range(_MOST_LOSSES):
            if not self._steps.field or (self._runtime.monotonic() > self._steps_until and not call.was_sent):
                self._open(is_caller=True)
            reply = self._execute(partial(self._attempt, call))
            if reply:
                return self._note_reply(call, reply)
            filter_id, self._steps = self._id, Steps()
            # What an earlier attempt has marked is unknown now, and unknown means new.
            call.is_partial = call.was_sent
            self._open(is_caller=True)
            if self._id == filter_id:
                self._lose(_WENT_BACK, self.key)
        self._warnings.warn(_GIVEN_UP, self.key, self.parameters.noun)
        return self._note_reply(call, bytes([_NEW]) * len(call.items))

    def _note_reply(self, call: _Numbered, reply: Any) -> set[bytes]:
        """Note the reply to a numbered call, and return the items with the flag '1'; of an addition, they are owed."""
        # Flags alone: nothing else has changed, and the server has written the record if anything was new.
        record, *news = [call.next + reply] if isinstance(reply, bytes) else reply
        result = record.split(b" ", 2)[2]
        flags = bytes([_NEW]) * len(result) if call.is_partial else result
        found = {item for item, flag in zip(call.items, flags, strict=True) if flag == _NEW}
        if call.script is _ADD:
            self._owed |= found
            # Before the news, which may empty the cache: the result may be older than they are.
            self._cache.update([item for item in call.items if item not in self._owed], True)
        # An interrupt from here on leaves an unsettled call, whose items are owed already.
        if news:
            self._note_news(*news)
        else:
            self._note_contact()
        if news or self._held is None or _NEW in result:
            self._steps.note(record)
        self._unsettled = None
        return found

    def _attempt(self, call: _Numbered) -> Any:
        """Send a numbered call once, and return the reply."""
        self._unsettled = call
        steps, keys = self._steps, [self.key] if self._held else [self.key, f"{self._tag}:absent"]
        call.next = steps.next
        # An attempt that is not straight through writes the record in any case: no earlier one is executed later.
        state = self._id.encode() if call.was_sent else self._state
        try:
            arguments: list[str | bytes] = [state, steps.record, steps.field, steps.next, *map(self._hash, call.items)]
            return call.script.call(self._server, keys, arguments)
        except BaseException as error:
            if not isinstance(error, FAULTS) or not was_not_executed(error):
                call.was_sent = True
                call.is_partial |= isinstance(error, ResponseError)
            self._unsettled = call if call.was_sent else None
            raise

    def _open(self, *, flush: bool = False, creates: bool = True, is_caller: bool = False) -> bool:
        """Open the filter, or create it; return whether there is one.

        With `is_caller` this process begins to number its calls, and the first layer is allocated.
        """
        field = ""
        if flush or is_caller:
            self._steps, field = Steps(), f"@{secrets.token_hex(8)}"
        new = self.parameters.to_create
        reply: list[Any] = [b"NONE"] if flush else self._send(_OPEN, *new(sizes=False), 0, "", field)
        if reply[0] == b"NONE" and creates and not self._must_exist:
            lost_id = self._id or self._lost_id
            reply = self._send(_OPEN, *new(sizes=True), int(flush), lost_id, field)
        if reply[0] == b"FOREIGN":
            raise foreign_key(self.key, reply[1].decode(), other_key=self.parameters.other_key)
        if reply[0] == b"NONE":
            if self._must_exist:
                raise WrongTypeError(f"there is no filter at {self.key!r}: it was deleted, or no crawl has used it yet")
            self._change_to("")
            return False
        _, secret, parameters, (state, record) = reply
        self.parameters.verify(self.key, parameters.decode())
        self._hash = self.parameters.hasher(secret)
        self._change_to(state.partition(b" ")[0].decode())
        self._note_state(state, is_first=True)
        if field:
            while state.count(b";") == 1 and self._send(_ALLOCATE, self._id):
                pass
            self._steps = Steps(field, record)
            self._steps_until = self._runtime.monotonic() + _RECORD_SECONDS
        return True

    def _change_to(self, new_id: str) -> None:
        """Note the id of the filter at the key, "" for none. Another one than before is a loss, unless all expired."""
        if self._id not in ("", new_id):
            self._lost_id, self._steps = self._id, Steps()
            idle, ttl = self._runtime.monotonic() - self._contact, self.parameters.ttl
            if ttl and idle > _EXPIRY_MARGIN * ttl:
                self._forget_cached()
            else:
                self._lose(_LOST, self.key)
        self._id = new_id

    def _note_news(self, state: bytes, left: int) -> None:
        """Note the state of the filter, and the ms until its oldest layer ends, or 0."""
        self._note_state(state)
        self._layers_until = self._contact + left / 1000 if left else math.inf
        self._cache_until = min(self._cache_until, self._layers_until)

    def _note_state(self, state: bytes, *, is_first: bool = False) -> None:
        """Note the state of the filter, and empty the cache if it has forgotten or lost items."""
        if state != self._state:
            _, _, forgets, lost, _ = state.partition(b";")[0].split()
            before, self._counts, self._state = self._counts, (int(forgets), int(lost)), state
            if not is_first and self._counts[1] > before[1]:
                self._lose(_LOST_SHARDS, self.key, self._counts[1] - before[1])
            elif self._counts != before:
                self._forget_cached()
        self._note_contact()

    def _note_contact(self) -> None:
        """Note a reply, and empty the cache if its items may be gone, before more of them count as seen.

        They are behind the end of the oldest layer, until which the cache is asked at most, and perhaps after another
        connection than before: the server may have gone back.
        """
        self._contact = self._runtime.monotonic()
        if self._contact >= self._layers_until:
            self._layers_until = math.inf
            self._forget_cached()
        self._cache_until = min(self._contact + CACHE_SECONDS, self._layers_until)
        if self._held is not None and self._held.made != self._made:
            self._made = self._held.made
            self._forget_cached()

    def _lose(self, text: str, *arguments: object) -> None:
        self.counters.losses += 1
        self._warnings.warn(text, *arguments, self.parameters.noun)
        self._forget_cached()

    def _send(self, script: Script, *args: Any) -> Any:
        return self._execute(lambda: script.call(self._server, [self.key], args))

    def _execute(self, attempt: Callable[[], Any]) -> Any:
        try:
            reply = retry_until(attempt, self.retry_timeout, self._runtime)
        except RefusedError as error:
            if "WRONGTYPE" in str(error):
                fault = f"the key {self.key!r} holds data that is not a filter"
                raise WrongTypeError(f"{fault}: {self.parameters.other_key}") from None
            raise
        self.counters.round_trips += 1
        return reply


def _parts(items: list[bytes]) -> Iterator[list[bytes]]:
    return (items[start : start + _BATCH] for start in range(0, len(items), _BATCH))


def _as_items(items: Iterable[Item]) -> list[bytes]:
    """Return the bytes of items; all are checked before anything is sent."""
    if isinstance(items, (str, bytes)):
        allowed = "must be a list of items, or another iterable"
        raise TypeError(f"items = {items!r}: {allowed}; use add or `in` for one item")
    return [*map(_as_item, items)]


def _as_item(item: Item) -> bytes:
    """Return the bytes of an item."""
    if isinstance(item, bytes):
        return item
    if not isinstance(item, str):
        raise TypeError(f"{type(item).__name__} {item!r}: an item must be str or bytes")
    try:
        return item.encode()
    except UnicodeEncodeError:
        allowed = "an item must be text that UTF-8 can encode"
        raise ConfigError(f"str {item!r}: {allowed}; pass other text as bytes") from None
