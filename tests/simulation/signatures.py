"""Signatures of operations with their states: equal for pairs that are equal to a server.

Two pairs have the same signature if they differ only in names, heartbeats, equally distant sync numbers, or irrelevant
bits of a filter.
"""

import re
from collections.abc import Mapping
from typing import Any

from scrapy_bloom.queue import operations as ops
from scrapy_bloom.storage import shard_header
from scrapy_bloom.storage.bits import CheckBits, CountBits, LookUpBits
from tests.simulation.cases import StartCase, StoreCase
from tests.support.queue_memory import QueueMemory, Registration

# Descriptions, epochs, workers and start URLs, by their text in a `repr`.
_NAMES = re.compile(r"\{[^{}]*\}|\d{9,}|w\d+-[0-9a-f]{8}")
# Numbers of syncs: beyond this distance all are equal.
_NEAR, _HIGH = 3, 5


def of_queue(memory: QueueMemory, operation: ops.QueueOperation) -> object:
    """Return the signature of an operation on a queue."""
    return _QueueNames(memory, operation).signature()


def of_store(case: StoreCase) -> object:
    """Return the signature of an operation on a filter."""
    if case.string is not None:
        return _of_string(case.operation, case.string, case.hours)
    # All bits of a missing shard are alike.
    operation = case.operation._replace(positions=[]) if hasattr(case.operation, "positions") else case.operation
    return _without_names((operation, sorted((case.fields or {}).items()), case.hours))


def _of_string(operation: Any, string: bytes, hours: int | None) -> object:
    """Return the signature of an operation on a shard: by its header and the bits in the operation."""
    header = string[: shard_header.HEADER_BYTES].ljust(shard_header.HEADER_BYTES, b"\0")
    epoch = shard_header.epoch(shard_header.identity(int.from_bytes(header, "big")))
    its = header[0], bool(epoch), any(header[6:]), epoch == getattr(operation, "epoch", None), hours
    bits: tuple[int, ...] = ()
    if isinstance(operation, CheckBits | LookUpBits):
        places = [divmod(position + shard_header.BITS, 8) for position in operation.positions]
        found = [string[byte] >> (7 - bit) & 1 for byte, bit in places if byte < len(string)]
        bits = len(places), len(found), sum(found)
        operation = operation._replace(positions=[])
    elif isinstance(operation, CountBits):
        bits = (int.from_bytes(string[operation.start : operation.end + 1], "big").bit_count(),)
    return _without_names((operation, its, len(string), bits))


def of_start(case: StartCase) -> object:
    """Return the signature of a script of start URLs."""
    return _without_names(case)


def _without_names(value: object) -> str:
    """Replace each name by a number, in the order of their first occurrence."""
    numbers: dict[str, int] = {}
    return _NAMES.sub(lambda match: f"#{numbers.setdefault(match[0], len(numbers))}", repr(value))


class _QueueNames:
    """Numbers for the names in a queue's state and in an operation."""

    def __init__(self, memory: QueueMemory, operation: ops.QueueOperation) -> None:
        self._memory = memory
        self._operation = operation
        fields = vars(operation)
        named = (fields.get(name) for name in ("worker", "dead"))
        known = [*memory.workers, *memory.leases, *(name for name in named if name), *fields.get("known", ())]
        self._workers = {name: number for number, name in enumerate(dict.fromkeys(known))}
        members = {*memory.queue, *memory.dead_letters, *memory.deliveries, *_bytes_in(tuple(fields.values()))}
        for leased in memory.leases.values():
            members.update(leased)
        # Of equal scores the lowest member is first.
        self._members = {member: number for number, member in enumerate(sorted(members))}

    def signature(self) -> object:
        """Return the signature."""
        memory, audit = self._memory, self._memory.audit
        leases = {worker: held for worker, held in memory.leases.items() if held}
        workers = [(self._workers[name], self._registration(name)) for name in memory.workers]
        numbers = audit.waiting, bool(audit.loss), bool(audit.lost), audit.is_shared
        state = (memory.queue, memory.dead_letters, leases, memory.deliveries)
        told = [(name, self._told(name, value)) for name, value in vars(self._operation).items()]
        return type(self._operation).__name__, self._numbered(state), workers, numbers, told

    def _registration(self, name: str) -> object:
        mine = Registration.parse(self._memory.workers[name])
        number = min(mine.number, _HIGH) if name == self._operation.worker else bool(mine.number)
        return mine.lease, number, mine.is_void, mine.is_closing, mine.is_flush, mine.spider

    def _told(self, name: str, value: Any) -> object:
        """Return the signature of an argument."""
        if name == "number":
            return self._number(value)
        if name == "value":
            found = self._memory.workers.get(self._operation.dead)  # type: ignore[attr-defined]
            closing = Registration.parse(value) if value else None
            return found == value, closing and (closing.is_closing, closing.is_flush)
        if name == "kept" and value is not None:
            digests = {ops.digests([member])[0]: number for member, number in self._members.items()}
            return sorted(digests.get(digest, -1) for digest in value)
        return self._numbered(value)

    def _number(self, number: int) -> int:
        """Return a sync number relative to its worker's last one."""
        text = self._memory.workers.get(self._operation.worker)
        last = Registration.parse(text).number if text else 0
        far = max(-_NEAR, min(number - last, _NEAR))
        return min(last, _HIGH) + far if number else 0

    def _numbered(self, value: Any) -> object:
        if isinstance(value, bytes):
            return self._members[value]
        if isinstance(value, str):
            return self._workers.get(value, value)
        if isinstance(value, Mapping):
            return sorted((self._numbered(name), self._numbered(its)) for name, its in value.items())
        return [self._numbered(each) for each in value] if isinstance(value, tuple) else value


def _bytes_in(value: Any) -> set[bytes]:
    if isinstance(value, tuple):
        return set().union(*map(_bytes_in, value))
    return {value} if isinstance(value, bytes) else set()
