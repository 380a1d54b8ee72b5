"""Crawls whose filter is deleted, evicted or replaced half-way: no page is missed.

Each page is linked once, so that one lost request is one missed page.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from devtools.site import serving
from tests.support import crawling
from tests.support.crawling import crawl
from tests.support.pages import linked, tree
from tests.support.scenario import (
    MIDDLE,
    OURS,
    PAGES,
    STOCK,
    assert_ended_well,
    complaints_in,
    keys_of,
    keys_of_the_filter,
    scene,
    tell,
)
from tests.support.servers import Server

pytestmark = pytest.mark.crawl


def warning_of_loss(valkey: Server, key: str, directory: Path, lost: Callable[[set[str]], set[str]]) -> str:
    """Return the only warning of a crawl that loses keys of its filter but no page."""
    with valkey.client() as client, scene(tree(PAGES), directory, valkey.url, key) as played:

        def lose(_: str) -> None:
            assert client.unlink(*lost(keys_of_the_filter(client, key))) > 0

        played.moments.when(MIDDLE, lose)
        ended = played.crawl(OURS)
        assert played.missed == set()
        assert max(played.fetched.values()) <= 2
        assert keys_of(client, key) == set()
    assert_ended_well(ended)
    warning, *repeats = complaints_in(ended.log)
    assert all("since the last such line" in each for each in repeats)
    # The next check noticed it, not the final report.
    assert ended.log.index(warning) < ended.log.index("Closing spider")
    return warning


def test_filter_deleted(valkey: Server, key: str, tmp_path: Path) -> None:
    """A deleted filter is noticed and recreated, with one warning."""
    assert "replaced" in warning_of_loss(valkey, key, tmp_path, lambda keys: keys)


def test_shard_deleted(valkey: Server, key: str, tmp_path: Path) -> None:
    """An evicted shard is noticed and recreated, with one warning."""
    assert "shards (evicted?)" in warning_of_loss(valkey, key, tmp_path, lambda keys: keys - {key})


def test_everything_deleted(valkey: Server, key: str, tmp_path: Path) -> None:
    """Without queue and leases, the crawl continues with its own requests."""
    queued = 0
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:

        def lose(_: str) -> None:
            nonlocal queued
            queue = f"{key}:queue"
            queued, _ = client.pipeline().zcard(queue).unlink(queue, *keys_of(client, key)).execute()

        played.moments.when(MIDDLE, lose)
        ended = played.crawl(OURS)
        # Queued requests exist nowhere else, and are lost with the pages below them, unless a page that was in progress
        # leads to them again. Their number depends on chance: the queue may have been empty.
        assert len(played.fetched) >= MIDDLE
        assert queued or not played.missed
        assert keys_of(client, key) == set()
    assert ended.stats["finish_reason"] == "bloomfilter_queue_lost"
    (complaint,) = complaints_in(ended.log)
    assert "has lost the crawl of the queue" in complaint


@pytest.mark.long
def test_filter_deleted_under_scrapy_redis(
    valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control: scrapy-redis does not notice, and logs nothing."""
    with valkey.client() as client, serving(linked(60)) as site:

        def lose(_: str) -> None:
            del site.on["/page/3"]
            assert client.unlink(key)

        site.on["/page/3"] = lose
        settings = {**STOCK, "REDIS_URL": valkey.url, "SCHEDULER_DUPEFILTER_KEY": key}
        ended = crawl("worker", site.url, tmp_path, SCHEDULER_QUEUE_KEY=f"{key}:queue", **settings)
        twice = len(site.paths) - len(set(site.paths))
    tell(capsys, f"filter deleted: scrapy-redis fetched {twice} of 60 pages twice, and warned of nothing")
    assert twice
    assert not [line for line in ended.log.splitlines() if " WARNING: " in line and "[py.warnings]" not in line]


@pytest.mark.parametrize("kind", ["scrapy-redis", "scrapy-bloom"])
def test_set_in_the_place_of_a_filter(
    kind: str, valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over an earlier SET, scrapy-redis fetches no page; here the start is refused."""
    with valkey.client() as client, scene(tree(61), tmp_path, valkey.url, key) as played:
        played.crawl(STOCK, "earlier", SCHEDULER_PERSIST=True)
        assert client.type(key) == b"set"
        before = played.fetched.total()
        ended = played.crawl(STOCK if kind == "scrapy-redis" else OURS, "later", SCHEDULER_PERSIST=True)
        fetched = played.fetched.total() - before
        tell(capsys, f"a SET at the filter's key: {kind} fetched {fetched} of 61, exit code {ended.exit_code}")
        assert fetched == 0
        assert client.scard(key) == 61
    if kind == "scrapy-redis":
        assert_ended_well(ended)
    else:
        assert ended.exit_code == crawling.REFUSED_EXIT_CODE
        assert f"the key {key!r} holds a SET, as scrapy-redis leaves it" in ended.log
