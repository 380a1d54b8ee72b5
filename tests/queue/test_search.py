"""The promises S1 to S9 hold in every order of operations and faults, and each mistake breaks one.

The head of `scrapy_bloom/queue/worker.py` has the promises, `tests/support/queue_search.py` the search.
"""

import pytest

from tests.support.queue_scenarios import MISTAKES, SCENARIOS
from tests.support.queue_search import search
from tests.support.scenario import tell
from tests.support.selection import long_unless

QUICK = ("no fault, ", "crash", "the queue is deleted")
# Among them, those of more than half a second.
LARGE = ("another", "one joins late", "two queues", "equal requests", "twice", "a tree")


def is_quick(name: str) -> bool:
    """Return whether the search of a scenario takes at most half a second."""
    return name.startswith(QUICK) and not any(part in name for part in LARGE)


@pytest.mark.parametrize("name", long_unless(is_quick, SCENARIOS))
def test_nothing_is_lost(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every state of the scenario keeps S1 to S9."""
    found = search(SCENARIOS[name])
    tell(capsys, f"{name}: {found.states:,} states, {found.moves:,} moves")
    assert found.violation is None, "\n".join([f"{found.violation}:", *found.trace])


@pytest.mark.long
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake breaks a promise."""
    mistake = MISTAKES[name]
    found = search(
        mistake.scenario, worker=mistake.worker, memory=mistake.memory, broken_rules=frozenset(mistake.rules)
    )
    tell(capsys, f"{name}: {found.violation} (after {found.states:,} states)")
    assert found.violation is not None
