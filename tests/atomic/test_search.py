"""The promises S1 to S9 hold in every order of scripts and faults, and each wrong design breaks one."""

import random

import pytest

from tests.atomic.search import TOO_MANY, search
from tests.atomic.search.mistakes import MISTAKES
from tests.atomic.search.model import Model
from tests.atomic.search.moves import Crawl
from tests.atomic.search.scenarios import LOST, SCENARIOS, scripts
from tests.atomic.search.world import Scenario
from tests.support.scenario import tell

# The states that one scenario visits here, a few seconds; `python -m tests.atomic.search` visits them all.
LIMIT = 3_000
PAGES = 12


@pytest.mark.parametrize("name", SCENARIOS)
def test_promises(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each state keeps S1 to S9, of all of them or of the nearest ones."""
    found, most = search(SCENARIOS[name], limit=LIMIT)
    tell(capsys, f"{name}: {found.states:,} states, {found.moves:,} moves, at most {most} fetches of a page")
    assert found.violation in (None, TOO_MANY), "\n".join([f"{found.violation}:", *found.trace])


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong design breaks a promise."""
    mistake = MISTAKES[name]
    found, _ = search(mistake.scenario, worker=mistake.worker, texts=mistake.scripts(), limit=60_000)
    tell(capsys, f"{name}: {found.violation} (after {found.states:,} states)")
    assert found.violation not in (None, TOO_MANY)


@pytest.mark.parametrize("seed", range(20))
def test_walks(seed: int) -> None:
    """A crawl of twelve pages by three workers, and three more, keeps the promises with six faults of many kinds."""
    draw = random.Random(seed)
    links = tuple(
        tuple(
            sorted(
                {child for child in (2 * page + 1, 2 * page + 2) if child < PAGES} | {draw.randrange(PAGES)} - {page}
            )
        )
        for page in range(PAGES)
    )
    losses = draw.choice([("flushall",), ("queue",), ("lease",), ("rollback",), ("filter", "shard"), ()])
    scenario = Scenario(
        links,
        ((0,),) * 6,
        faults=6,
        kinds=(*LOST, *losses),
        spare=(3, 4, 5),
        want=draw.choice([1, 3]),
        at_once=draw.choice([1, 2]),
        batch=draw.choice([1, 2, 8]),
        is_slow=True,
        unfiltered=draw.choice([0, 2]),
        most=99,
    )
    crawl = Crawl(Model(scenario, scripts()))
    state, steps = crawl.start(), 0
    while not crawl.is_end(state):
        moves = list(crawl.moves(state))
        is_fault = draw.random() < 0.03
        state = draw.choice([move for move in moves if move.is_fault is is_fault] or moves).state
        steps += 1
        assert steps < 20_000
