"""Operations that delete what was looked at, each once: what has taken its place meanwhile stays."""

from typing import Any, NamedTuple

from scrapy_bloom._lua import load_script
from scrapy_bloom.storage import keys
from scrapy_bloom.storage.base import Memory
from scrapy_bloom.storage.expiry import delete
from scrapy_bloom.storage.fields import fields_of
from scrapy_bloom.transport.commands import Command

_DELETE_HASH, _DELETE_UNUSED_HASH, _DELETE_SET = (
    load_script(__package__, name) for name in ("delete_hash", "delete_unused_hash", "delete_set")
)


class DeleteHash(NamedTuple):
    """Delete a filter's hash if its description is this `text`; without one, if its fields are those of these `names`.

    The field of a filter that is not complete must be `unfinished`, or be missing where that is empty.

    Returns the fields of what was deleted, none where nothing was there, and None where something else is.
    """

    key: str
    text: str
    unfinished: str
    names: tuple[str, ...]

    def command(self) -> Command:
        return Command("EVAL", _DELETE_HASH, 1, self.key, self.text, self.unfinished, *self.names)

    def parse_reply(self, raw: Any) -> dict[str, str] | None:
        is_gone, content = raw
        return fields_of(content) if is_gone else None

    def apply(self, memory: Memory) -> dict[str, str] | None:
        fields = memory.hashes.get(self.key, {})
        is_same = fields.get(keys.FILTER_FIELD) == self.text if self.text else fields.keys() == set(self.names)
        is_same = is_same and fields.get(keys.UNFINISHED_FIELD, "") == self.unfinished
        if self.key in memory.strings or (fields and not is_same):
            return None
        delete(memory, self.key)
        return fields


class DeleteUnusedHash(NamedTuple):
    """Delete a filter's hash if its description is this `text` and it has no user. Returns whether it was deleted."""

    key: str
    text: str

    def command(self) -> Command:
        return Command("EVAL", _DELETE_UNUSED_HASH, 1, self.key, self.text)

    def parse_reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        fields = memory.hashes.get(self.key, {})
        is_used = any(name.startswith(keys.user_field("")) for name in fields)
        return fields.get(keys.FILTER_FIELD) == self.text and not is_used and delete(memory, self.key)


class DeleteSet(NamedTuple):
    """Delete a SET if it has these `members`, as scrapy-redis's has for ever. Returns whether nothing is there now."""

    key: str
    members: tuple[bytes, ...]

    def command(self) -> Command:
        return Command("EVAL", _DELETE_SET, 1, self.key, *self.members)

    def parse_reply(self, raw: Any) -> bool:
        return bool(raw)

    def apply(self, memory: Memory) -> bool:
        return self.key not in memory.hashes and self.key not in memory.strings
