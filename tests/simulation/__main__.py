"""Simulate crawls: `python -m tests.simulation [--kind K [--seed N] | --mistake NAME]`."""

import argparse
import secrets
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count, islice

from tests.simulation.mistakes import MISTAKES
from tests.simulation.plan import KINDS, plan_for
from tests.simulation.world import finders, simulate

_AT_ONCE = 50


def main() -> int:
    """Run crawls, and print those with a problem; return 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, metavar="KIND", help=f"kind of the crawls, of {', '.join(KINDS)}")
    parser.add_argument("--seed", type=int, help="run this crawl of the kind, and print its log")
    parser.add_argument("--mistake", choices=MISTAKES, help="find the first seed that finds this wrong design")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds to run new crawls")
    parser.add_argument("--count", type=int, default=0, help="number of crawls to run, instead of --seconds")
    parser.add_argument("--first", type=lambda text: int(text, 0), default=secrets.randbelow(1 << 32))
    options = parser.parse_args()
    if options.mistake:
        print("--seed", next(finders(MISTAKES[options.mistake], count())))
        return 0
    if options.seed is not None:
        outcome = simulate(plan_for(options.kind, options.seed))
        print(outcome)
        return int(bool(outcome.problems))
    begin, number, failed, fetches = time.monotonic(), 0, 0, (0, 0)
    crawls = _crawls((options.kind,) if options.kind else KINDS, options.first)
    with ProcessPoolExecutor(2) as pool:
        while number < options.count if options.count else time.monotonic() < begin + options.seconds:
            batch = list(islice(crawls, min(_AT_ONCE, options.count - number) if options.count else _AT_ONCE))
            number += len(batch)
            for text, once, again in pool.map(_outcome_of, batch, chunksize=5):
                failed, fetches = failed + bool(text), (fetches[0] + once, fetches[1] + again)
                if text:
                    print(text, flush=True)
    twice = 100 * fetches[1] / max(1, fetches[0])
    print(
        f"{number:,} crawls in {time.monotonic() - begin:.0f} s, {failed} with a problem; {twice:.1f} % fetched again"
    )
    return int(bool(failed))


def _outcome_of(crawl: tuple[str, int]) -> tuple[str, int, int]:
    """Return the log of a crawl with a problem or "", and how many pages it has fetched once, and again."""
    outcome = simulate(plan_for(*crawl))
    text = f"--kind {crawl[0]} --seed {crawl[1]}:\n{outcome}" if outcome.problems else ""
    return text, outcome.once, outcome.again


def _crawls(kinds: tuple[str, ...], first: int) -> Iterator[tuple[str, int]]:
    """Yield kinds in turn, with consecutive seeds.

    A crawl in partitions takes several times as long, so each seed has those of one number of partitions.
    """
    for seed in count(first):
        for kind in kinds:
            if len(kinds) == 1 or not kind.endswith(("/2", "/5")[seed % 2]):
                yield kind, seed


if __name__ == "__main__":
    sys.exit(main())
