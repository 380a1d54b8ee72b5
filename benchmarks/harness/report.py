"""Print results to standard output, keep them for a file, and print progress to standard error."""

import sys
from collections.abc import Sequence

_printed: list[str] = []


def say(progress: str) -> None:
    """Print progress."""
    print(progress, file=sys.stderr, flush=True)


def line(words: str) -> None:
    """Print a line of the results, and keep it."""
    _printed.append(words)
    print(words, flush=True)


def text() -> str:
    """Return all printed lines."""
    return "\n".join(_printed) + "\n"


def heading(name: str, words: str) -> None:
    """Print the heading and the description of a part."""
    line(f"\n\n## {name}\n\n{words.strip()}")


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table, its first column left-aligned and the others right-aligned."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    rule = [f"{'-' * (widths[0] + 1)}", *(f"{'-' * width}:" for width in widths[1:])]
    line(f"\n{title}\n\n{_row(columns, widths)}\n|{'|'.join(f'-{each}' for each in rule)}|")
    line("\n".join(_row(row, widths) for row in rows))


def target(subject: str, measured: float, most: float) -> None:
    """Print a measurement, its upper bound, and the verdict."""
    verdict = "met" if measured <= most else "MISSED"
    line(f"\nTarget: {subject} at most {most:g}. Measured {measured:.3f}: {verdict}.")


def times(ratio: float) -> str:
    """Format a ratio with its significant digits."""
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    first = f"{cells[0]:<{widths[0]}}"
    return (
        f"| {' | '.join([first, *(f'{cell:>{width}}' for cell, width in zip(cells[1:], widths[1:], strict=True))])} |"
    )
