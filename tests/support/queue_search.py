"""The search of the queue: every state of a scenario, on the real `QueueWorker`.

`queue_model` has the states, `queue_world` the moves between them, `queue_promises` the promises S1
to S9, and `explore` the exploration. The scripts have a twin in memory, `queue_memory`, which a test
compares with real servers.
"""

from scrapy_bloom.queue.worker import QueueWorker
from tests.support.explore import Found, explore
from tests.support.queue_memory import QueueMemory
from tests.support.queue_model import QueueModel, Rule, Scenario
from tests.support.queue_promises import Promises, broken
from tests.support.queue_world import QueueWorld


def search(
    scenario: Scenario,
    *,
    worker: type[QueueWorker] = QueueWorker,
    memory: type[QueueMemory] = QueueMemory,
    broken_rules: frozenset[Rule] = frozenset(),
) -> Found:
    """Visit every state of a scenario until a promise is broken.

    Args:
        scenario: the crawl and its faults.
        worker: the worker, or one with a mistake.
        memory: the queue, or one with a mistake.
        broken_rules: rules of the search that do not hold.
    """
    model = QueueModel(scenario, worker, memory)
    promises = Promises(model, broken_rules)
    world = QueueWorld(model, promises, broken_rules)
    return explore(world.start(), world.moves, promises.is_end, stuck=broken("S4"), limit=scenario.limit)
