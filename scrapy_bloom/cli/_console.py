"""Console output: tables, notes, JSON and progress."""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tqdm import tqdm

_BAR = 20


def add_options(parser: "argparse._ActionsContainer") -> None:
    """Let an action print JSON."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def note(text: str) -> None:
    """Print a line for people on stderr. A stderr that is closed, full or without a reader stops no action."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"scrapy bloom: {text}", file=sys.stderr)


def print_json(report: dict[str, Any]) -> None:
    """Print an object as JSON; a number that JSON has no word for is null."""
    print(json.dumps(_finite(report), indent=2))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows in columns, the first one to the left and the others to the right; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width) for number, (cell, width) in enumerate(cells)
        ).rstrip()
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    )


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Return names and what stands behind them, in two columns."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def bar(share: float) -> str:
    """Return a picture of a share."""
    full = round(_BAR * min(max(share, 0.0), 1.0))
    return "[" + "#" * full + "." * (_BAR - full) + "]"


def duration(seconds: float) -> str:
    """Return a time in the unit that fits it."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:,.0f} s" if seconds >= 2 else f"{seconds:.1f} s"  # noqa: PLR2004  # below, parts of it matter


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return None
    return value


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
