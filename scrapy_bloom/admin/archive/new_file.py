"""A new file that has its name when all of it is on the disk, and not before."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from scrapy_bloom.errors import ConfigError

# Nobody else may read it: what it is written for is secret.
_PRIVATE = 0o600


@contextlib.contextmanager
def new_file(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Give a private file to write to, which is `path` when the block has ended; until then it has `.part` behind that.

    An error deletes the part. A process that is killed leaves it, and the next one takes it.

    Raises:
        ConfigError: there is a file, and it shall not be overwritten; or another process writes it.
    """
    _refuse_existing(path, overwrite)
    part = path.with_name(f"{path.name}.part")
    with os.fdopen(_open_alone(part), "wb") as file:
        try:
            file.truncate()
            yield file
            file.flush()
            os.fsync(file.fileno())
            _refuse_existing(path, overwrite)
            part.rename(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    _sync_directory(path.parent)


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if not overwrite and path.exists():
        raise ConfigError(f"{path}: must not exist; give another path, or --overwrite")


def _open_alone(part: Path) -> int:
    """Return the descriptor of a file that no other process has, and that was not renamed meanwhile."""
    import fcntl  # noqa: PLC0415  # not on Windows, where the rest works

    while True:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, _PRIVATE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(descriptor, _PRIVATE)
            if os.path.samestat(os.fstat(descriptor), part.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigError(f"{part}: another process writes it; wait for that, or give another path") from None
        except FileNotFoundError:
            pass
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
