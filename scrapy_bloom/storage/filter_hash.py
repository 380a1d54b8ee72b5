"""Operations on a filter's hash: as a command, from a reply, and in memory.

The field that describes the filter is a fencing token: the fenced operations do nothing once
another filter has replaced it.
"""

from typing import Any, NamedTuple

from scrapy_bloom._format import as_text
from scrapy_bloom.storage import filter_keys
from scrapy_bloom.storage.operation import Memory, delete, keep_until
from scrapy_bloom.transport.commands import Command
from scrapy_bloom.transport.scripts import load_script

_LOAD, _REMOVE_REFERENCE, _DELETE_FIELD_FENCED = (
    load_script(__package__, name) for name in ("load", "remove_reference", "delete_field_fenced")
)
_SET_FIELD_IF_ABSENT, _SET_FIELD_FENCED, _RESTORE_FIELDS = (
    load_script(__package__, "expiry", name) for name in ("set_field_if_absent", "set_field_fenced", "restore_fields")
)


class Snapshot(NamedTuple):
    """The state of the filter's key.

    Attributes:
        kind: its type, `none` if the key is absent.
        members: the size of a set, else 0.
        now: the server's time in Unix seconds.
        fields: the fields of a hash.
    """

    kind: str
    members: int
    now: float
    fields: dict[str, str]


class Load(NamedTuple):
    """Read the filter's key."""

    key: str

    def command(self) -> Command:
        return Command("EVAL", _LOAD, 1, self.key)

    def parse_reply(self, raw: Any) -> Snapshot:
        kind, (seconds, microseconds), content = raw
        kind, now = as_text(kind), int(seconds) + int(microseconds) / 1e6
        if kind == "set":
            return Snapshot(kind, int(content[0]), now, {})
        return Snapshot(kind, 0, now, fields_of(content))

    def apply(self, memory: Memory) -> Snapshot:
        fields = memory.hashes.get(self.key, {})
        return Snapshot("hash" if fields else "none", 0, memory.now(), dict(fields))


class SetFieldIfAbsent(NamedTuple):
    """Set a field of the filter's hash unless it exists. Returns whether it was set.

    The hash then lives at least until `expires`, in Unix milliseconds; None leaves its expiry
    alone.
    """

    key: str
    field: str
    value: str
    expires: int | None = None

    def command(self) -> Command:
        if self.expires is None:
            return Command("HSETNX", self.key, self.field, self.value)
        return Command("EVAL", _SET_FIELD_IF_ABSENT, 1, self.key, self.field, self.value, self.expires)

    def parse_reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        fields = memory.hashes.setdefault(self.key, {})
        is_new = self.field not in fields
        fields.setdefault(self.field, self.value)
        if is_new:
            keep_until(memory, self.key, self.expires)
        return is_new


class DeleteField(NamedTuple):
    """Delete a field of the filter's hash. Returns whether it existed."""

    key: str
    field: str

    def command(self) -> Command:
        return Command("HDEL", self.key, self.field)

    def parse_reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        fields = memory.hashes.get(self.key, {})
        was_there = fields.pop(self.field, None) is not None
        if was_there and not fields:
            delete(memory, self.key)
        return was_there


class Unlink(NamedTuple):
    """Delete a key without blocking the server. Returns whether it existed."""

    key: str

    def command(self) -> Command:
        return Command("UNLINK", self.key)

    def parse_reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        return delete(memory, self.key)


class DeleteFieldFenced(NamedTuple):
    """Delete a field of this value if the hash still belongs to `filter`.

    Returns True if the hash belongs to `filter` and lacks the field now.
    """

    key: str
    field: str
    value: str
    filter: str

    def command(self) -> Command:
        return Command("EVAL", _DELETE_FIELD_FENCED, 1, self.key, self.field, self.value, self.filter)

    def parse_reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        fields = memory.hashes.get(self.key, {})
        if fields.get(filter_keys.FILTER_FIELD) != self.filter:
            return False
        if fields.get(self.field) == self.value:
            del fields[self.field]
        return self.field not in fields


class SetFieldFenced(NamedTuple):
    """Set a field unless it exists, if the hash still belongs to `filter`.

    Returns whether it was set. The hash then lives at least until `expires`, in Unix milliseconds;
    None leaves its expiry alone. A late or repeated operation neither shortens that nor touches the
    expiry of another filter.
    """

    key: str
    field: str
    value: str
    filter: str
    expires: int | None = None

    def command(self) -> Command:
        expiry = [] if self.expires is None else [self.expires]
        return Command("EVAL", _SET_FIELD_FENCED, 1, self.key, self.field, self.value, self.filter, *expiry)

    def parse_reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        fields = memory.hashes.get(self.key, {})
        is_put = fields.get(filter_keys.FILTER_FIELD) == self.filter and self.field not in fields
        if is_put:
            fields[self.field] = self.value
            keep_until(memory, self.key, self.expires)
        return is_put


