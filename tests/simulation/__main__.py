"""Simulate crawls: `python -m tests.simulation [--kind K --seed N | --mistake NAME]`."""

import argparse
import secrets
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import count, islice

from tests.queue.mistakes import SIMULATED
from tests.simulation.plan import KINDS, Plan, plan_for
from tests.simulation.world import Outcome, finders, simulate

# Failing crawls that are shrunk and told.
_MAX_STORIES = 3
# Courses tried for each smaller crawl: with fewer draws, chance takes another way.
_COURSES = 6
_PROCESSES = 2


def main() -> int:
    """Run crawls; return 1 if one has a problem."""
    options = _parse()
    if options.mistake:
        print("--seed", next(finders(SIMULATED[options.mistake], count())))
        return 0
    return _run(options) if options.seed is None else _show(options)


def _show(options: argparse.Namespace) -> int:
    """Print one crawl, the whole log or its story."""
    outcome = simulate(plan_for(options.kind[0], options.seed))
    if outcome.problems and options.shrink:
        outcome = _shrink(outcome)
    _tell(outcome, is_whole=options.verbose)
    return int(bool(outcome.problems))


def _tell(outcome: Outcome, *, is_whole: bool) -> None:
    print(outcome.plan)
    for at, who, text in outcome.log:
        if is_whole or not who.endswith(">"):
            print(f"{at:8.3f} {who:>5} {text}")
    print(*[f"{problem.kind}: {problem.text}" for problem in outcome.problems] or ["no problem"], sep="\n")


def _shrink(outcome: Outcome) -> Outcome:
    """Return the smallest crawl found with one of the problems of this one."""
    while smaller := next(_smaller(outcome), None):
        outcome = smaller
    return outcome


def _smaller(outcome: Outcome) -> Iterator[Outcome]:
    for plan in outcome.plan.smaller():
        for course in range(_COURSES):
            tried = simulate(replace(plan, course=course))
            if tried.kinds & outcome.kinds:
                yield tried


def _simulated(crawl: tuple[str, int]) -> Outcome:
    outcome = simulate(plan_for(*crawl))
    outcome.log = []
    return outcome


def _run(options: argparse.Namespace) -> int:
    """Run many crawls, and tell those with a problem."""
    begin, failed, number = time.monotonic(), [], 0
    with ProcessPoolExecutor(_PROCESSES) as pool:
        planned = _crawls(options, begin)
        while batch := list(islice(planned, 50)):
            for outcome in pool.map(_simulated, batch, chunksize=5):
                number += 1
                if outcome.problems:
                    failed.append(outcome.plan)
                    print(f"{_named(outcome.plan)}: {', '.join(sorted(outcome.kinds))}", flush=True)
    print(f"{number:,} crawls in {time.monotonic() - begin:.0f} s, {len(failed)} with a problem")
    for plan in failed[:_MAX_STORIES]:
        print(f"\nThe story of {_named(plan)}, reduced:")
        _tell(_shrink(simulate(plan)), is_whole=False)
    return int(bool(failed))


def _named(plan: Plan) -> str:
    return f"--kind {plan.kind} --seed {plan.seed}"


def _crawls(options: argparse.Namespace, begin: float) -> Iterator[tuple[str, int]]:
    """Yield kinds in turn, with consecutive seeds, until the number or the time is reached.

    A crawl in partitions takes several times as long, so each seed has those of one number of partitions.
    """
    seed, number = options.first, 0
    while True:
        left_out = ("/2", "/5")[seed % 2]
        for kind in options.kind or (kind for kind in KINDS if not kind.endswith(left_out)):
            if number >= options.count if options.count else time.monotonic() - begin >= options.seconds:
                return
            number += 1
            yield kind, seed
        seed += 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", type=lambda text: text.split(","), help=f"kinds of crawls, of {', '.join(KINDS)}")
    parser.add_argument("--seed", type=int, help="run this crawl of the kind, and print its story")
    parser.add_argument("--mistake", choices=SIMULATED, help="find the first seed that finds this wrong design")
    parser.add_argument("--verbose", action="store_true", help="with --seed: print the scripts, too")
    parser.add_argument("--shrink", action="store_true", help="with --seed: first shrink a failing crawl")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds to run new crawls")
    parser.add_argument("--count", type=int, default=0, help="number of crawls to run, instead of --seconds")
    parser.add_argument(
        "--first", type=lambda text: int(text, 0), default=secrets.randbelow(1 << 32), help="the first seed"
    )
    options = parser.parse_args()
    if unknown := set(options.kind or ()).difference(KINDS):
        parser.error(f"--kind: {', '.join(sorted(unknown))} must be of {', '.join(KINDS)}")
    if options.seed is not None and len(options.kind or ()) != 1:
        parser.error("--seed needs one --kind")
    return options


if __name__ == "__main__":
    sys.exit(main())
