"""`python -m devtools.soak --seconds 600 --seed 1`: crawls with faults; the exit code is 1 if one failed.

`--seed N --first K --crawls 1` runs crawl K of a seed again, with the same faults at the same pages.
"""

import argparse
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from devtools.soak import plan
from devtools.soak.crawl import SoakCrawl
from devtools.soak.plan import Kind
from devtools.soak.report import Report
from devtools.soak.servers import Servers, serving


def main(arguments: Sequence[str] | None = None) -> int:
    """Crawl until the time has run out, and print the report."""
    options = _options(arguments)
    report = Report()
    end = time.monotonic() + options.seconds
    last = options.first + options.crawls if options.crawls else None
    numbers = itertools.takewhile(lambda number: last is None or number < last, itertools.count(options.first))
    with serving() as servers:
        for number in itertools.takewhile(lambda _: time.monotonic() < end, numbers):
            planned = plan.draw(options.seed, number, options.faults, options.concurrency, options.persist)
            _crawl(planned, servers, report)
    print(f"\n{'seed':<24}{options.seed}\n{report}")
    return 0 if report.is_well else 1


def _crawl(planned: plan.Plan, servers: Servers, report: Report) -> None:
    """Run a crawl, and keep its directory if it failed."""
    directory = Path(tempfile.mkdtemp(prefix=f"soak-{planned.number}-"))
    outcome = SoakCrawl(planned, servers, directory).run()
    report.outcomes.append(outcome)
    print(outcome, flush=True)
    if outcome.is_well:
        shutil.rmtree(directory)
    else:
        report.kept.append(directory)
        print(f"    logs are in {directory}", flush=True)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m devtools.soak", description="Crawl with faults at random moments.")
    parser.add_argument("--seconds", type=float, default=600, help="seconds after which no crawl begins (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first crawl (%(default)s)")
    parser.add_argument("--crawls", type=int, help="maximum number of crawls (unlimited)")
    parser.add_argument("--concurrency", type=int, help="CONCURRENT_REQUESTS of each worker (drawn)")
    parser.add_argument(
        "--faults", type=Kind, nargs="+", choices=list(Kind), default=list(Kind), help="kinds of faults (all)"
    )
    parser.add_argument("--persist", action=argparse.BooleanOptionalAction, help="SCHEDULER_PERSIST (drawn)")
    options = parser.parse_args(arguments)
    if options.persist is False and set(options.faults) == {Kind.SIGTERM}:
        parser.error("--no-persist: a worker that gets a SIGTERM deletes the queue; name another kind of fault")
    return options


if __name__ == "__main__":
    sys.exit(main())
