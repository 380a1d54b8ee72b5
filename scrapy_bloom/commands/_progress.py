"""The progress of what takes minutes: a bar where somebody looks, a line now and then where it goes to a log."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tqdm import tqdm

from scrapy_bloom.commands._output import note

_LINE_SECONDS = 10.0


class ShownProgress:
    """Shows on stderr how far it is, with the rate and the time that is left; `unit` is what is counted.

    A stderr that cannot be written to never stops the work.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._bar: tqdm[Any] | None = None
        self._task, self._total, self._done, self._first = "", 0, 0, 0
        self._began = self._told = 0.0

    def begin(self, task: str, total: int, done: int = 0) -> None:
        """Begin a task, of which so much is done already."""
        self.end()
        self._task, self._total, self._done, self._first = task, total, done, done
        self._began = self._told = time.monotonic()
        if sys.stderr is not None and sys.stderr.isatty():
            is_bytes = self._unit == "B"
            with contextlib.suppress(OSError):
                self._bar = tqdm(
                    total=total, initial=done, desc=task, unit=self._unit, unit_scale=is_bytes, file=sys.stderr
                )

    def advance(self, number: int) -> None:
        """Count so much more as done."""
        self._done += number
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.update(number)
        elif time.monotonic() - self._told >= _LINE_SECONDS:
            self._told = time.monotonic()
            note(self._line())

    def end(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.close()
            self._bar = None

    def _line(self) -> str:
        rate = (self._done - self._first) / (self._told - self._began)
        left = max(0, self._total - self._done) / rate if rate else float("inf")
        done = f"{self._done:,} of {self._total:,} {self._unit.strip()}"
        return f"{self._task}: {done}, {rate:,.0f} a second, {left:,.0f} s left"


@contextlib.contextmanager
def progress_of(task: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how much of so many bytes is done; gives the function that is told of more."""
    progress = ShownProgress("B")
    progress.begin(task, total)
    try:
        yield progress.advance
    finally:
        progress.end()
