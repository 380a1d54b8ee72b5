"""Some crawls of the soak with a fixed seed: no page is missed, no key left."""

import pytest

from tests import soak

CRAWLS, SEED = 2, 6027


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_soak() -> None:
    """No crawl has a complaint; each that hangs is killed after five minutes."""
    soak.main(["--crawls", f"{CRAWLS}", "--seed", f"{SEED}"])
