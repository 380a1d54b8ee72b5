"""Simulate crawls: `python -m tests.simulation [--kind K --seed N]`."""

import argparse
import os
import secrets
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator

from tests.simulation.crawl import Outcome, simulate
from tests.simulation.plan import KINDS, plan_for
from tests.simulation.shrink import shrink
from tests.simulation.story import story, whole

# Failing crawls whose story is printed.
_MAX_STORIES = 3


def main() -> int:
    """Run crawls; return 1 if one has a problem."""
    options = _parse()
    warnings.simplefilter("ignore")  # of scrapy-redis
    if options.seed is not None:
        return _show(simulate(plan_for(options.kind[0], options.seed)), options)
    return _run(options)


def _show(outcome: Outcome, options: argparse.Namespace) -> int:
    """Print the story of one crawl."""
    if outcome.problems and options.shrink:
        outcome = shrink(outcome)
    print(outcome.plan)
    print(*(whole(outcome) if options.verbose else story(outcome)), sep="\n")
    for problem in outcome.problems:
        print(f"{problem.kind}: {problem.text}\n{problem.details}")
    if not outcome.problems:
        print("no problem")
    return int(bool(outcome.problems))


def _run(options: argparse.Namespace) -> int:
    """Run many crawls, and print the statistics."""
    begin, failed = time.monotonic(), []
    crawls, faults, problems = Counter[str](), Counter[str](), Counter[str]()
    fetches: Counter[int] = Counter()
    virtual = 0.0
    for kind, seed in _crawls(options, begin):
        outcome = simulate(plan_for(kind, seed))
        crawls[kind] += 1
        faults.update(fault.kind for fault in outcome.plan.faults)
        fetches.update(outcome.fetches.values())
        virtual += outcome.seconds
        if outcome.problems:
            problems.update(outcome.kinds)
            failed.append(outcome)
            print(f"--kind {kind} --seed {seed}: {', '.join(sorted(outcome.kinds))}", flush=True)
    took = time.monotonic() - begin
    number = crawls.total()
    print(f"{number:,} crawls, {number / took:.0f} a second, {virtual / took:.0f} times real time")
    print("crawls:", _counted(crawls))
    print("faults:", _counted(faults))
    pages = max(fetches.total(), 1)
    shares = ", ".join(f"{times}: {count / pages:.3%}" for times, count in sorted(fetches.items()))
    print(f"fetches of {pages:,} pages: {shares}")
    print("problems:", _counted(problems) or "none")
    for outcome in failed[:_MAX_STORIES]:
        print(f"\nThe story of --kind {outcome.plan.kind} --seed {outcome.plan.seed}, reduced:")
        print(*story(shrink(outcome)), sep="\n")
    return int(bool(failed))


def _crawls(options: argparse.Namespace, begin: float) -> Iterator[tuple[str, int]]:
    """Yield kinds in turn, with consecutive seeds, until the number or the time is reached."""
    seed, number = options.first, 0
    while True:
        for kind in options.kind or KINDS:
            is_over = number >= options.count if options.count else time.monotonic() - begin >= options.seconds
            if is_over:
                return
            number += 1
            yield kind, seed
        seed += 1


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counter.items()))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", type=lambda text: text.split(","), help=f"kinds of crawls, of {', '.join(KINDS)}")
    parser.add_argument("--seed", type=int, help="run this crawl of the kind, and print its story")
    parser.add_argument("--verbose", action="store_true", help="with --seed: print the whole log")
    parser.add_argument("--shrink", action="store_true", help="with --seed: first shrink a failing crawl")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds to run new crawls")
    parser.add_argument("--count", type=int, default=0, help="number of crawls to run, instead of --seconds")
    parser.add_argument(
        "--first", type=lambda text: int(text, 0), default=secrets.randbelow(1 << 32), help="the first seed"
    )
    options = parser.parse_args()
    unknown = set(options.kind or ()).difference(KINDS)
    if unknown:
        parser.error(f"--kind: {', '.join(sorted(unknown))} must be of {', '.join(KINDS)}")
    if options.seed is not None and len(options.kind or ()) != 1:
        parser.error("--seed needs one --kind")
    return options


if __name__ == "__main__":
    # The order of a set of strings depends on this number alone.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])  # noqa: S606
    sys.exit(main())
