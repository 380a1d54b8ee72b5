"""Some crawls of the soak with a fixed seed: no page is missed, no key left."""

import pytest

from tests import soak

CRAWLS, SEED = 2, 6027


def test_seed_has_every_kind() -> None:
    """The crawls have faults of every kind."""
    assert {fault.kind for number in range(CRAWLS) for fault in soak.draw(SEED, number).faults} == {*soak.FAULTS}


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_soak() -> None:
    """No crawl has a complaint; each that hangs is killed after five minutes."""
    soak.main(["--crawls", f"{CRAWLS}", "--seed", f"{SEED}"])
