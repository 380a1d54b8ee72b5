"""Record a crawl of three workers, of which one is killed, and the demo: `make recording`.

The film at docs/recording.svg shows real commands on a server and a site of this process's own.
"""

import argparse
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from devtools.crawl_process import ROOT, CrawlProcess, Job
from devtools.demo.crawl import PROJECT
from devtools.recording.film import Frame, draw
from devtools.recording.terminal import ROWS, Screen, screens
from devtools.servers import running
from devtools.site import MadeUpLinks, serving
from devtools.waiting import until

_PAGES, _LINKS, _WORKERS = 1_500, 16, 3
_KILL_SHARE = 0.4
_PAGE_SECONDS = 0.04
_MAX_PAUSE_SECONDS, _LAST_SECONDS = 2.0, 5.0
_DEMO_FRAMES, _DEMO_SECONDS = 12, 0.4
"""The demo's progress is shortened to so many frames."""
_SETTINGS = {
    "BLOOMFILTER_CAPACITY": 2_000,
    "BLOOMFILTER_LEASE": 6,
    "CONCURRENT_REQUESTS": 4,
    "DOWNLOAD_DELAY": 0,
    "ROBOTSTXT_OBEY": False,
}
_WATCH = ("scrapy", "bloom", "info", "resumed", "--watch", "1")
_DEMO = ("devtools.demo",)


def main(arguments: Sequence[str] | None = None) -> None:
    """Record and write the film."""
    parser = argparse.ArgumentParser(prog="python -m devtools.recording", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "recording.svg", help="%(default)s")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the crawl's processes end, too
    frames = [*_crawl(), *_demo()]
    options.output.write_text(draw(frames, "A killed worker's requests go to the others, and no page is missed"))
    print(f"{options.output}: {len(frames)} frames, {sum(frame.seconds for frame in frames):.0f} s")


def _crawl() -> Iterator[Frame]:
    """Film `info --watch` beside a crawl, one of whose workers is killed."""
    with ExitStack() as stack:
        server = stack.enter_context(running("valkey", "--appendonly", "yes"))
        site = stack.enter_context(serving(MadeUpLinks(_PAGES, _LINKS)))
        site.before = lambda _: time.sleep(_PAGE_SECONDS)
        directory = Path(stack.enter_context(TemporaryDirectory()))
        environment = {
            "SCRAPY_SETTINGS_MODULE": "crawler.settings",
            "REDIS_URL": server.url,
            "PYTHONPATH": f"{ROOT}:{PROJECT}",
        }
        job = Job(("crawl", "resumed"), {"start_url": f"{site.url}/"}, _SETTINGS, environment)
        workers = [CrawlProcess(f"worker-{number}", job, directory, keeps_ledger=False) for number in range(_WORKERS)]
        for worker in workers:
            stack.callback(worker.kill)
        first, *others = workers
        command = [sys.executable, "-m", *_WATCH]
        until(lambda: site.paths)

        def is_over() -> bool:
            return all(worker.process.poll() is not None for worker in others)

        def captioned() -> Iterator[tuple[str, Screen]]:
            caption = f"{_WORKERS} workers crawl a site of {_PAGES:,} pages"
            for screen in screens(command, PROJECT, environment, is_over):
                yield caption, screen
                if first.process.poll() is None and len(site.paths) > _KILL_SHARE * _PAGES:
                    first.kill()
                    caption = "kill -9 of one worker: its leased requests go to the others"

        frames = list(_timed(captioned(), _prompt(_WATCH)))
        yield from frames[:-1]
        fetched = site.paths
        twice, missed = len(fetched) - len(set(fetched)), _PAGES - len(set(fetched))
        caption = f"Finished: {len(set(fetched)):,} pages fetched, {missed} missed, {twice} fetched twice"
        yield replace(frames[-1], caption=caption, seconds=_LAST_SECONDS)


def _demo() -> Iterator[Frame]:
    """Film the demo, its progress in brief."""
    shown = screens([sys.executable, "-m", *_DEMO], ROOT, {"PYTHONPATH": str(ROOT)})
    caption = "make demo: round trips and memory beside a SET"
    frames = list(_timed(((caption, screen) for screen in shown), "$ make demo"))
    for frame in frames[: -1 : len(frames) // _DEMO_FRAMES + 1]:
        yield replace(frame, seconds=_DEMO_SECONDS)
    yield replace(frames[-1], seconds=_LAST_SECONDS)


def _prompt(command: Sequence[str]) -> str:
    return f"$ {' '.join(command)}"


def _timed(captioned: Iterator[tuple[str, Screen]], prompt: str) -> Iterator[Frame]:
    """Yield the frames of a command's screens, each shown until the next, long pauses cut."""
    last, start = Frame(0, "", (prompt,)), 0.0
    for caption, screen in captioned:
        seconds = min(screen.seconds - start, _MAX_PAUSE_SECONDS)
        yield replace(last, seconds=seconds, caption=last.caption or caption)
        start = screen.seconds
        last = Frame(0, caption, (prompt, *map(_without_host, screen.lines))[:ROWS])
    yield last


def _without_host(line: str) -> str:
    """Return a line without this machine's name, its columns in place."""
    worker = re.compile(rf"^{re.escape(socket.gethostname())}(-\d+-\w+) +")
    return worker.sub(lambda found: f"host{found[1]}".ljust(len(found[0])), line)


if __name__ == "__main__":
    main()
