"""The search of the queue in larger crawls and with more faults: `make search`, which takes a quarter of an hour."""

import pytest

from tests.support.queue_scenarios import DEEP
from tests.support.queue_search import search
from tests.support.scenario import tell


@pytest.mark.parametrize("name", DEEP)
def test_nothing_is_lost(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every state of the scenario keeps S1 to S9."""
    found = search(DEEP[name])
    tell(capsys, f"{name}: {found.states:,} states, {found.moves:,} moves")
    assert found.violation is None, "\n".join([f"{found.violation}:", *found.trace])
