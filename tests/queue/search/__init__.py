"""The search of the queue: every state of a scenario, with the real worker and the real scripts.

`world` has the states, `model` one state under change, `normal` the normal form of a state, `moves` the moves,
`promises` S1 to S9 and `scenarios` the crawls. `tests.queue.mistakes` has the wrong designs that it must find.
"""

import random

from tests.queue.search.model import Model
from tests.queue.search.moves import Crawl
from tests.queue.search.scenarios import scripts
from tests.queue.search.world import Scenario
from tests.support.explore import BrokenPromiseError, Found, explore

TOO_MANY = "too many states"
_MOST_STEPS = 5_000


def search(scenario: Scenario, *, model: Model | None = None, limit: int = 3_000_000) -> tuple[Found, int]:
    """Visit the states of a scenario until a promise is broken.

    Args:
        scenario: the crawl and its faults.
        model: its model, if that has a mistake.
        limit: states to visit at most, the nearest first; then the violation is `TOO_MANY`.

    Returns:
        the findings, and how often a page was fetched at most.
    """
    crawl = Crawl(model or Model(scenario, scripts()))
    found = explore(crawl.start(), crawl.moves, crawl.is_end, stuck="S4: no end can be reached", limit=limit)
    return found, crawl.most_fetched


def walk(crawl: Crawl, draw: random.Random, chance: float | None = None, trace: list[str] | None = None) -> None:
    """Make random moves to an end.

    Args:
        crawl: the scenario.
        draw: draws the moves.
        chance: that a move is a fault; None: another one each time.
        trace: gets the labels of the moves.

    Raises:
        BrokenPromiseError: a state breaks a promise, or no end comes.
    """
    chance = draw.choice([0.02, 0.1, 0.3]) if chance is None else chance
    state, steps = crawl.start(), 0
    while not crawl.is_end(state):
        moves = crawl.known_moves(state)
        is_fault = draw.random() < chance
        move = draw.choice([move for move in moves if move.is_fault is is_fault] or moves)
        state, steps = move.state, steps + 1
        if trace is not None:
            trace.append(move.label())
        if steps > _MOST_STEPS:
            raise BrokenPromiseError(f"S4: no end after {steps} steps")
