"""How results are shown: tables on standard output, progress on standard error."""

import sys
from collections.abc import Sequence

from benchmarks.interval import wilson


def say(progress: str) -> None:
    """Tell whoever waits how far it is."""
    print(progress, file=sys.stderr, flush=True)


def heading(name: str, sentence: str) -> None:
    """Begin a part."""
    print(f"\n\n## {name}\n\n{sentence}", flush=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown, the first column to the left and the others to the right."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    rule = [f"{'-' * (widths[0] + 1)}", *(f"{'-' * width}:" for width in widths[1:])]
    print(f"\n{title}\n\n{_line(columns, widths)}\n|{'|'.join(f'-{each}' for each in rule)}|")
    print("\n".join(_line(row, widths) for row in rows), flush=True)


def target(what: str, measured: float, most: float) -> None:
    """Print a number beside the most that it should be."""
    verdict = "met" if measured <= most else "MISSED"
    print(f"\nTarget: {what} at most {most:g}. Measured {measured:.3f}: {verdict}.", flush=True)


def times(ratio: float) -> str:
    """A ratio with as many digits as mean something."""
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"


def rate(events: int, trials: int) -> str:
    """A measured rate and, in brackets, its 95 % confidence interval."""
    low, high = wilson(events, trials)
    return f"{events / trials:.2e} ({low:.2e} to {high:.2e})"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = f"{cells[0]:<{widths[0]}}"
    return (
        f"| {' | '.join([first, *(f'{cell:>{width}}' for cell, width in zip(cells[1:], widths[1:], strict=True))])} |"
    )
