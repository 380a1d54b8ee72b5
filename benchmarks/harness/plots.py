"""Plots of results as small, reproducible SVG files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

DIRECTORY = Path(__file__).parents[2] / "docs"
_COLOUR, _OTHERS = "#b5372b", "#7a8b99"
_GREYS, _REDS = ("#b9c3cb", "#5c6b78"), ("#e3a49c", _COLOUR)
# Nothing in the file changes between runs; text stays text.
_STYLE: dict[Any, Any] = {"svg.hashsalt": "scrapy-bloom", "svg.fonttype": "none", "font.size": 9}


class Plot(Protocol):
    """A plot that writes itself to a file."""

    @property
    def name(self) -> str:
        """The name of the file, without its suffix."""

    @property
    def title(self) -> str:
        """The caption."""

    def write(self, directory: Path) -> Path:
        """Write `name`.svg and return its path."""


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
class Groups:
    """Bars side by side from 0; each name in `values` has one value per group."""

    name: str
    title: str
    up: str
    groups: Sequence[str]
    values: Mapping[str, Sequence[float]]

    def write(self, directory: Path) -> Path:
        """Draw each name in its own color, the last of ours in the strongest."""
        figure = _figure(7.5, 3.8)
        axes = figure.subplots()
        width = 0.8 / len(self.values)
        ours = sum(name.startswith("scrapy-bloom") for name in self.values)
        shades = [*_GREYS[: len(self.values) - ours], *_REDS[-ours:]]
        for number, ((name, heights), shade) in enumerate(zip(self.values.items(), shades, strict=True)):
            places = [group + (number + 0.5) * width - 0.4 for group in range(len(self.groups))]
            bars = axes.bar(places, heights, width * 0.94, label=name, color=shade)
            axes.bar_label(bars, labels=[_times(height) for height in heights], padding=2, fontsize=8.5)
        axes.axhline(1, color=_GREYS[0], linewidth=0.8, linestyle=":")
        axes.set_xticks(range(len(self.groups)), self.groups)
        axes.tick_params(axis="x", length=0)
        axes.set_ylabel(self.up)
        axes.margins(y=0.1)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="upper left")
        figure.suptitle(self.title, x=0.01, ha="left", size="large")
        return _save(figure, directory / f"{self.name}.svg")


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


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
