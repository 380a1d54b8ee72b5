"""Crawls with pages that fail: with BLOOMFILTER_RETRY_FAILED the next crawl fetches these, and no others."""

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.support import crawling
from tests.support.outcomes import assert_ended_well
from tests.support.pages import star
from tests.support.scenario import FILTER_ALONE, OURS, SCRAPY, Kind, Scene, scene
from tests.support.servers import Server
from tests.support.spiders import failing, unfiltered

KEEPS: Kind = {"BLOOMFILTER_RETRY_FAILED": True, "SCHEDULER_PERSIST": True, "RETRY_TIMES": 1}

# The answers of failed pages, and the pages whose callback raises, or whose middleware does.
FAILED: dict[str, int | str | None] = {
    "/refused": 503,
    "/limited": 429,
    "/errback-refused": 500,
    "/silent": None,
    "/errback-silent": None,
    "/moved": "/moved-again",
    "/moved-again": "/refused-there",
    "/refused-there": 502,
}
RAISING = {"/raises", "/midway", "/coroutine", "/stream", "/mangled"}
# Not failed: pages that are not there, statuses that the spider handles, and an IgnoreRequest.
FINE: dict[str, int | str | None] = {"/gone": 410, "/allowed": 503, "/errback-gone": 404, "/forbidden": 403}
LINKED = [*(FAILED.keys() - {"/moved-again", "/refused-there"}), *RAISING, *FINE, "/well"]


def answers_of(played: Scene, name: str) -> set[str]:
    """Return the paths that a worker has asked the site for."""
    return {path for worker, path in played.site.fetched if worker == name}


SITE = {"/": LINKED, **{path: [] for path in (*FAILED, *RAISING, *FINE, "/well")}}
OWN_RETRY: Kind = {
    **KEEPS,
    "DOWNLOADER_MIDDLEWARES": f'{{"{failing.__name__}.OwnRetry": 550, '
    '"scrapy.downloadermiddlewares.retry.RetryMiddleware": null}',
}


@pytest.mark.parametrize("kind", [FILTER_ALONE, SCRAPY], ids=["scrapy-redis", "Scrapy"])
def test_other_schedulers(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """Another scheduler keeps no failed page, so the setting is refused at the start."""
    with scene(star(2), tmp_path, valkey.url, key) as played:
        refused = played.crawl({**kind, "BLOOMFILTER_RETRY_FAILED": True})
    assert refused.exit_code == crawling.REFUSED_EXIT_CODE
    assert "BLOOMFILTER_RETRY_FAILED = True: only BloomScheduler obeys this setting" in refused.log
    assert not played.site.fetched


def failing_fifth(played: Scene) -> set[str]:
    """Let a fifth of the site's pages fail."""
    pages = sorted(played.site.links.keys() - {"/"})
    failed = set(random.Random(5).sample(pages, len(pages) // 5))
    played.site.answers = dict.fromkeys(failed, 503)
    return failed


def test_failures_of_every_kind_are_kept(valkey: Server, key: str, tmp_path: Path) -> None:
    """BloomScheduler keeps each failed request once, and the next crawl fetches it again."""
    settings = {**OWN_RETRY, **OURS}
    kept = {*FAILED, *RAISING} - {"/moved", "/moved-again"}
    with valkey.client() as client, scene(SITE, tmp_path, valkey.url, key) as played:
        played.spider = failing.__file__
        played.site.answers = {**FAILED, **FINE}
        first = played.crawl(settings, "first", FAILS=1)
        assert client.hlen(f"{{{key}:queue}}:failed") == len(kept)
        played.site.answers = {}
        before = len(played.site.fetched)
        second = played.crawl(settings, "second", FAILS=0)
        # A kept request has the headers of the first worker.
        assert Counter(played.site.paths[before:]) == dict.fromkeys({*kept, "/"}, 1)
        before = len(played.site.fetched)
        third = played.crawl(settings, "third", FAILS=0)
        # A kept request has the meta of the first worker, too, so these failed again.
        assert Counter(played.site.paths[before:]) == dict.fromkeys({*RAISING, "/"}, 1)
    assert first.stats["bloomfilter/failed"] == len(kept)
    place = f"in the queue '{key}:queue'"
    assert f"Kept {len(kept)} failed requests of this process at '{{{key}:queue}}:failed'" in first.log
    assert f"Queued {len(kept)} failed requests of earlier runs again {place}" in second.log
    assert f"Queued {len(RAISING)} failed requests of earlier runs again {place}" in third.log
    assert [each.stats["finish_reason"] for each in (second, third)] == ["finished"] * 2


def test_failed_pages_outlive_a_finished_crawl(valkey: Server, key: str, tmp_path: Path) -> None:
    """Without SCHEDULER_PERSIST, too, the next run fetches the kept pages, and no page twice."""
    with scene(star(40), tmp_path, valkey.url, key) as played:
        failing_fifth(played)
        first = played.crawl({**OURS, **KEEPS, "SCHEDULER_PERSIST": False}, "first")
        played.site.answers = {}
        second = played.crawl({**OURS, **KEEPS, "SCHEDULER_PERSIST": False}, "second")
        # The start URL has no slash.
        fetched = Counter(url.removeprefix(played.site.url) or "/" for url in second.fetched)
        assert fetched == dict.fromkeys(played.site.links, 1)
    assert_ended_well(first, second)


def test_default(valkey: Server, key: str, tmp_path: Path) -> None:
    """Without the setting, a failed page is seen and not kept."""
    with valkey.client() as client, scene(star(13), tmp_path, valkey.url, key) as played:
        played.spider = unfiltered.__file__
        failing_fifth(played)
        settings: Kind = {**OURS, "SCHEDULER_PERSIST": True, "RETRY_TIMES": 1}
        first = played.crawl(settings, "first")
        assert not client.exists(f"{{{key}:queue}}:failed")
        played.site.answers = {}
        second = played.crawl(settings, "second")
        assert answers_of(played, "second") == {"/"}
    assert "bloomfilter/failed" not in first.stats
    assert_ended_well(first, second)
