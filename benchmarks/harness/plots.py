"""Plots of results as small, reproducible SVG files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parents[2] / "docs"
_COLOUR, _OTHERS = "#b5372b", "#7a8b99"
# Nothing in the file changes between runs; text stays text.
_STYLE: dict[Any, Any] = {"svg.hashsalt": "scrapy-bloom", "svg.fonttype": "none", "font.size": 9}


@dataclass(frozen=True)
class Bars:
    """Ratios on a logarithmic axis, with ours highlighted."""

    name: str
    title: str
    values: Mapping[str, float]

    def write(self, directory: Path) -> Path:
        """Draw one bar per value, the first on top."""
        figure = _figure(7, 0.6 + 0.32 * len(self.values))
        axes = figure.subplots()
        colours = [_COLOUR if name.startswith("scrapy-bloom") else _OTHERS for name in self.values]
        bars = axes.barh(list(self.values), list(self.values.values()), color=colours)
        axes.bar_label(bars, labels=[f"{value:.2f}" for value in self.values.values()], padding=3)
        axes.set_xscale("log")
        axes.margins(x=0.12)
        axes.invert_yaxis()
        # The title spans the labels too, which take a third of the width.
        figure.suptitle(self.title, x=0.01, ha="left", size="large")
        return _save(figure, directory / f"{self.name}.svg")


@dataclass(frozen=True)
class Lines:
    """Curves over a logarithmic axis, with ours highlighted."""

    name: str
    title: str
    across: str
    up: str
    curves: Mapping[str, Sequence[tuple[float, float]]]

    def write(self, directory: Path) -> Path:
        """Draw the curves."""
        figure = _figure(7, 3.6)
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


Plot = Bars | Lines


def _figure(width: float, height: float) -> Any:
    # The tests import the benchmarks without matplotlib.
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.rcParams.update(_STYLE)
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    # matplotlib leaves trailing blanks.
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    return path
