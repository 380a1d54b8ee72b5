"""The repeats that a process remembers, so that they never leave it; it knows nothing of filters."""


class SeenCache:
    """A bounded set of items that are known to be in the filter.

    Two generations of half of `size` each: additions go to the young one, a hit in the old one moves the item back,
    and a full young generation replaces the old one. Both steps are one dict operation, and an item that is met at
    least once in `size` / 2 others is never forgotten.
    """

    def __init__(self, size: int) -> None:
        self._half = -(-size // 2)
        self._young: dict[bytes, None] = {}
        self._old: dict[bytes, None] = {}

    def __contains__(self, item: bytes) -> bool:
        if item in self._young:
            return True
        if item in self._old:
            self.add(item)
            return True
        return False

    def add(self, item: bytes) -> None:
        """Remember an item; the least recently met ones go first."""
        if not self._half:
            return
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        self._young[item] = None

    def clear(self) -> None:
        """Forget everything."""
        self._young.clear()
        self._old.clear()
