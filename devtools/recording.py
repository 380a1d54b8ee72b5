"""Record a crawl of three workers, of which one is killed, and the demo: `make recording`.

The film at docs/recording.svg shows the output of real commands, on a server and a site of this process's own. It is an
SVG that plays by itself: frames side by side, moved by CSS.
"""

import argparse
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from devtools.crawl_process import ROOT, CrawlProcess, Job
from devtools.demo import PROJECT, environment
from devtools.servers import running
from devtools.site import MadeUpLinks, serving
from tests.support.waiting import until

_PAGES, _LINKS, _WORKERS = 1_500, 16, 3
_KILL_SHARE = 0.4
_PAGE_SECONDS = 0.04
_FRAME_SECONDS, _LAST_SECONDS = 1.0, 5.0
_SETTINGS = {
    "BLOOMFILTER_CAPACITY": 2_000,
    "BLOOMFILTER_LEASE": 6,
    "CONCURRENT_REQUESTS": 4,
    "DOWNLOAD_DELAY": 0,
    "ROBOTSTXT_OBEY": False,
}
INFO = ("scrapy", "bloom", "info", "resumed")
_COLUMNS, _ROWS = 104, 20
_CHARACTER, _LINE = 8.4, 18
_MARGIN, _BAR = 14, 34
_WIDTH = round(_COLUMNS * _CHARACTER + 2 * _MARGIN)
_HEIGHT = _ROWS * _LINE + _BAR + 2 * _MARGIN
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


class Frame(NamedTuple):
    """A screen with a caption over it, shown for some seconds; the first line is the command."""

    seconds: float
    caption: str
    lines: Sequence[str]


def main(arguments: Sequence[str] | None = None) -> None:
    """Record and write the film."""
    parser = argparse.ArgumentParser(prog="python -m devtools.recording", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "recording.svg", help="%(default)s")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the crawl's processes end, too
    demo = ("$ make demo", *_output(["devtools.demo"], ROOT, {}))
    frames = [*_crawl(), Frame(_LAST_SECONDS, "make demo: round trips and memory beside a SET", demo)]
    options.output.write_text(draw(frames, "A killed worker's requests go to the others, and no page is missed"))
    print(f"{options.output}: {len(frames)} frames, {sum(frame.seconds for frame in frames):.0f} s")


def _output(command: Sequence[str], directory: Path, variables: Mapping[str, str]) -> list[str]:
    """Return the lines that a module prints, without this machine's name, the columns in place."""
    path = {"PYTHONPATH": str(ROOT), **variables}
    ended = subprocess.run(
        [sys.executable, "-m", *command], cwd=directory, env=path, check=True, capture_output=True, text=True
    )
    worker = re.compile(rf"^{re.escape(socket.gethostname())}(-\d+-\w+) +", re.MULTILINE)
    return worker.sub(lambda found: f"host{found[1]}".ljust(len(found[0])), ended.stdout).splitlines()


def _crawl() -> Iterator[Frame]:
    """Film `info` beside a crawl, one of whose workers is killed."""
    with ExitStack() as stack:
        server = stack.enter_context(running("valkey", "--appendonly", "yes"))
        site = stack.enter_context(serving(MadeUpLinks(_PAGES, _LINKS)))
        site.before = lambda _: time.sleep(_PAGE_SECONDS)
        directory = Path(stack.enter_context(TemporaryDirectory()))
        variables = environment(server.url)
        job = Job(("crawl", "resumed"), {"start_url": f"{site.url}/"}, _SETTINGS, variables)
        workers = [CrawlProcess(f"worker-{number}", job, directory) for number in range(_WORKERS)]
        for worker in workers:
            stack.callback(worker.kill)
        first, *others = workers
        until(lambda: site.paths)
        caption, prompt = f"{_WORKERS} workers crawl a site of {_PAGES:,} pages", f"$ {' '.join(INFO)}"
        while any(worker.process.poll() is None for worker in others):
            yield Frame(_FRAME_SECONDS, caption, (prompt, *_output(INFO, PROJECT, variables)))
            if first.process.poll() is None and len(site.paths) > _KILL_SHARE * _PAGES:
                first.kill()
                caption = "kill -9 of one worker: its leased requests go to the others"
        fetched = set(site.paths)
        twice, missed = len(site.paths) - len(fetched), _PAGES - len(fetched)
        caption = f"Finished: {len(fetched):,} pages fetched, {missed} missed, {twice} fetched twice"
        yield Frame(_LAST_SECONDS, caption, (prompt, *_output(INFO, PROJECT, variables)))


def draw(frames: Sequence[Frame], title: str) -> str:
    """Return the SVG of frames that play again and again."""
    length = sum(frame.seconds for frame in frames)
    shown, keys = 0.0, []
    for number, frame in enumerate(frames):
        keys.append(f"{round(100 * shown / length, 3):g}% {{ transform: translateX({-number * _WIDTH}px); }}")
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
    for number, line in enumerate(frame.lines[:_ROWS]):
        if line:
            name = "" if number else ' class="command"'
            top = _BAR + _MARGIN + (number + 1) * _LINE - 5
            rows.append(f'<text{name} x="{left + _MARGIN}" y="{top}">{escape(line)}</text>')
    return "\n".join(rows)


if __name__ == "__main__":
    main()
