"""Measure the costs of scrapy-bloom, and of the filters and schedulers it replaces.

    python -m benchmarks                    all parts
    python -m benchmarks streams memory     some of them
    python -m benchmarks crawls --html /usr/share/doc/python3-doc/html
    python -m benchmarks turns turns_crawls this package and the one before queue and filter changed in one step
    python -m benchmarks --write            also write docs/*.svg, and these parts of benchmarks/RESULTS.md

Tables go to standard output, progress to standard error. Every part starts its own servers on free ports of this
machine, and stops them. Contenders run in turns, so that a busy machine slows all of them alike: trust the ratios,
which come first, more than the seconds. Valkey comes with the `embedded` extra. If Debian's redis-server is installed,
it is measured too; parts with one server prefer it.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

from benchmarks.harness import report, results, versions
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import DIRECTORY, Plot
from benchmarks.suites import (
    crawls,
    distance,
    field,
    fill,
    importing,
    memory,
    pauses,
    promise,
    repeats,
    server_cpu,
    steps,
    turns,
    turns_crawls,
)

RESULTS = Path(__file__).with_name("RESULTS.md")
PARTS: dict[str, ModuleType] = {
    "streams": repeats,
    "crawls": crawls,
    "distance": distance,
    "server": server_cpu,
    "memory": memory,
    "micro": steps,
    "promise": promise,
    "importing": importing,
    "fill": fill,
    "pauses": pauses,
    "field": field,
    "turns": turns,
    "turns_crawls": turns_crawls,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen parts, or all."""
    # SIGTERM stops the servers too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _options(arguments)
    asked = Asked(tuple(options.html), options.large)
    started = time.monotonic()
    command = " ".join(["python -m benchmarks", *(sys.argv[1:] if arguments is None else arguments)])
    printed = f"Printed by `{command}` on {datetime.now(UTC):%Y-%m-%d}.\n\n{versions.text()}"
    report.line(f"# Results\n\n{printed}")
    for name in options.part or PARTS:
        report.heading(name, PARTS[name].__doc__ or "")
        if options.part:
            report.line(f"\n{printed}")
        report.say(f"{name} …")
        part_started = time.monotonic()
        drawn = PARTS[name].run(asked)
        for plot in drawn if options.write else ():
            report.line(f"\n![{plot.title}](../docs/{plot.name}.svg)")
        report.say(f"{name}: {time.monotonic() - part_started:.0f} s")
        report.line(f"\nThis part took {time.monotonic() - part_started:.0f} s.")
        if options.write:
            _write(drawn, are_all=not options.part)
    report.say(f"All of this took {time.monotonic() - started:.0f} s.")
    return 0


def _write(plots: Sequence[Plot], *, are_all: bool) -> None:
    """Write the plots, and replace all results, or the parts measured in this run."""
    DIRECTORY.mkdir(exist_ok=True)
    for plot in plots:
        report.say(f"wrote {plot.write(DIRECTORY)}")
    text = (
        report.text() if are_all or not RESULTS.exists() else results.merged(RESULTS.read_text("utf-8"), report.text())
    )
    RESULTS.write_text(text, encoding="utf-8")
    report.say(f"wrote {RESULTS}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    width = max(map(len, PARTS))
    parts = "\n".join(f"  {name:<{width}}  {_sentence(part)}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"parts:\n{parts}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", nargs="*", metavar="part", help="the parts to run (default: all)")
    parser.add_argument("--html", type=Path, action="append", default=[], help="crawl this directory of HTML too")
    parser.add_argument("--large", action="store_true", help="measure 10^8 URLs too, in half an hour")
    parser.add_argument("--write", action="store_true", help="write benchmarks/RESULTS.md and docs/*.svg")
    options = parser.parse_args(arguments)
    for name in options.part:
        if name not in PARTS:
            parser.error(f"{name}: there is no such part; there are {', '.join(PARTS)}")
    for path in options.html:
        if not (path / "index.html").is_file():
            parser.error(f"--html {path}: there is no index.html in it")
    return options


def _sentence(part: ModuleType) -> str:
    return (part.__doc__ or "").partition("\n")[0]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        report.say("Interrupted.")
        sys.exit(130)
