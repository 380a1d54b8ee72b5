"""A crawl stopped by Ctrl-C that cannot be resumed: the deletion of its requests is logged once."""

import signal
from pathlib import Path

import pytest

from devtools.crawl_process import Crawl
from tests.support.outcomes import assert_complete, complaints_in, number_kept
from tests.support.pages import star, tree
from tests.support.scenario import FILTER_ALONE, MIDDLE, OURS, PAGES, Kind, Scene, asyncio_first, keys_of, scene
from tests.support.servers import Server
from tests.support.spiders import local_links, slotted
from tests.support.waiting import until

# Longer than a stop takes. Scrapy 2.19 lets the first request wait, too, if the machine has been up for less than that.
LONG_DELAY = 60
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
    assert 0 < int(told.split()[1]) < PAGES
    assert f"that still waited in the queue '{key}:queue', and the filter; set" in told
    assert "SCHEDULER_PERSIST = True" in told


@asyncio_first
def test_waiting_requests_are_given_back(reactor: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """With a long delay a worker that is stopped ends soon. The requests that waited for it are fetched by the next.

    Nothing else happens to them: no errback, no retry, no failure that BLOOMFILTER_RETRY_FAILED would keep.
    """
    pages = 17
    settings: Kind = {**OURS, **reactor, "SCHEDULER_PERSIST": True, "BLOOMFILTER_RETRY_FAILED": True}
    with valkey.client() as client, scene(star(pages), tmp_path, valkey.url, key, delay=0) as played:
        played.spider = slotted.__file__
        worker = played.start("stopped", {**settings, "DOWNLOAD_DELAY": LONG_DELAY})
        # The first page, and another one in a slot of its own; the rest are in the downloader, or taken ahead.
        until(lambda: len(worker.received) == 2 and number_kept(client, f"{key}:queue") == pages - 2)
        worker.process.send_signal(signal.SIGTERM)
        ended = worker.wait()
        assert client.zcard(f"{key}:queue") == pages - 2
        assert number_kept(client, f"{key}:queue") == pages - 2
        assert not client.exists(f"{{{key}:queue}}:failed")
        last = played.crawl(settings, "last")
        assert_complete(played, last)
        assert played.twice == 0
    assert ended.exit_code == 0
    assert " ERROR: " not in ended.log
    assert complaints_in(ended.log) == []
    assert [name for name in ended.stats if name.startswith(("retry/", "spider_exceptions/"))] == []
    assert "given back" not in ended.log.lower()


def test_waiting_requests_that_cannot_be_serialized(valkey: Server, key: str, tmp_path: Path) -> None:
    """They are dropped, as those that were only taken ahead, and one warning gives their number."""
    pages = 13
    settings: Kind = {**OURS, "SCHEDULER_PERSIST": True, "DOWNLOAD_DELAY": LONG_DELAY}
    with valkey.client() as client, scene(star(pages), tmp_path, valkey.url, key, delay=0) as played:
        played.spider = local_links.__file__
        worker = played.start("stopped", settings)
        local = sum(map(local_links.is_local, played.site.links))
        until(lambda: len(worker.received) == 1 and number_kept(client, f"{key}:queue") == pages - 1 - local)
        worker.process.send_signal(signal.SIGTERM)
        ended = worker.wait()
        assert client.zcard(f"{key}:queue") == pages - 1 - local
    (warning,) = [line for line in complaints_in(ended.log) if "not crawled" in line]
    assert f"{local} requests could not be serialized and were not crawled" in warning
