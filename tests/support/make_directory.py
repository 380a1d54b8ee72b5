"""A pickle with a side effect, as any client with write access can store."""

from collections.abc import Callable
from pathlib import Path


class MakesDirectory:
    """Its pickle makes a directory when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.mkdir, (self._path,)
