"""What scrapy-bloom costs and what it keeps of its promises, measured beside what it replaces.

    python -m benchmarks                    all parts, in about eight minutes on two cores
    python -m benchmarks streams memory     some of them
    python -m benchmarks > tables.txt       tables go to standard output, progress to standard error

Every part starts servers of its own on free ports of this machine, and ends them. What is compared is run in turns, so
that a busy machine slows down all of it alike: trust the ratios, which come first, more than the seconds. Valkey comes
with the `bench` extra; Debian's redis-server is measured too where it is installed.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from types import ModuleType

from benchmarks import growth, hashing, memory, server, streams, versions
from benchmarks.report import heading, say

PARTS: dict[str, ModuleType] = {
    "streams": streams,
    "server": server,
    "memory": memory,
    "growth": growth,
    "hashing": hashing,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts that were asked for, or all."""
    # Whatever ends this ends the servers too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    chosen = _chosen(arguments)
    started = time.monotonic()
    print(versions.text())
    for name in chosen:
        heading(name, _sentence(PARTS[name]))
        say(f"{name} …")
        part_started = time.monotonic()
        PARTS[name].run()
        say(f"{name}: {time.monotonic() - part_started:.0f} s")
    print(f"\nAll of this took {time.monotonic() - started:.0f} s.")
    return 0


def _chosen(arguments: Sequence[str] | None) -> list[str]:
    """The parts that are named on the command line, or all."""
    width = max(map(len, PARTS))
    parts = "\n".join(f"  {name:<{width}}  {_sentence(part)}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"parts:\n{parts}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("part", nargs="*", metavar="part", help="which to run (all of them)")
    chosen: list[str] = parser.parse_args(arguments).part or list(PARTS)
    for name in chosen:
        if name not in PARTS:
            parser.error(f"{name}: there is no such part; there are {', '.join(PARTS)}")
    return chosen


def _sentence(part: ModuleType) -> str:
    return (part.__doc__ or "").partition("\n")[0]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("Interrupted.")
        sys.exit(130)
