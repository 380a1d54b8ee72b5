"""Measure the costs of scrapy-bloom, and of the filters and schedulers it replaces.

    python -m benchmarks                    all parts
    python -m benchmarks streams memory     some of them
    python -m benchmarks crawls --html /usr/share/doc/python3-doc/html
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
from importlib import import_module
from pathlib import Path

from benchmarks.harness import plots, report, results, versions
from benchmarks.harness.plots import DIRECTORY

RESULTS = Path(__file__).with_name("RESULTS.md")
PARTS = {
    name: import_module(f"benchmarks.suites.{name}")
    for name in ("streams", "crawls", "memory", "field", "path", "pace", "kills", "node")
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen parts, or all."""
    # SIGTERM stops the servers too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _options(arguments)
    command = " ".join(["python -m benchmarks", *(sys.argv[1:] if arguments is None else arguments)])
    printed = f"Printed by `{command}` on {datetime.now(UTC):%Y-%m-%d}.\n\n{versions.text()}"
    for name in options.part or PARTS:
        report.heading(name, f"{(PARTS[name].__doc__ or '').strip()}\n\n{printed}")
        report.say(f"{name} …")
        started = time.monotonic()
        drawn = PARTS[name].run(options.html)
        for plot in drawn if options.write else ():
            report.line(f"\n![{plot.title}](../docs/{plot.name}.svg)")
            report.say(f"wrote {', '.join(map(str, plots.write(plot, DIRECTORY)))}")
        report.say(f"{name}: {time.monotonic() - started:.0f} s")
        report.line(f"\nThis part took {time.monotonic() - started:.0f} s.")
        if options.write:
            RESULTS.write_text(results.merged(RESULTS.read_text("utf-8"), report.text(), PARTS), encoding="utf-8")
            report.say(f"wrote {RESULTS}")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    sentences = {name: (part.__doc__ or "").partition("\n")[0] for name, part in PARTS.items()}
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog="\n".join(["parts:", *(f"  {name:<10} {sentence}" for name, sentence in sentences.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", nargs="*", metavar="part", help="the parts to run (default: all)")
    parser.add_argument("--html", type=Path, action="append", default=[], help="crawl this directory of HTML too")
    parser.add_argument("--write", action="store_true", help="write benchmarks/RESULTS.md and docs/*.svg")
    options = parser.parse_args(arguments)
    for name in options.part:
        if name not in PARTS:
            parser.error(f"{name}: there is no such part; there are {', '.join(PARTS)}")
    for directory in options.html:
        if not (directory / "index.html").is_file():
            parser.error(f"--html {directory}: there is no index.html in it")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        report.say("Interrupted.")
        sys.exit(130)
