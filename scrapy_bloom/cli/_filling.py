"""Fill a filter that workers refuse before it is complete, as an import of a SET and a restore do.

The stored parameters have the field `unfinished`, so workers and actions refuse the filter. An interrupted filling is
not continued: the next one deletes its remains, and begins again. The server's run id tells that it has restarted,
or that another one was promoted, which may lack the last writes, and does not know the cursor of a scan.
"""

import json
import secrets
from typing import Any

from scrapy_bloom.cli._target import CrawlTarget
from scrapy_bloom.errors import MismatchError, RefusedError
from scrapy_bloom.filter.hashing import digest
from scrapy_bloom.filter.info import StoredFilter
from scrapy_bloom.queue.keys import tagged
from scrapy_bloom.transport.scripts import Script

_BEGIN, _FILL, _WRITE, _COMPLETE, _ALLOCATE = (
    Script(name, "filter") for name in ("begin", "fill", "write", "complete", "allocate")
)


class Filling:
    """A filter that is being filled.

    Args:
        target: the place of the filter.
        action: the name of the action.
        parameters: the text of the parameters to store.
        sizes: the text of the layers' sizes.
        secret: the secret of the filter's digests.
        found: the data at the key: a filter, which is deleted, a SET, which is renamed (`set`), or nothing (`none`).

    Raises:
        MismatchError: the key holds other data by now.
    """

    def __init__(
        self, target: CrawlTarget, action: str, parameters: str, sizes: str, secret: str, *, found: StoredFilter | str
    ) -> None:
        self._target, self._text, self._secret = target, parameters, secret.encode()
        self._id = secrets.token_hex(8)
        # Another process may have completed an unfinished filter meanwhile, which stays then.
        expected = found if isinstance(found, str) else f"{found.id}{found.unfinished or ''}"
        stored = json.loads(parameters)
        marked = json.dumps({**stored, "unfinished": action})
        ttl = round((stored["ttl"] or 0) * 1000)
        self._run = self._call(_BEGIN, expected, self._id, secret, marked, sizes, ttl)
        if self._run is None:
            raise MismatchError(f"the key {target.key!r} holds other data by now: run this again")

    def allocate(self) -> None:
        """Allocate the first layer, a shard at a time."""
        while self._call(_ALLOCATE, self._id):
            pass

    def add(self, items: list[bytes]) -> None:
        """Add items; adding them again changes nothing."""
        self._require(self._call(_FILL, self._id, *(digest(item, self._secret) for item in items)))

    def write(self, shard: str, *values: str | bytes | int) -> None:
        """Write bytes to a place in a shard, or without a shard fields of the hash."""
        self._require(self._call(_WRITE, self._id, shard, *values))

    def bits(self, shard: str) -> int:
        """Return the number of ones in a shard."""
        return int(self._target.send("BITCOUNT", f"{tagged(self._target.key)}:{self._id}:{shard}"))

    def complete(self, members: int = 0, *, deletes_set: bool = False) -> int:
        """Let everybody open the filter, and return the number of its items.

        Args:
            members: number of imported members of a SET.
            deletes_set: delete the SET in the same step.

        Raises:
            MismatchError: the filter was deleted or replaced meanwhile.
            RefusedError: the server may have lost a part of it.
        """
        status, *count = self._call(_COMPLETE, self._id, self._run, self._text, members, int(deletes_set))
        self._require(status != b"GONE")
        if status == b"LOST":
            raise RefusedError(
                f"the server was restarted or replaced while the filter at {self._target.key!r} was filled, or has "
                "evicted a part of it: run this again"
            )
        return int(count[0])

    def _call(self, script: Script, *arguments: Any) -> Any:
        target = self._target
        return target.retry(lambda: script.call(target.client, [target.key, place_of_set(target.key)], arguments))

    def _require(self, is_ours: int) -> None:
        if not is_ours:
            raise MismatchError(
                f"the filter at {self._target.key!r} was deleted, replaced or partly evicted while it was filled: stop "
                "other programs that use this key, and run this again"
            )


def place_of_set(key: str) -> str:
    """Return the key of the SET after an import to `key`."""
    return f"{tagged(key)}:set"
