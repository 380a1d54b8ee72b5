"""Crawls with unreadable requests in the queue: no worker waits for them or deletes them."""

from pathlib import Path

import pytest

from tests.support.extensions import ALL_TURNS, LONGEST_STALL, Ticker, enabling
from tests.support.pages import tree
from tests.support.scenario import OURS, Kind, complaints_in, holders_of, keys_of, scene, tell
from tests.support.servers import Server

GARBAGE = b"not a request"


def garbage(number: int) -> dict[bytes, float]:
    """Return unreadable members that precede all others."""
    return {b"%s %d" % (GARBAGE, each): -5 for each in range(number)}


@pytest.mark.parametrize("number_of_workers", [1, 2])
def test_kept_and_told_of(number_of_workers: int, valkey: Server, key: str, tmp_path: Path) -> None:
    """Unreadable requests are kept even without SCHEDULER_PERSIST, and logged; the next worker tries them again."""
    with valkey.client() as client, scene(tree(40), tmp_path, valkey.url, key) as played:
        unreadable = garbage(3)
        played.moments.when(2, lambda _: client.zadd(f"{key}:queue", unreadable))
        crawls = played.crawl_by(*("left", "right")[:number_of_workers], kind=OURS)
        assert played.missed == set()
        kept = {each for member in unreadable for each in holders_of(client, key, member)}
        assert len(kept) == 1
        assert keys_of(client, key) == kept
        assert client.zrange(kept.pop(), 0, -1) == [*unreadable]
        assert played.crawl(OURS, "later").log.count("cannot be read") == 3
    assert [ended.stats["finish_reason"] for ended in crawls] == ["finished"] * number_of_workers
    warnings = [line for ended in crawls for line in complaints_in(ended.log) if " WARNING: " in line]
    assert [line for line in warnings if " 3 " in line and f"{key}:queue" in line]


def test_thousands_at_the_start(valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Thousands of unreadable requests are not read in one turn of the reactor."""
    settings: Kind = {**OURS, **enabling(Ticker)}
    with valkey.client() as client, scene(tree(13), tmp_path, valkey.url, key) as played:
        client.zadd(f"{key}:queue", garbage(5000))
        ended = played.start("worker", settings).wait()
        assert played.missed == set()
    longest, every = ended.stats[LONGEST_STALL], ended.stats[ALL_TURNS]
    tell(capsys, f"5,000 unreadable requests: the longest of all turns took {longest:.2f} of {every:.2f} s of CPU")
    assert ended.stats["finish_reason"] == "finished"
    assert longest < every / 3
