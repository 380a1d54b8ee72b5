"""The findings of `scrapy bloom doctor` on lagging replicas, from the server's own figures."""

from typing import Any

import pytest

from scrapy_bloom.cli.checks import server
from scrapy_bloom.cli.checks.case import Level


def level(**replica: Any) -> Level:
    """Return the level of the finding on a replica whose master has written 30 MB."""
    told = {"ip": "127.0.0.1", "port": 6380, "state": "online", "offset": 30_000_000, "lag": 0, **replica}
    found = server.examine({"role": "master", "master_repl_offset": 30_000_000, "slave0": told}, 0, expires=False)
    (finding,) = [each for each in found if each.check == "replication"]
    return finding.level


@pytest.mark.parametrize(
    ("replica", "expected"),
    [
        ({}, Level.OK),
        ({"lag": 10}, Level.OK),
        ({"lag": 11}, Level.ADVICE),
        ({"offset": 20_000_000}, Level.OK),
        ({"offset": 19_999_999}, Level.ADVICE),
        ({"lag": 11, "offset": 19_999_999}, Level.ADVICE),
        ({"state": "wait_bgsave"}, Level.ADVICE),
    ],
)
def test_replica(replica: dict[str, Any], expected: Level) -> None:
    """A replica is reported if it is silent for more than 10 seconds, or 10 MB behind."""
    assert level(**replica) is expected
