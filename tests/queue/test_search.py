"""The promises S1 to S9 hold in every order of scripts and faults, and each wrong design breaks one."""

import random

import pytest

from tests.queue.mistakes import MISTAKES
from tests.queue.search import TOO_MANY, search, walk
from tests.queue.search.model import Model
from tests.queue.search.moves import Crawl
from tests.queue.search.scenarios import LOST, SCENARIOS, scripts
from tests.queue.search.world import Scenario
from tests.support.explore import BrokenPromiseError
from tests.support.outcomes import tell
from tests.support.selection import long_unless

# The states that one scenario visits here, the nearest ones, with one queue and with two, which take longer; and walks.
LIMITS = {1: 800, 2: 250}
WALKS = {1: 4, 2: 2}
PAGES = 12


def is_short(name: str) -> bool:
    """Return whether a scenario is one of the plainest."""
    return SCENARIOS[name].faults <= 1 and SCENARIOS[name].parts == 1


@pytest.mark.parametrize("name", long_unless(is_short, SCENARIOS))
def test_promises(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each state keeps S1 to S9, of all of them or of the nearest ones."""
    found, most = search(SCENARIOS[name], limit=LIMITS[SCENARIOS[name].parts])
    tell(capsys, f"{name}: {found.states:,} states, {found.moves:,} moves, at most {most} fetches of a page")
    assert found.violation in (None, TOO_MANY), "\n".join([f"{found.violation}:", *found.trace])


@pytest.mark.parametrize("name", SCENARIOS)
def test_walks(name: str) -> None:
    """So does each state of random walks, which reach the end of the crawl."""
    crawl, draw = Crawl(Model(SCENARIOS[name], scripts())), random.Random(name)
    for _ in range(WALKS[SCENARIOS[name].parts]):
        walk(crawl, draw)


# Without walks a mistake takes a search of all states.
@pytest.mark.parametrize("name", long_unless(lambda name: not MISTAKES[name].is_long, MISTAKES))
def test_mistakes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong design breaks a promise."""
    mistake = MISTAKES[name]
    violation, draw = None, random.Random(mistake.seed)
    crawl = Crawl(mistake.model())
    try:
        for _ in range(mistake.walks):
            walk(crawl, draw)
    except BrokenPromiseError as error:
        violation = str(error)
    if not mistake.walks:
        found, _ = search(mistake.scenario, model=mistake.model(), limit=100_000)
        violation = found.violation
    tell(capsys, f"{name}: {violation}")
    assert violation not in (None, TOO_MANY)


@pytest.mark.parametrize("seed", long_unless(range(1).__contains__, range(12)))
def test_long_walks(seed: int) -> None:
    """A crawl of twelve pages by three workers, and three more, keeps the promises with six faults of many kinds."""
    walk(Crawl(Model(long_scenario(random.Random(seed)), scripts())), random.Random(seed), chance=0.03)


def long_scenario(draw: random.Random) -> Scenario:
    """Return a scenario of many pages and faults."""
    pairs = [{child for child in (2 * page + 1, 2 * page + 2) if child < PAGES} for page in range(PAGES)]
    links = tuple(tuple(sorted(pair | {draw.randrange(PAGES)} - {page})) for page, pair in enumerate(pairs))
    losses = draw.choice([("flushall",), ("queue",), ("lease",), ("rollback",), ("filter", "shard"), ("workers",), ()])
    return Scenario(
        links,
        ((0,),) * 6,
        faults=6,
        kinds=(*LOST, *losses),
        spare=(3, 4, 5),
        want=draw.choice([1, 3]),
        at_once=draw.choice([1, 2]),
        batch=draw.choice([1, 2, 8]),
        is_slow=True,
        overlaps=draw.choice([False, True]),
        unfiltered=draw.choice([0, 2]),
        most=99,
        parts=draw.choice([1, 1, 2]),
    )
