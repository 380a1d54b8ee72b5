"""Export and restore of filters, in this process or in a process that is killed."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from scrapy_bloom.cli.archive import exporting, file_format
from scrapy_bloom.cli.archive.exporting import Exported
from scrapy_bloom.cli.archive.file_format import Advance, Archive, SavedFilter
from scrapy_bloom.cli.archive.restoring import Restored, restore
from scrapy_bloom.filter import stored_filter
from scrapy_bloom.filter.stored_filter import StoredFilter
from scrapy_bloom.storage.operation import Store
from scrapy_bloom.storage.stores import RedisStore, run_steps

# As many bits as fit, so that a filter takes a few kilobytes and grows at once.
SMALL: dict[str, Any] = {"capacity": 100, "error_rate": 1e-3, "cache_size": 0}


def items(number: int, name: str = "item") -> list[str]:
    """Return so many different items."""
    return [f"{name} {each}" for each in range(number)]


def require(store: Store, key: str) -> StoredFilter:
    """The filter at a key."""
    found = run_steps(stored_filter.read(key), store.execute)
    assert found is not None
    return found


def export(client: redis.Redis, key: str, path: Path, **options: Any) -> Exported:
    """Export the filter at a key."""
    store = RedisStore(client)
    return exporting.export(store, require(store, key), path, **options)


def read(path: Path) -> SavedFilter:
    """Read a file as a restore does before its first write."""
    with path.open("rb") as file:
        return file_format.read(Archive(path, file))


def restore_file(
    client: redis.Redis, key: str, path: Path, *, overwrite: bool = False, advance: Advance = lambda _: None
) -> Restored:
    """Restore a file to a key."""
    with path.open("rb") as file:
        found = file_format.read(Archive(path, file))
        store = RedisStore(client)
        return restore(store, client, key, found, overwrite=overwrite, advance=advance)


def killed_at(number: int, work: Callable[[Advance], object]) -> None:
    """Run some work in its own process, and kill it at its given report of progress."""
    process = os.fork()
    if not process:
        calls = iter(range(1, number))

        def count(_: int) -> None:
            if next(calls, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            work(count)
        finally:
            os._exit(1)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status), "the process ended before it was killed"


def keys_at(client: redis.Redis, key: str) -> set[str]:
    """Return all keys of a filter."""
    return {each.decode() if isinstance(each, bytes) else each for each in client.scan_iter(f"{key}*", count=10_000)}
