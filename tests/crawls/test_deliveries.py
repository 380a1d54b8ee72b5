"""Crawls with a page that kills each worker that takes it: this page alone is dead-lettered."""

import itertools
import signal
from pathlib import Path

import pytest

from devtools.crawl_process import Crawl
from tests.support import command
from tests.support.pages import tree
from tests.support.scenario import (
    LEASE,
    OURS,
    PAGES,
    Kind,
    Scene,
    assert_complete,
    assert_ended_well,
    complaints_in,
    scene,
)
from tests.support.servers import Server
from tests.support.spiders import deadly

DEADLY = "/page/100"
DEATHS = 3
# Pages ahead of the deadly one in the same worker, or running beside it.
MANY_AT_ONCE: Kind = {**OURS, **LEASE, "CONCURRENT_REQUESTS": 4, "DEADLY": DEADLY, "SCHEDULER_PERSIST": True}


def crawl_with_heirs(played: Scene, **settings: object) -> list[Crawl]:
    """Two workers crawl; dead workers are replaced, up to the allowed number of deaths."""
    names = (f"worker-{number}" for number in itertools.count())
    running = [played.start(next(names), MANY_AT_ONCE, **settings) for _ in range(2)]
    ended = []
    while running:
        crawl = running.pop(0).wait()
        ended.append(crawl)
        if crawl.exit_code == -signal.SIGKILL and len(ended) < 4 * DEATHS:
            running.append(played.start(next(names), MANY_AT_ONCE, **settings))
    return ended


def test_page_that_kills_its_process(valkey: Server, key: str, tmp_path: Path) -> None:
    """A deadly page kills the allowed number of workers, is logged and kept; all others are fetched.

    Requests prefetched with it, or running beside it, are not dead-lettered.
    """
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = deadly.__file__
        ended = crawl_with_heirs(played, BLOOMFILTER_MAX_DELIVERIES=DEATHS)
        deaths = [crawl for crawl in ended if crawl.exit_code == -signal.SIGKILL]
        assert len(deaths) == DEATHS
        assert_ended_well(*(crawl for crawl in ended if crawl not in deaths))
        told = [line for crawl in ended for line in complaints_in(crawl.log) if "died while they ran it" in line]
        assert len(told) == 1
        assert f"<GET {played.site.url}{DEADLY}>: {DEATHS} workers" in told[0]
        assert played.missed <= {DEADLY}
        assert client.zcard(f"{{{key}:queue}}:dead-letter") == 1
        # A worker that starts leaves it there.
        assert_ended_well(played.crawl(MANY_AT_ONCE, "later"))
        assert client.zcard(f"{{{key}:queue}}:dead-letter") == 1
        # With other code it can be fetched.
        done = command.run("requeue", "--queue", f"{key}:queue", "--redis-url", valkey.url, cwd=tmp_path)
        assert done.returncode == 0
        before = played.fetched[DEADLY]
        assert_ended_well(played.crawl(MANY_AT_ONCE, "mended", DEADLY="/nowhere"))
        assert played.fetched[DEADLY] == before + 1
        assert client.hlen(f"{{{key}:queue}}:deliveries") == 0


@pytest.mark.long
def test_page_that_holds_the_interpreter(valkey: Server, key: str, tmp_path: Path) -> None:
    """A callback that blocks heartbeats runs on the allowed number of workers only. At its end it is no dead letter."""
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = deadly.__file__
        kind = {**MANY_AT_ONCE, "BLOOMFILTER_LEASE": 1, "BLOOMFILTER_MAX_DELIVERIES": 2, "HELD": 6}
        assert_complete(played, *played.crawl_by("left", "right", kind=kind))
        assert played.fetched[DEADLY] == 2
        assert client.exists(f"{{{key}:queue}}:dead-letter") == 0
