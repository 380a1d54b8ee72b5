"""Crawls whose filter is deleted, evicted or replaced half-way: no page is missed.

Each page is linked once, so that one lost request is one missed page.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from devtools.site import serving
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


# The keys that are deleted, of a filter at a key, and a part of the warning.
LOSSES: dict[str, tuple[Callable[[set[str], str], set[str]], str]] = {
    "filter": (lambda keys, _: keys, "replaced"),
    "shard": (lambda keys, key: keys - {key}, "shards (evicted?)"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_deleted(loss: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """A deleted filter, or an evicted shard, is noticed and recreated, with one warning."""
    chosen, part = LOSSES[loss]
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.moments.when(MIDDLE, lambda _: client.unlink(*chosen(keys_of_the_filter(client, key), key)))
        ended = played.crawl(OURS)
        assert played.missed == set()
        assert max(played.fetched.values()) <= 2
        assert keys_of(client, key) == set()
    assert_ended_well(ended)
    warning, *repeats = complaints_in(ended.log)
    assert part in warning
    assert all("since the last such line" in each for each in repeats)
    # The next check noticed it, not the final report.
    assert ended.log.index(warning) < ended.log.index("Closing spider")


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


@pytest.mark.long
def test_set_under_scrapy_redis(valkey: Server, key: str, tmp_path: Path) -> None:
    """The control: over an earlier SET scrapy-redis fetches no page; our start is refused."""
    with scene(tree(61), tmp_path, valkey.url, key) as played:
        played.crawl(STOCK, "earlier", SCHEDULER_PERSIST=True)
        ended = played.crawl(STOCK, "later", SCHEDULER_PERSIST=True)
        assert ended.fetched == []
    assert_ended_well(ended)
