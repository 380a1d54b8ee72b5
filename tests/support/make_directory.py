"""A pickle that has an effect when it is loaded, as any user with write access to Redis can make."""

from collections.abc import Callable
from pathlib import Path


class MakesDirectory:
    """Its pickle makes a directory when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.mkdir, (self._path,)
