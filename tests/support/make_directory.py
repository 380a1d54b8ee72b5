"""A pickle that does something when it is read, as anybody may write one who can write to Redis."""

from collections.abc import Callable
from pathlib import Path


class MakesDirectory:
    """Its pickle makes a directory when it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.mkdir, (self._path,)
