"""A crawl stopped by Ctrl-C that cannot be resumed: the deletion of its requests is logged once."""

import signal
from pathlib import Path

import pytest

from devtools.crawl_process import Crawl
from tests.support.outcomes import complaints_in
from tests.support.pages import tree
from tests.support.scenario import FILTER_ALONE, MIDDLE, OURS, PAGES, Kind, Scene, asyncio_first, keys_of, scene
from tests.support.servers import Server

KINDS = {"BloomScheduler": OURS, "the filter alone": FILTER_ALONE}


def stop_in_the_middle(played: Scene, kind: Kind) -> Crawl:
    """Crawl, with Ctrl-C in the middle."""
    worker = played.start("worker", kind)
    played.moments.when(MIDDLE, lambda _: worker.process.send_signal(signal.SIGINT))
    return worker.wait()


@asyncio_first
@pytest.mark.parametrize("persists", [False, True], ids=["deleted", "kept"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_waits(kind: str, persists: bool, reactor: Kind, valkey: Server, key: str, *, tmp_path: Path) -> None:
    """One warning gives the number of deleted requests and the setting to keep them; no key is left.

    With SCHEDULER_PERSIST they stay, without a warning.
    """
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        ended = stop_in_the_middle(played, {**KINDS[kind], **reactor, "SCHEDULER_PERSIST": persists})
        complaints = complaints_in(ended.log)
        if persists:
            assert complaints == []
            assert client.zcard(f"{key}:queue") > 0
            return
        assert keys_of(client, key) == set()
    (warning,) = complaints
    told = warning.partition("WARNING: ")[2]
    assert 0 < int(told.split()[0]) < PAGES
    assert f"still waited in the queue '{key}:queue' are deleted" in told
    assert "SCHEDULER_PERSIST = True" in told
