"""The scripts of an import: each is one step, and can be sent again without changing more."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from scrapy_bloom._lua import load_script
from scrapy_bloom._text import as_bytes, as_text
from scrapy_bloom.admin.importing.state import ImportKeys, ImportState
from scrapy_bloom.filter.layer import Layer
from scrapy_bloom.filter.opening import stored_layers
from scrapy_bloom.filter.stored import StoredFilter
from scrapy_bloom.storage import keys, shards
from scrapy_bloom.transport.base import Client, transport_for
from scrapy_bloom.transport.commands import Argument, Command
from scrapy_bloom.transport.retry import retry_until

_KINDS, _SCAN, _MARK, _SAVE, _CHANGE_PLACES, _FINISH = (
    load_script(__package__, name)
    for name in ("kinds", "scan_source", "mark_source", "save_state", "change_places", "finish_import")
)
_CHANGE_PLACES = "\n".join((load_script(shards.__package__, "shard"), _CHANGE_PLACES))
# The kinds of what a scan finds at its key, beside what Redis calls them: a SET, for which the cursor means nothing.
SET, OTHER_RUN = "set", "other"
# The outcomes of changing places. They were changed; the SET is gone, or another one is there; something else is where
# it would go; another process has the import; the filter has other layers than it was asked for; or the SET has grown.
MOVED, GONE, OCCUPIED, TAKEN, CHANGED, GROWN = "moved", "gone", "occupied", "taken", "changed", "grown"


class Batch(NamedTuple):
    """Members of a SET: the `kind` of what is at its key, the run of the server, the cursor that follows, and they.

    A pass begins with the one that `is_first`.
    """

    kind: str
    run: str
    cursor: str
    members: list[bytes]
    is_first: bool = False


class ImportScripts:
    """The scripts over a client; a server that is away is waited for, for up to `wait` seconds."""

    def __init__(self, client: Client, wait: float) -> None:
        self._transport = transport_for(client)
        self._wait = wait

    def scan(self, key: str, cursor: str, run: str, count: int) -> Batch:
        """Read about so many members of a SET."""
        kind, run, cursor, members = self._call(_SCAN, [key], cursor, count, run)
        return Batch(as_text(kind), as_text(run), as_text(cursor), [as_bytes(member) for member in members])

    def mark(self, key: str, mark: str) -> bool | str:
        """Put a mark into a SET, and return whether it was there; or what Redis calls what else is at its key."""
        said = self._call(_MARK, [key], mark)
        return bool(said) if isinstance(said, int) else as_text(said)

    def unmark(self, key: str, *marks: str | bytes) -> None:
        """Take marks out of a SET."""
        self._send("SREM", key, *marks)

    def kinds(self, *names: str) -> list[str]:
        """Return what Redis calls what is at some keys, all at the same moment."""
        return [as_text(kind) for kind in self._call(_KINDS, names)]

    def delete(self, key: str) -> None:
        """Delete a key without blocking the server."""
        self._send("UNLINK", key)

    def save(self, key: str, before: ImportState, after: ImportState) -> bool:
        """Store a state in the place of another; return whether that one was stored."""
        return bool(self._call(_SAVE, [key], before.to_json(), after.to_json()))

    def change_places(
        self, at: ImportKeys, before: ImportState, after: ImportState, filling: StoredFilter, members: int | None
    ) -> str:
        """Give a filter that is as it was read the key of the SET, if the SET has so many `members`, or any number.

        Returns the outcome, or a key where a shard would go and something is that is no filter's.
        """
        names = [name for move in _moves(filling, at.key) for name in move]
        fields = [text for layer in _layers(filling) for text in (layer.field, filling.fields[layer.field])]
        arguments = (before.to_json(), after.to_json(), before.mark, "" if members is None else members, *fields)
        return as_text(self._call(_CHANGE_PLACES, [*at, *names], *arguments))

    def finish(self, key: str, state: ImportState, text: str) -> bool:
        """Let workers open the filter of this text; return whether the state was that of its import."""
        return bool(self._call(_FINISH, [key], state.to_json(), text))

    def _call(self, script: str, names: Sequence[str], *arguments: Argument) -> Any:
        return self._send("EVAL", script, len(names), *names, *arguments)

    def _send(self, *command: Argument) -> Any:
        return retry_until(lambda: self._transport.execute([Command(*command)])[0], self._wait)


def _moves(filling: StoredFilter, key: str) -> list[tuple[str, str]]:
    """Return the key of each shard of a filter, and that which it has in a filter at `key`."""
    return [
        (name, keys.shard_key(key, layer.index, shard))
        for layer in _layers(filling)
        for shard, name in enumerate(layer.shard_keys)
    ]


def _layers(filling: StoredFilter) -> list[Layer]:
    """Return all layers of which the hash tells, those whose time is over too."""
    return stored_layers(filling.key, filling.fields, filling.identity.hash_key)
