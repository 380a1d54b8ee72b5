"""Crawls whose filter is deleted, evicted or replaced half-way: no page is missed.

Each page is linked once, so that one lost request is one missed page.
"""

from pathlib import Path

import pytest

from tests.support.pages import linked, tree
from tests.support.scenario import (
    MIDDLE,
    OURS,
    PAGES,
    STOCK,
    Kind,
    assert_cleared,
    assert_ended_well,
    complaints_in,
    every_scheduler,
    keys_of_the_filter,
    scene,
    tell,
)
from tests.support.servers import Server


@every_scheduler
@pytest.mark.parametrize(("loss", "part"), [("filter", "replaced"), ("shard", "shards (evicted?)")])
def test_deleted(loss: str, part: str, kind: Kind, valkey: Server, key: str, *, tmp_path: Path) -> None:
    """A deleted filter, or an evicted shard, is noticed and recreated, with one warning."""
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:

        def lose(_: str) -> None:
            names = keys_of_the_filter(client, key)
            client.unlink(*(name for name in names if loss == "filter" or name.endswith(":1:0")))

        played.moments.when(MIDDLE, lose)
        ended = played.crawl(kind)
        assert_cleared(played, ended)
        assert max(played.fetched.values()) <= 2
    warning, *repeats = complaints_in(ended.log)
    assert part in warning
    assert all("since the last such line" in each for each in repeats)
    # The next check noticed it, not the final report.
    assert ended.log.index(warning) < ended.log.index("Closing spider")


def test_expired_hash(valkey: Server, key: str, tmp_path: Path) -> None:
    """An EXPIRE, as some projects have one for scrapy-redis's SET, causes one warning and a new filter."""
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.moments.when(MIDDLE, lambda _: client.pexpire(key, 1))
        ended = played.crawl(OURS)
        assert_cleared(played, ended)
        assert max(played.fetched.values()) <= 2
    assert "was replaced (cleared" in complaints_in(ended.log)[0]


@pytest.mark.long
def test_filter_deleted_under_scrapy_redis(
    valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control: scrapy-redis does not notice, and logs nothing."""
    with valkey.client() as client, scene(linked(60), tmp_path, valkey.url, key) as played:
        played.moments.when(MIDDLE, lambda _: client.unlink(key))
        ended = played.crawl(STOCK)
    tell(capsys, f"filter deleted: scrapy-redis fetched {played.twice} of 60 pages twice, and warned of nothing")
    assert played.twice
    assert not [line for line in ended.log.splitlines() if " WARNING: " in line and "[py.warnings]" not in line]


@pytest.mark.long
def test_set_under_scrapy_redis(valkey: Server, key: str, tmp_path: Path) -> None:
    """The control: over an earlier SET scrapy-redis fetches no page; our start is refused."""
    with scene(tree(61), tmp_path, valkey.url, key) as played:
        played.crawl(STOCK, "earlier", SCHEDULER_PERSIST=True)
        ended = played.crawl(STOCK, "later", SCHEDULER_PERSIST=True)
        assert ended.fetched == []
    assert_ended_well(ended)
