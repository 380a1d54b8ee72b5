"""Faults around an exchange: a worker dies before it, or Redis answers nothing."""

import signal
import threading
from pathlib import Path

import pytest

from tests.support.pages import tree
from tests.support.scenario import LEASE, MIDDLE, OURS, PAGES, Kind, assert_ended_well, keys_of, scene
from tests.support.servers import Server
from tests.support.spiders import deadly

pytestmark = pytest.mark.crawl


def test_killed_before_its_links_are_queued(valkey: Server, key: str, tmp_path: Path) -> None:
    """A worker dies in the callback of a page, after others are done: no link of any of them is lost."""
    settings: Kind = {**OURS, **LEASE, "SCHEDULER_PERSIST": True, "DEADLY": f"/page/{MIDDLE}"}
    settings |= {"BLOOMFILTER_BATCH_SIZE": 1000, "CONCURRENT_REQUESTS": 4}
    with scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = deadly.__file__
        assert played.crawl(settings, "killed").exit_code == -signal.SIGKILL
        assert_ended_well(played.crawl({**settings, "DEADLY": "/nowhere"}, "heir"))
        assert played.missed == set()


def test_redis_stopped(durable: Server, key: str, tmp_path: Path) -> None:
    """Redis answers nothing for 2 s, longer than two workers wait for a reply: no page is missed."""
    settings: Kind = {**OURS, **LEASE, "REDIS_PARAMS": '{"socket_timeout": 0.5}', "CONCURRENT_REQUESTS": 4}
    with durable.client() as client, scene(tree(PAGES), tmp_path, durable.url, key, delay=0.1) as played:

        def stop(_: str) -> None:
            silence = durable.silent()
            silence.__enter__()
            threading.Timer(2, silence.__exit__, (None, None, None)).start()

        played.moments.when(MIDDLE, stop)
        crawls = played.crawl_by("left", "right", kind=settings)
        assert played.missed == set()
        assert keys_of(client, key) == set()
    assert_ended_well(*crawls)
