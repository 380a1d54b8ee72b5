"""The search of the queue: every state of a scenario, with the real worker and the real scripts.

`world` has the states, `model` one state under change, `normal` what makes equal situations equal, `moves` the moves,
`promises` the promises S1 to S9, `scenarios` the crawls and `mistakes` the wrong designs that it must find.
"""

from scrapy_bloom.atomic.worker import Worker
from tests.atomic.search.model import Model
from tests.atomic.search.moves import Crawl
from tests.atomic.search.scenarios import scripts
from tests.atomic.search.world import Scenario
from tests.support.explore import Found, explore

TOO_MANY = "too many states"


def search(
    scenario: Scenario, *, worker: type[Worker] = Worker, texts: dict[str, str] | None = None, limit: int = 3_000_000
) -> tuple[Found, int]:
    """Visit the states of a scenario until a promise is broken.

    Args:
        scenario: the crawl and its faults.
        worker: the worker, or one with a mistake.
        texts: the scripts by name, or some with a mistake.
        limit: states to visit at most, the nearest first; then the violation is `TOO_MANY`.

    Returns:
        what was found, and how often a page was fetched at most.
    """
    crawl = Crawl(Model(scenario, texts or scripts(), worker))
    return explore(
        crawl.start(), crawl.moves, crawl.is_end, stuck="S4: no end can be reached", limit=limit
    ), crawl.most_fetched
