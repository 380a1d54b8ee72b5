"""Crawls on a virtual clock: some of each kind, and the finders of wrong designs."""

import pytest

from tests.simulation.mistakes import MISTAKES
from tests.simulation.plan import KINDS, plan_for
from tests.simulation.world import finders, simulate
from tests.support.selection import long_unless

# Crawls of each kind, and of each in partitions, which take several times as long.
_CRAWLS = 15
_PARTITIONED_CRAWLS = 4
# Crawls that look for a wrong design: the first one finds it, until a change of the package gives it another course.
_MISTAKEN = 10


@pytest.mark.parametrize("kind", long_unless(lambda kind: not kind.endswith("/5"), KINDS))
def test_kind(kind: str) -> None:
    """No crawl of a kind has a problem."""
    count = _PARTITIONED_CRAWLS if "/" in kind else _CRAWLS
    outcomes = [simulate(plan_for(kind, seed)) for seed in range(count)]
    failing = {outcome.plan.seed: outcome.problems for outcome in outcomes if outcome.problems}
    assert not failing, f"python -m tests.simulation --kind {kind} --seed {next(iter(failing))}"


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    """A wrong design is found, in a crawl without a problem of the right one."""
    mistake = MISTAKES[name]
    seed = next(finders(mistake, range(mistake.seed, mistake.seed + _MISTAKEN)), None)
    assert seed is not None, f"python -m tests.simulation --mistake {name!r} finds another seed"


def test_same_seed() -> None:
    """Equal seeds write equal logs."""
    one, other = (simulate(plan_for("mixed", 3)).log for _ in range(2))
    assert len(one) > 50
    assert one == other
