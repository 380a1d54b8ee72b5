"""Simulate crawls: `python -m tests.simulation --seconds 60`, or one by its seed."""

import argparse
import os
import sys
import time
from collections import Counter, defaultdict

from tests.simulation.crawl import simulate
from tests.simulation.plan import KINDS, plan_for


def main() -> int:
    """Run crawls, and return 1 where one has a problem."""
    options = _parse()
    if options.seed is not None:
        outcome = simulate(plan_for(options.kind or "mixed", options.seed))
        if options.verbose:
            print(outcome.plan)
            for at, who, text in outcome.log:
                print(f"{at:9.3f} {who:>6} {text}")
        for problem in outcome.problems:
            print(f"PROBLEM {problem.kind}: {problem.text}\n{problem.details}")
        return int(bool(outcome.problems))
    failed = False
    kinds = options.kind.split(",") if options.kind else KINDS
    for kind in kinds:
        begin, number, virtual = time.monotonic(), 0, 0.0
        found: dict[str, list[int]] = defaultdict(list)
        fetches: Counter[int] = Counter()
        for seed in range(options.first, options.first + options.count):
            outcome = simulate(plan_for(kind, seed))
            number += 1
            virtual += outcome.seconds
            fetches.update(outcome.fetches.values())
            for name in outcome.kinds:
                found[name].append(seed)
        took = time.monotonic() - begin
        told = "; ".join(f"{name}: {len(seeds)} {seeds[:8]}" for name, seeds in sorted(found.items())) or "nothing"
        print(
            f"{kind:9} {number} crawls, {number / took:.1f}/s; {told}; fetches {dict(sorted(fetches.items()))}",
            flush=True,
        )
        failed = failed or bool(found)
    return int(failed)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("-v", "--verbose", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])  # noqa: S606
    sys.exit(main())