class RestoreFields(NamedTuple):
    """Set the missing ones of these fields if the hash lacks `field`.

    Returns whether it lacked `field`. The hash then lives at least until `expires`, in Unix
    milliseconds; None leaves its expiry alone.
    """

    key: str
    field: str
    fields: tuple[tuple[str, str], ...]
    expires: int | None = None

    def command(self) -> Command:
        parts = [part for field in self.fields for part in field]
        expiry = [] if self.expires is None else [self.expires]
        return Command("EVAL", _RESTORE_FIELDS, 1, self.key, self.field, *parts, *expiry)

    def parse_reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        fields = memory.hashes.setdefault(self.key, {})
        if self.field in fields:
            return False
        for name, value in self.fields:
            fields.setdefault(name, value)
        keep_until(memory, self.key, self.expires)
        return True


class RemoveReference(NamedTuple):
    """Remove a reference; delete the hash when none is left.

    Returns the fields of the deleted or absent hash, and None while references are left.
    """

    key: str
    field: str

    def command(self) -> Command:
        return Command("EVAL", _REMOVE_REFERENCE, 1, self.key, self.field)

    def parse_reply(self, raw: Any) -> dict[str, str] | None:
        was_last, content = raw
        return fields_of(content) if was_last else None

    def apply(self, memory: Memory) -> dict[str, str] | None:
        fields = memory.hashes.get(self.key, {})
        fields.pop(self.field, None)
        if any(name.startswith(filter_keys.reference_field("")) for name in fields):
            return None
        delete(memory, self.key)
        return fields


def fields_of(content: Any) -> dict[str, str]:
    """Return the fields in a reply.

    Bytes that are not UTF-8 belong to no filter, and are replaced.
    """
    texts = [text.decode(errors="replace") if isinstance(text, bytes) else text for text in content]
    return dict(zip(texts[::2], texts[1::2], strict=True))


_DELETE_HASH, _DELETE_UNUSED_HASH, _DELETE_SET = (
    load_script(__package__, name) for name in ("delete_hash", "delete_unused_hash", "delete_set")
)


class DeleteHash(NamedTuple):
    """Delete a filter's hash if it is unchanged.

    Its description must be `text` or, if that is empty, its fields must be exactly `names`. Its
    field `unfinished` must have this value, or be missing if the value is empty.

    Returns the deleted fields, none if the key was absent, and None if the hash had changed. Without
    `deletes`, nothing is deleted, and the result is the same.
    """

    key: str
    text: str
    unfinished: str
    names: tuple[str, ...]
    deletes: bool = True

    def command(self) -> Command:
        return Command("EVAL", _DELETE_HASH, 1, self.key, self.text, self.unfinished, int(self.deletes), *self.names)

    def parse_reply(self, raw: Any) -> dict[str, str] | None:
        is_gone, content = raw
        return fields_of(content) if is_gone else None

    def apply(self, memory: Memory) -> dict[str, str] | None:
        fields = memory.hashes.get(self.key, {})
        is_same = fields.get(filter_keys.FILTER_FIELD) == self.text if self.text else fields.keys() == set(self.names)
        is_same = is_same and fields.get(filter_keys.UNFINISHED_FIELD, "") == self.unfinished
        if self.key in memory.strings or (fields and not is_same):
            return None
        if self.deletes:
            delete(memory, self.key)
        return dict(fields)


class DeleteUnusedHash(NamedTuple):
    """Delete a filter's hash if its description is `text` and it has no reference.

    Returns whether it was deleted.
    """

    key: str
    text: str

    def command(self) -> Command:
        return Command("EVAL", _DELETE_UNUSED_HASH, 1, self.key, self.text)

    def parse_reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        fields = memory.hashes.get(self.key, {})
        is_used = any(name.startswith(filter_keys.reference_field("")) for name in fields)
        return fields.get(filter_keys.FILTER_FIELD) == self.text and not is_used and delete(memory, self.key)


class DeleteSet(NamedTuple):
    """Delete a SET of scrapy-redis if it still has these `members`.

    Returns whether the key is absent now. Without `deletes`, nothing is deleted, and the result is the
    same.
    """

    key: str
    members: tuple[bytes, ...]
    deletes: bool = True

    def command(self) -> Command:
        return Command("EVAL", _DELETE_SET, 1, self.key, int(self.deletes), *self.members)

    def parse_reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        return self.key not in memory.hashes and self.key not in memory.strings
