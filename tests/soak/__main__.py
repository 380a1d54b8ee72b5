"""`python -m tests.soak --seconds 600 --seed 1`: crawls with faults; the exit code is 1 if one failed.

`--seed N --first K --crawls 1` runs crawl K of a seed again, with the same faults at the same pages.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.soak import plan
from tests.soak.crawl import Outcome, SoakCrawl
from tests.soak.plan import Kind
from tests.soak.servers import serving


def main(arguments: Sequence[str] | None = None) -> int:
    """Crawl until the time has run out, and print the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Crawl with faults at random moments.")
    parser.add_argument("--seconds", type=float, default=600, help="seconds after which no crawl begins (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first crawl (%(default)s)")
    parser.add_argument("--crawls", type=int, default=sys.maxsize, help="maximum number of crawls (unlimited)")
    parser.add_argument(
        "--faults", type=Kind, nargs="+", choices=list(Kind), default=list(Kind), help="kinds of faults (all)"
    )
    options = parser.parse_args(arguments)
    end = time.monotonic() + options.seconds
    outcomes: list[Outcome] = []
    with serving() as servers:
        while len(outcomes) < options.crawls and time.monotonic() < end:
            planned = plan.draw(options.seed, options.first + len(outcomes), options.faults)
            directory = Path(tempfile.mkdtemp(prefix=f"soak-{planned.number}-"))
            outcomes.append(SoakCrawl(planned, servers, directory).run())
            print(outcomes[-1], flush=True)
            if any(outcomes[-1].complaints):
                print(f"    logs are in {directory}", flush=True)
            else:
                shutil.rmtree(directory)
    print(f"\n{'seed':<24}{options.seed}\n{report(outcomes)}")
    return 1 if not outcomes or any(any(outcome.complaints) for outcome in outcomes) else 0


def report(outcomes: Sequence[Outcome]) -> str:
    """Return the sum of the outcomes."""
    happened: Counter[Kind] = sum((outcome.happened for outcome in outcomes), Counter())
    rows = {
        "crawls": len(outcomes),
        "crawls not well": sum(any(outcome.complaints) for outcome in outcomes),
        "pages": sum(outcome.plan.pages for outcome in outcomes),
        "pages missed": sum(len(outcome.missed) for outcome in outcomes),
        "pages fetched twice": sum(outcome.twice for outcome in outcomes),
        "faults": ", ".join(f"{kind} {times}" for kind, times in sorted(happened.items())) or "none",
    }
    return "\n".join(f"{name:<24}{value}" for name, value in rows.items())


if __name__ == "__main__":
    sys.exit(main())
