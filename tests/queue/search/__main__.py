"""Search scenarios whose names contain the arguments, with a trace of each broken promise."""

import argparse
import sys

from tests.queue.search import TOO_MANY, search
from tests.queue.search.scenarios import SCENARIOS


def main() -> int:
    """Search, and print a line for each scenario; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[""])
    parser.add_argument("--limit", type=int, default=3_000_000, help="states of a scenario to visit at most")
    options = parser.parse_args()
    broken = 0
    for name, scenario in SCENARIOS.items():
        if any(part in name for part in options.names):
            found, most = search(scenario, limit=options.limit)
            print(f"{name:45} {found.states:9,} states, at most {most} fetches: {found.violation}")
            print("".join(f"    {line}\n" for line in found.trace), end="", flush=True)
            broken |= found.violation not in (None, TOO_MANY)
    return broken


if __name__ == "__main__":
    sys.exit(main())
