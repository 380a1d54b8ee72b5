"""The display of results: tables on standard output, and kept for a file; progress on standard error."""

import sys
from collections.abc import Sequence

from benchmarks.harness.confidence import wilson

_printed: list[str] = []


def say(progress: str) -> None:
    """Tell whoever waits how far it is."""
    print(progress, file=sys.stderr, flush=True)


def line(words: str) -> None:
    """Print something."""
    _printed.append(words)
    print(words, flush=True)


def text() -> str:
    """Everything that was printed."""
    return "\n".join(_printed) + "\n"


def heading(name: str, words: str) -> None:
    """Begin a part, and say what it is."""
    line(f"\n\n## {name}\n\n{words.strip()}")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown, the first column to the left and the others to the right."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    rule = [f"{'-' * (widths[0] + 1)}", *(f"{'-' * width}:" for width in widths[1:])]
    line(f"\n{title}\n\n{_row(columns, widths)}\n|{'|'.join(f'-{each}' for each in rule)}|")
    line("\n".join(_row(row, widths) for row in rows))


def target(what: str, measured: float, most: float) -> None:
    """Print a number beside the most that it should be."""
    verdict = "met" if measured <= most else "MISSED"
    line(f"\nTarget: {what} at most {most:g}. Measured {measured:.3f}: {verdict}.")


def times(ratio: float) -> str:
    """A ratio with as many digits as mean something."""
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"


def rate(events: int, trials: int) -> str:
    """A measured rate and, in brackets, its 95 % confidence interval."""
    low, high = wilson(events, trials)
    return f"{events / trials:.2e} ({low:.2e} to {high:.2e})"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = f"{cells[0]:<{widths[0]}}"
    return (
        f"| {' | '.join([first, *(f'{cell:>{width}}' for cell, width in zip(cells[1:], widths[1:], strict=True))])} |"
    )
