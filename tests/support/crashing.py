"""A store in memory whose worker dies at a known moment."""

from scrapy_bloom.storage.operation import Results, delete_expired
from scrapy_bloom.storage.stores import MemoryStore


class CrashError(Exception):
    """A worker dies."""


class Crashing(MemoryStore):
    """A store whose worker dies before one of its next operations, on demand."""

    left: int | None = None

    def execute(self, ops):  # type: ignore[no-untyped-def]  # as the parent's
        delete_expired(self)
        said = Results()
        for op in ops:
            if self.left is not None:
                if self.left == 0:
                    self.left = None
                    raise CrashError
                self.left -= 1
            said.append(op.apply(self))
        return said
