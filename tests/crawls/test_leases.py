"""Leases in crawls: different lengths, return at a stop, takeover after a kill."""

import signal
import threading
from pathlib import Path

import pytest

from devtools.crawl_process import LIMIT
from tests.support.outcomes import assert_cleared, assert_complete, number_kept, tell
from tests.support.pages import star
from tests.support.scenario import LEASE, OURS, Kind, asyncio_first, scene
from tests.support.servers import Server
from tests.support.waiting import until

# Longer than any wait of a test: if a worker waits for this lease to end, the test hangs and fails.
LONG: Kind = {"BLOOMFILTER_LEASE": 4 * LIMIT}


@asyncio_first
def test_graceful_stop_gives_back(reactor: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """A stopping worker returns prefetched requests at once, and finishes the others."""
    pages = 41
    with valkey.client() as client, scene(star(pages), tmp_path, valkey.url, key) as played:
        release = threading.Event()
        played.site.before = lambda worker: (
            release.wait(LIMIT) if worker == "left" and len(played.site.fetched) > 1 else None
        )
        left = played.start("left", {**OURS, **LONG, **reactor}, CONCURRENT_REQUESTS=2)
        until(lambda: len(played.site.fetched) == 3)
        left.process.send_signal(signal.SIGTERM)
        # While its two pages are slow.
        until(lambda: client.zcard(f"{key}:queue") == pages - 3)
        right = played.start("right", {**OURS, **LONG, **reactor}, CONCURRENT_REQUESTS=2)
        until(lambda: right.received)
        assert left.process.poll() is None
        release.set()
        stopped, ended = left.wait(), right.wait()
        assert len(stopped.fetched) == 3
        assert_cleared(played, ended)
        assert played.twice == 0
    assert stopped.exit_code == 0


@asyncio_first
def test_finished_pages_are_not_fetched_again(
    reactor: Kind, valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page whose callback has ended is acknowledged, even while slow pages take all slots."""
    finished, slots = 20, 2
    with valkey.client() as client, scene(star(60), tmp_path, valkey.url, key) as played:
        release = threading.Event()
        played.site.before = lambda worker: (
            release.wait(LIMIT) if worker == "killed" and len(played.site.fetched) > finished else None
        )
        worker = played.start("killed", {**OURS, **LEASE, **reactor}, CONCURRENT_REQUESTS=slots)
        until(lambda: len(worker.received) == finished and len(played.site.fetched) == finished + slots)
        # All others of the 60 are in the queue, or taken ahead.
        until(lambda: number_kept(client, f"{key}:queue") == 60 - finished)
        worker.kill()
        release.set()
        ended = played.crawl({**OURS, **LEASE}, "heir")
        again = set(worker.received) & set(ended.fetched)
        tell(capsys, f"killed with {slots} running: {len(again)} of {finished} finished pages fetched again")
        # The heir begins with the first page, as every worker does, and finds it in the filter.
        assert again == set()
        assert_complete(played, ended)
