"""Draw the frames of a film as an SVG that plays by itself: frames side by side, moved by CSS. Knows no crawls."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from devtools.recording.terminal import COLUMNS, ROWS

_CHARACTER, _LINE = 8.4, 18
_MARGIN, _BAR = 14, 34
_WIDTH = round(COLUMNS * _CHARACTER + 2 * _MARGIN)
_HEIGHT = ROWS * _LINE + _BAR + 2 * _MARGIN
_PERCENT_DIGITS = 3
_STYLE = "\n".join(
    [
        ".film { animation: play %(seconds)gs steps(1, end) infinite; }",
        'text { font: 14px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre; }',
        "text { fill: #d6dbe5; }",
        ".command { fill: #8fd18f; }",
        ".caption { font-weight: bold; fill: #f0c674; }",
        "@keyframes play { %(keys)s }",
        "@media (prefers-reduced-motion: reduce) {",
        ".film { animation: none; transform: translateX(%(last)gpx); }",
        "}",
    ]
)


@dataclass(frozen=True)
class Frame:
    """A screen with a caption over it, shown for some seconds."""

    seconds: float
    caption: str
    lines: tuple[str, ...]


def draw(frames: Sequence[Frame], title: str) -> str:
    """Return the SVG of frames that play for ever."""
    length = sum(frame.seconds for frame in frames)
    shown, keys = 0.0, []
    for number, frame in enumerate(frames):
        percent = round(100 * shown / length, _PERCENT_DIGITS)
        keys.append(f"{percent:g}% {{ transform: translateX({-number * _WIDTH}px); }}")
        shown += frame.seconds
    last = -(len(frames) - 1) * _WIDTH
    keys.append(f"100% {{ transform: translateX({last}px); }}")
    style = _STYLE % {"seconds": round(length, 1), "keys": "\n".join(keys), "last": last}
    drawn = "\n".join(_draw_frame(frame, number * _WIDTH) for number, frame in enumerate(frames))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n"
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="#1d2129"/>\n'
        f'<rect width="{_WIDTH}" height="{_BAR}" rx="8" fill="#2b313d"/>\n'
        f'<g class="film">\n{drawn}\n</g>\n</svg>\n'
    )


def _draw_frame(frame: Frame, left: int) -> str:
    rows = [f'<text class="caption" x="{left + _MARGIN}" y="{_BAR - 12}">{escape(frame.caption)}</text>']
    for number, line in enumerate(frame.lines):
        if line:
            name = ' class="command"' if line.startswith("$ ") else ""
            top = _BAR + _MARGIN + (number + 1) * _LINE - 5
            rows.append(f'<text{name} x="{left + _MARGIN}" y="{top}">{escape(line)}</text>')
    return "\n".join(rows)
