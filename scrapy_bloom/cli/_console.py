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


@contextlib.contextmanager
def progress(task: str, total: int, unit: str = "B") -> Iterator[Callable[[int], None]]:
    """Show progress, rate and remaining time on stderr; an unwritable stderr never stops the work.

    Args:
        task: the name of the task.
        total: bytes, or other units.
        unit: the unit's name.

    Returns:
        The function that counts further units as done.
    """
    done, begun = 0, time.monotonic()
    last, bar = begun, None
    if sys.stderr is not None and sys.stderr.isatty():
        with contextlib.suppress(OSError):
            bar = tqdm(total=total, desc=task, unit=unit, unit_scale=unit == "B", file=sys.stderr)

    def advance(number: int) -> None:
        nonlocal done, last
        done, now = done + number, time.monotonic()
        if bar is not None:
            with contextlib.suppress(OSError):
                bar.update(number)
        elif now - last >= _LINE_SECONDS:
            last, rate = now, max(done, 1) / (now - begun)
            left = max(0, total - done) / rate
            note(f"{task}: {done:,} of {total:,} {unit.strip()}, {rate:,.0f} a second, {left:,.0f} s left")

    try:
        yield advance
    finally:
        if bar is not None:
            with contextlib.suppress(OSError):
                bar.close()
