"""Processes add the same items to a filter while a Sentinel replaces its master, again and again."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from scrapy_bloom import FromSentinel
from tests.support.additions import BATCH, PROCESSES, adding
from tests.support.outcomes import tell
from tests.support.sentinels import MASTER, watched_pair
from tests.support.servers import KINDS

ITEMS = 200_000
FAILOVERS = 2
# Milliseconds. A busy machine may keep a server waiting for half a second, which `watching` allows.
DOWN_AFTER = 2000
# The last batch of each process that the dead master executed, and the batch in doubt.
AT_A_KILL = 2 * PROCESSES * BATCH


def connect(port: int) -> Any:
    """Make a client of the Sentinel's master."""
    return FromSentinel.from_url(f"redis://127.0.0.1:{port}", service_name=MASTER)


@pytest.mark.long
@pytest.mark.cluster
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_kills_at_random(kind: str, seed: int, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each item is new to a process, and few are new to two."""
    moments = sorted(random.Random(seed).sample(range(ITEMS // 10, ITEMS * 3 // 4), FAILOVERS))
    with watched_pair(kind, tmp_path) as pair, adding(partial(connect, pair.sentinel), key, ITEMS) as additions:
        with redis.Redis(port=pair.sentinel) as client:
            client.sentinel_set(MASTER, "down-after-milliseconds", DOWN_AFTER)
        for moment in moments:
            additions.wait_for(moment)
            pair.fail_over()
        outcome = additions.finish()
    tell(capsys, f"Sentinel and {kind}, {FAILOVERS} kills: {outcome}")
    assert outcome.lost == 0
    assert outcome.twice <= FAILOVERS * AT_A_KILL
    assert outcome.cpu < max(0.25, outcome.longest / 2)
