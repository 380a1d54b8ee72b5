"""Console output: reports as text or JSON, tables, notes and progress."""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tqdm import tqdm

_BAR_WIDTH = 20
# Without a terminal, progress is a line every so many seconds.
_LINE_SECONDS = 10.0


def add_json_option(parser: "argparse._ActionsContainer") -> None:
    """Add --json to an action."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def print_report(options: argparse.Namespace, report: Mapping[str, Any], text: str) -> None:
    """Print an action's report: as an object with --json, as text without."""
    print(json.dumps(_finite(report), indent=2) if options.json else text)


def note(text: str) -> None:
    """Print a line to stderr. A closed, full or unread stderr stops no action."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"scrapy bloom: {text}", file=sys.stderr)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns, the first to the left and the others to the right; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *values in rows:
        cells = [value.rjust(width) for value, width in zip(values, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Align names and their values in two columns."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def bar(share: float) -> str:
    """Draw a share from 0 to 1 as a bar."""
    full = round(_BAR_WIDTH * min(max(share, 0.0), 1.0))
    return "[" + "#" * full + "." * (_BAR_WIDTH - full) + "]"


def duration(seconds: float) -> str:
    """Return a duration in days, hours, minutes or seconds."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:,.0f} s" if seconds >= 2 else f"{seconds:.1f} s"  # noqa: PLR2004  # decimals matter below


def _finite(value: Any) -> Any:
    """Replace infinities by None, since JSON has none."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return None
    return value


class ConsoleProgress:
    """Show progress, rate and remaining time on stderr; `unit` is the unit of the counts.

    An unwritable stderr never stops the work.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._bar: tqdm[Any] | None = None
        self._task, self._total, self._done, self._resumed_at = "", 0, 0, 0
        self._started = self._last_line = 0.0

    def begin(self, task: str, total: int, done: int = 0) -> None:
        """Begin a task; an earlier run may have done a part of it."""
        self.end()
        self._task, self._total, self._done, self._resumed_at = task, total, done, done
        self._started = self._last_line = time.monotonic()
        if sys.stderr is not None and sys.stderr.isatty():
            is_bytes = self._unit == "B"
            with contextlib.suppress(OSError):
                self._bar = tqdm(
                    total=total, initial=done, desc=task, unit=self._unit, unit_scale=is_bytes, file=sys.stderr
                )

    def advance(self, number: int) -> None:
        """Count further units as done."""
        self._done += number
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.update(number)
        elif time.monotonic() - self._last_line >= _LINE_SECONDS:
            self._last_line = time.monotonic()
            note(self._line())

    def end(self) -> None:
        """Close the bar and leave it on the screen."""
        if self._bar is not None:
            with contextlib.suppress(OSError):
                self._bar.close()
            self._bar = None

    def _line(self) -> str:
        rate = (self._done - self._resumed_at) / (self._last_line - self._started)
        left = max(0, self._total - self._done) / rate if rate else float("inf")
        done = f"{self._done:,} of {self._total:,} {self._unit.strip()}"
        return f"{self._task}: {done}, {rate:,.0f} a second, {left:,.0f} s left"


@contextlib.contextmanager
def progress(task: str, total: int, unit: str = "B") -> Iterator[Callable[[int], None]]:
    """Show the progress of a task over `total` bytes, or other units; yields the function that counts further ones."""
    shown = ConsoleProgress(unit)
    shown.begin(task, total)
    try:
        yield shown.advance
    finally:
        shown.end()
