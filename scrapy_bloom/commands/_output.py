"""The output of actions: tables and notes for people, one JSON object for programs."""

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from typing import Any

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
