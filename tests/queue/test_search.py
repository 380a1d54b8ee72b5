"""The promises S1 to S9 hold in every order of scripts and faults, and each wrong design breaks one."""

import random

import pytest

from tests.queue.mistakes import SEARCHED
from tests.queue.search import TOO_MANY, search, walk
from tests.queue.search.model import Model
from tests.queue.search.moves import Crawl
from tests.queue.search.scenarios import LOST, SCENARIOS, scripts
from tests.queue.search.world import Scenario
from tests.support.explore import BrokenPromiseError
from tests.support.outcomes import tell
from tests.support.selection import long_unless

# Scenarios of which all states are few.
SMALL = ("no fault", "no fault, a page that leads to itself", "poison, two at once")
# The states that one scenario visits here, the nearest ones; weekly.yml visits more, and `make search` all.
LIMIT = 1_000
WALKS = 5
# A state of two partitions takes five times as long, and there are far more: `make simulate` has whole crawls of them.
PARTITIONED_LIMIT = 300
PARTITIONED_WALKS = 2
PAGES = 12


@pytest.mark.parametrize("name", long_unless(SMALL.__contains__, SCENARIOS))
def test_promises(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each state keeps S1 to S9, of all of them or of the nearest ones."""
    limit = LIMIT if SCENARIOS[name].partitions == 1 else PARTITIONED_LIMIT
    found, most = search(SCENARIOS[name], limit=limit)
    tell(capsys, f"{name}: {found.states:,} states, {found.moves:,} moves, at most {most} fetches of a page")
    assert found.violation in (None, TOO_MANY), "\n".join([f"{found.violation}:", *found.trace])


@pytest.mark.parametrize("name", long_unless(lambda name: SCENARIOS[name].partitions == 1, SCENARIOS))
def test_walks(name: str) -> None:
    """So does each state of random walks, which reach the end of the crawl."""
    crawl, draw = Crawl(Model(SCENARIOS[name], scripts())), random.Random(name)
    for _ in range(WALKS if SCENARIOS[name].partitions == 1 else PARTITIONED_WALKS):
        walk(crawl, draw)


# Without walks a mistake takes a search of all states.
@pytest.mark.parametrize(
    "name", long_unless(lambda name: SEARCHED[name].walks and not SEARCHED[name].is_long, SEARCHED)
)
def test_mistakes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong design breaks a promise."""
    mistake = SEARCHED[name]
    assert mistake.scenario is not None
    violation, draw = None, random.Random(mistake.seed)
    crawl = Crawl(Model(mistake.scenario, mistake.scripts(), mistake.worker))
    try:
        for _ in range(mistake.walks):
            walk(crawl, draw)
    except BrokenPromiseError as error:
        violation = str(error)
    if not mistake.walks:
        found, _ = search(mistake.scenario, worker=mistake.worker, texts=mistake.scripts(), limit=100_000)
        violation = found.violation
    tell(capsys, f"{name}: {violation}")
    assert violation not in (None, TOO_MANY)


@pytest.mark.parametrize("seed", long_unless(range(1).__contains__, range(12)))
def test_long_walks(seed: int) -> None:
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
    walk(Crawl(Model(scenario, scripts())), draw, chance=0.03)
