"""Starts over a kept filter that knows all requests: no page is fetched, and the log says why."""

from pathlib import Path

import pytest

from tests.support.pages import tree
from tests.support.scenario import FILTER_ALONE, OURS, Kind, assert_ended_well, complaints_in, scene
from tests.support.servers import Server

KEPT: Kind = {"SCHEDULER_PERSIST": True}
KINDS: dict[str, tuple[Kind, str]] = {
    "BloomScheduler": (OURS, "WARNING"),
    # It does not know its workers.
    "scrapy-redis's": (FILTER_ALONE, "INFO"),
}
NOTHING = "nothing was fetched"


@pytest.mark.parametrize("kind", KINDS)
def test_complete_crawl(kind: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """A complete crawl that is started again logs why nothing was fetched, and how to start afresh.

    So does a crawl that deletes the filter of the earlier one at its end.
    """
    settings, level = KINDS[kind]
    with scene(tree(4), tmp_path, valkey.url, key) as played:
        first = played.crawl({**settings, **KEPT}, "first")
        again = played.crawl({**settings, **KEPT}, "again", STATS_CLASS="scrapy.statscollectors.DummyStatsCollector")
        deleting = played.crawl(settings, "deleting")
        assert played.twice == 0
        anew = played.crawl({**settings, **KEPT}, "anew")
        assert played.twice == 4
        flushed = played.crawl({**settings, **KEPT}, "flushed", SCHEDULER_FLUSH_ON_START=True)
        assert played.twice == 8
    assert_ended_well(first, deleting, anew, flushed)
    lines = [line for crawl in (again, deleting) for line in crawl.log.splitlines() if NOTHING in line]
    for line in lines:
        assert f" {level}: All 1 start requests that went through the filter at {key!r} were known to it" in line
    of_again, of_deleting = lines
    assert "SCHEDULER_FLUSH_ON_START = True" in of_again
    assert "`scrapy bloom clear --yes`" in of_again
    assert "dont_filter=True" in of_again
    assert ("Either other workers crawl" in of_again) == (level == "INFO")
    assert "start the crawl again: its end has deleted the filter." in of_deleting
    assert "SCHEDULER_FLUSH_ON_START" not in of_deleting
    assert NOTHING not in first.log + anew.log + flushed.log
    assert complaints_in(again.log) == ([of_again] if level == "WARNING" else [])
