"""Plots of results as SVG, small and the same for the same numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import matplotlib as mpl
from matplotlib.figure import Figure

DIRECTORY = Path(__file__).parents[2] / "docs"
_COLOUR, _OTHERS = "#b5372b", "#7a8b99"

# Nothing in the file that changes from one run to the next; text stays text.
mpl.rcParams.update({"svg.hashsalt": "scrapy-bloom", "svg.fonttype": "none", "font.size": 9})


class Plot(Protocol):
    """Something that can be written."""

    @property
    def name(self) -> str:
        """The file's, without its ending."""

    @property
    def title(self) -> str:
        """What is to be seen."""

    def write(self, directory: Path) -> Path:
        """Write `name`.svg, and say where."""


@dataclass(frozen=True)
class Bars:
    """Ratios on a logarithmic axis, ours in another colour."""

    name: str
    title: str
    values: Mapping[str, float]

    def write(self, directory: Path) -> Path:
        """One bar for each, the first on top."""
        figure = Figure(figsize=(7, 0.6 + 0.32 * len(self.values)), layout="constrained")
        axes = figure.subplots()
        colours = [_COLOUR if name.startswith("scrapy-bloom") else _OTHERS for name in self.values]
        bars = axes.barh(list(self.values), list(self.values.values()), color=colours)
        axes.bar_label(bars, labels=[f"{value:.2f}" for value in self.values.values()], padding=3)
        axes.set_xscale("log")
        axes.margins(x=0.12)
        axes.invert_yaxis()
        # Over the names too, which take a third of the width.
        figure.suptitle(self.title, x=0.01, ha="left", size="large")
        return _save(figure, directory / f"{self.name}.svg")


@dataclass(frozen=True)
class Lines:
    """Curves over a logarithmic axis, ours in another colour."""

    name: str
    title: str
    across: str
    up: str
    curves: Mapping[str, Sequence[tuple[float, float]]]

    def write(self, directory: Path) -> Path:
        """One curve for each."""
        figure = Figure(figsize=(7, 3.6), layout="constrained")
        axes = figure.subplots()
        for number, (name, points) in enumerate(self.curves.items()):
            ours = name.startswith("scrapy-bloom")
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                label=name,
                color=_COLOUR if ours else _OTHERS,
                linestyle=("-", "--", ":", "-.")[number % 4],
                marker=".",
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(self.across)
        axes.set_ylabel(self.up)
        axes.legend(frameon=False)
        axes.set_title(self.title, loc="left")
        return _save(figure, directory / f"{self.name}.svg")


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    # Its lines end in blanks.
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    return path
