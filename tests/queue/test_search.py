"""Nothing is lost, whoever fails: every order of the operations of workers, over the real code.

`tests/support/queue_search.py` tells what a state is, and what is promised of it.
"""

import pytest

from tests.support.queue_scenarios import MISTAKES, SCENARIOS
from tests.support.queue_search import Search
from tests.support.scenario import tell
from tests.support.selection import long_unless

# Searches of at most a second.
QUICK = ("no fault, ", "crash", "the queue is deleted")


@pytest.mark.parametrize("name", long_unless(lambda name: name.startswith(QUICK) and "another" not in name, SCENARIOS))
def test_nothing_is_lost(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """From every state all workers can come to an end, and at no end a request was lost, or anything left."""
    found = Search(SCENARIOS[name]).run()
    tell(capsys, f"{name}: {found.states:,} states, {found.moves:,} moves")
    assert found.violation is None, "\n".join([f"{found.violation}:", *found.trace])


@pytest.mark.long
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A rule of the protocol that is broken breaks a promise."""
    mistake = MISTAKES[name]
    found = Search(mistake.scenario, worker=mistake.worker, memory=mistake.memory, rules=mistake.rules).run()
    tell(capsys, f"{name}: {found.violation} (after {found.states:,} states)")
    assert found.violation is not None
