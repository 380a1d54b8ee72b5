"""Plots of results as small, reproducible SVG files, in English and in Chinese.

Bars begin at 0. Values that differ by powers of ten are points on a logarithmic axis, which says so.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parents[2] / "docs"
_OURS, _OTHERS = "#b5372b", "#5d6d7a"
# Nothing in the file changes between runs; text stays text.
_STYLE: dict[Any, Any] = {"svg.hashsalt": "scrapy-bloom", "svg.fonttype": "none", "font.size": 9}
_INCH = 72
_ROW = 0.26
_CHINESE = {
    "Bytes for each of 1,000,000 URLs": "1,000,000 个 URL 时，每个 URL 占用的字节数",
    "Seconds of a crawl by one worker": "一个工作进程的抓取耗时（秒）",
    "Time for the links of a site, Scrapy in memory = 1": "处理一个网站的链接所用的时间，内存中的 Scrapy = 1",
    "Time of a crawl by one worker, Scrapy without Redis = 1": "一个工作进程的抓取耗时，不用 Redis 的 Scrapy = 1",
    "Python documentation": "Python 文档",
    "PostgreSQL documentation": "PostgreSQL 文档",
    "RedisBloom, BF.ADD": "RedisBloom，BF.ADD",
    "Scrapy, in memory": "Scrapy，内存中",
    "Scrapy, no Redis": "Scrapy，不用 Redis",
    "all new": "全是新链接",
    "error rate 1e-6": "误判率 1e-6",
    "logarithmic": "对数刻度",
    "made-up site": "虚构的网站",
    "milliseconds added to a ping": "ping 增加的毫秒数",
    "postgresql-doc-15": "PostgreSQL 15 文档",
    "python3-doc": "Python 3 文档",
    "scrapy-bloom with BloomScheduler": "scrapy-bloom，BloomScheduler",
    "scrapy-bloom, BloomScheduler": "scrapy-bloom，BloomScheduler",
    "scrapy-bloom, scrapy-redis's Scheduler": "scrapy-bloom，scrapy-redis 的 Scheduler",
    "scrapy-redis with its Scheduler": "scrapy-redis，自带的 Scheduler",
    "scrapy-redis, SET": "scrapy-redis，SET",
    "theoretical minimum": "理论下限",
}
Words = Callable[[str], str]


@dataclass(frozen=True)
class Bars:
    """Values in one or more panels with the same rows; `is_log` makes them points on a logarithmic axis."""

    name: str
    title: str
    panels: Mapping[str, Mapping[str, float]]
    is_log: bool = False

    def draw(self, words: Words) -> Any:
        """Draw a row per value, the first on top."""
        rows = [*next(iter(self.panels.values()))]
        left = max(map(_width, map(words, rows))) + 0.1
        bottom = 0.45 if self.is_log else 0.25
        height = 0.55 + _ROW * len(rows) + bottom
        figure = _figure(8.2, height, words(self.title), left=left, right=0.1, top=0.55, bottom=bottom)
        colours = [_OURS if row.startswith("scrapy-bloom") else _OTHERS for row in rows]
        panels = figure.subplots(1, len(self.panels), sharey=True, squeeze=False, gridspec_kw={"wspace": 0.2})[0]
        for axes, (panel, values) in zip(panels, self.panels.items(), strict=True):
            axes.set_title(words(panel), loc="left", size="small")
            places, most = range(len(rows)), max(values.values())
            if self.is_log:
                axes.set_xscale("log")
                axes.scatter([*values.values()], places, color=colours, zorder=2)
                axes.axvline(1, color="#bbbbbb", linewidth=0.8, zorder=1)
                axes.set_xlim(min(values.values()) / 2, most * 12)
                axes.set_xlabel(words("logarithmic"), size="small", labelpad=1)
                axes.minorticks_off()
                axes.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
            else:
                axes.barh(places, [*values.values()], color=colours, height=0.7)
                axes.set_xlim(0, most * 1.25)
            for place, value in zip(places, values.values(), strict=True):
                text = f"{value:.2f}" if value < 10 else f"{value:.1f}"
                axes.annotate(text, (value, place), (5, 0), textcoords="offset points", va="center_baseline")
            axes.set_yticks(places, [*map(words, rows)])
            axes.tick_params(axis="y", length=0)
            axes.spines[["top", "right"]].set_visible(False)
        panels[0].set_ylim(len(rows) - 0.4, -0.6)
        return figure


@dataclass(frozen=True)
class Lines:
    """Curves over axes that begin at 0, each with its name at its end."""

    name: str
    title: str
    across: str
    curves: Mapping[str, Sequence[tuple[float, float]]]

    def draw(self, words: Words) -> Any:
        """Draw the curves."""
        right = max(map(_width, map(words, self.curves))) + 0.1
        figure = _figure(8.2, 3.2, words(self.title), left=0.4, right=right, top=0.4, bottom=0.45)
        axes = figure.subplots()
        top = max(y for points in self.curves.values() for _, y in points) * 1.08
        lowest = 0.0
        for number, (name, points) in enumerate(sorted(self.curves.items(), key=lambda each: each[1][-1][1])):
            colour = _OURS if name.startswith("scrapy-bloom") else _OTHERS
            style = ("-", "--", "-.", ":")[number % 4]
            axes.plot([x for x, _ in points], [y for _, y in points], style, color=colour, marker="o", markersize=4)
            # Names of ends close to each other stand above each other.
            end, lowest = points[-1], max(points[-1][1], lowest)
            axes.annotate(
                *(words(name), end, (8, (lowest - end[1]) / top * 2.35 * _INCH)),
                textcoords="offset points", va="center_baseline", color=colour, annotation_clip=False,
            )  # fmt: skip
            lowest += 0.07 * top
        axes.set_xlim(left=0)
        axes.set_ylim(0, top)
        axes.set_xlabel(words(self.across))
        axes.spines[["top", "right"]].set_visible(False)
        return figure


Plot = Bars | Lines


def write(plot: Plot, directory: Path) -> list[Path]:
    """Write a plot in both languages."""
    # matplotlib measures Chinese with a font without it; nothing here depends on that.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        return [
            _save(plot.draw(str), directory / f"{plot.name}.svg"),
            _save(plot.draw(lambda word: _CHINESE.get(word, word)), directory / f"{plot.name}.zh_CN.svg"),
        ]


def _width(text: str) -> float:
    """Return the inches of a text, the same on every machine: a Chinese character is as wide as it is high."""
    return sum(1.0 if ord(each) > 0x2E7F else 0.6 for each in text) * 9 / _INCH


def _figure(width: float, height: float, title: str, **margins: float) -> Any:
    """Return a figure with margins in inches and a title over its whole width."""
    # The tests import the benchmarks without matplotlib.
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.rcParams.update(_STYLE)
    figure = Figure(figsize=(width, height), facecolor="white")  # readable on a dark page, too
    figure.suptitle(title, x=0.1 / width, y=1 - 0.08 / height, ha="left", va="top", size="large")
    figure.subplots_adjust(
        left=margins["left"] / width,
        right=1 - margins["right"] / width,
        top=1 - margins["top"] / height,
        bottom=margins["bottom"] / height,
    )
    return figure


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    # matplotlib leaves trailing blanks.
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    return path
