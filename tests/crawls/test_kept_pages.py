"""Failed pages are kept beside the queue, and the next run fetches them."""

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.support.pages import star
from tests.support.scenario import (
    OURS,
    Kind,
    Scene,
    assert_ended_well,
    scene,
)
from tests.support.servers import Server

pytestmark = pytest.mark.crawl

KEEP: Kind = {"SCHEDULER_PERSIST": True}

RETRY: Kind = {"BLOOMFILTER_RETRY_FAILED": True, "RETRY_TIMES": 1}


def failing(played: Scene) -> set[str]:
    """Let a fifth of the pages fail."""
    pages = sorted(played.site.links.keys() - {"/"})
    failed = set(random.Random(5).sample(pages, len(pages) // 5))
    played.site.answers = dict.fromkeys(failed, 503)
    return failed


def test_failed_pages_in_the_next_run(valkey: Server, key: str, tmp_path: Path) -> None:
    """Failed pages are kept, and the next run fetches them, without a link to any of them."""
    with valkey.client() as client, scene(star(40), tmp_path, valkey.url, key) as played:
        failed = failing(played)
        first = played.crawl({**OURS, **KEEP, **RETRY}, "first")
        assert client.hlen(f"{{{key}:queue}}:failed") == len(failed)
        played.site.answers = {}
        # Its start request is known: nothing leads to them but the kept requests.
        second = played.crawl({**OURS, **KEEP, **RETRY}, "second")
        assert Counter(second.fetched) == Counter(played.site.url + path for path in failed)
        third = played.crawl({**OURS, **KEEP, **RETRY}, "third")
        assert third.fetched == []
        assert client.exists(f"{{{key}:queue}}:failed") == 0
    assert first.stats["bloomfilter/failed"] == len(failed)
    assert_ended_well(first, second, third)


def test_failed_pages_outlive_a_finished_crawl(valkey: Server, key: str, tmp_path: Path) -> None:
    """Without SCHEDULER_PERSIST, too, the next run fetches the kept pages, and no page twice."""
    with scene(star(40), tmp_path, valkey.url, key) as played:
        failing(played)
        first = played.crawl({**OURS, **RETRY}, "first")
        played.site.answers = {}
        second = played.crawl({**OURS, **RETRY}, "second")
        # The start URL has no slash.
        assert Counter(url.removeprefix(played.site.url) or "/" for url in second.fetched) == dict.fromkeys(
            played.site.links, 1
        )
    assert_ended_well(first, second)


def test_failed_pages_without_the_setting(valkey: Server, key: str, tmp_path: Path) -> None:
    """Without BLOOMFILTER_RETRY_FAILED a failed page is done."""
    with valkey.client() as client, scene(star(20), tmp_path, valkey.url, key) as played:
        failing(played)
        ended = played.crawl({**OURS, **KEEP, "RETRY_TIMES": 1})
        assert client.exists(f"{{{key}:queue}}:failed") == 0
    assert_ended_well(ended)
    assert "bloomfilter/failed" not in ended.stats
