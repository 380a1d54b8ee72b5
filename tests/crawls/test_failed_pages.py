"""Crawls with pages that fail: with BLOOMFILTER_RETRY_FAILED the next crawl fetches these, and no others.

BloomScheduler keeps the requests; under others the filter forgets them.
"""

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.support import crawling
from tests.support.extensions import HOOKS, Hooks, enabling
from tests.support.outcomes import assert_ended_well
from tests.support.pages import star
from tests.support.scenario import FILTER_ALONE, OURS, Kind, Scene, scene
from tests.support.servers import Server
from tests.support.spiders import failing, raising, unfiltered

FORGETS: Kind = {"BLOOMFILTER_RETRY_FAILED": True, "SCHEDULER_PERSIST": True, "RETRY_TIMES": 1}
FORGOTTEN = "bloomfilter/forgotten"
SCHEDULERS: dict[str, Kind] = {
    "scrapy-redis": FILTER_ALONE,
    "Scrapy": {"SCHEDULER": crawling.OWN_SCHEDULER, "DUPEFILTER_CLASS": crawling.BLOOM},
}

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
    **FORGETS,
    "DOWNLOADER_MIDDLEWARES": f'{{"{failing.__name__}.OwnRetry": 550, '
    '"scrapy.downloadermiddlewares.retry.RetryMiddleware": null}',
}


@pytest.mark.parametrize("kind", SCHEDULERS.values(), ids=SCHEDULERS)
def test_failures_of_every_kind(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """Each failed page is fetched by the next crawl, with the pages that redirected to it; no other page is."""
    with scene(SITE, tmp_path, valkey.url, key) as played:
        played.spider = failing.__file__
        played.site.answers = {**FAILED, **FINE}
        first = played.crawl(kind, "first", FAILS=1, **OWN_RETRY)
        played.site.answers = {path: answer for path, answer in FAILED.items() if isinstance(answer, str)}
        second = played.crawl(kind, "second", FAILS=0, **OWN_RETRY)
        third = played.crawl(kind, "third", FAILS=0, **OWN_RETRY)
        asked = Counter(played.site.fetched)
        of_second = {path: asked["second", path] for worker, path in asked if worker == "second"}
        assert of_second == dict.fromkeys({"/", *FAILED, *RAISING}, 1)
        assert answers_of(played, "third") == {"/"}
        # Retries are no failures, and a failed page is not offered again at once.
        assert (asked["first", "/refused"], asked["first", "/raises"]) == (2, 1)
    assert first.stats[FORGOTTEN] == len(FAILED) + len(RAISING)
    assert FORGOTTEN not in {*second.stats, *third.stats}
    assert_ended_well(second, third)


@pytest.mark.parametrize("kind", SCHEDULERS.values(), ids=SCHEDULERS)
def test_pages_that_always_fail(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """Failed pages that link to each other end the crawl.

    A worker fetches each three times, and once more if it met a link before the third failure.
    """
    links = {"/": ["/a", "/b"], "/a": ["/b", "/c"], "/b": ["/c", "/a"], "/c": ["/a", "/b", "/c"]}
    with scene(links, tmp_path, valkey.url, key) as played:
        played.spider = raising.__file__
        ended = [played.crawl(kind, name, **FORGETS) for name in ("first", "second")]
        asked = Counter(played.site.fetched)
        assert [each.stats["finish_reason"] for each in ended] == ["finished"] * 2
        assert {asked[name, path] for name in ("first", "second") for path in ("/a", "/b", "/c")} <= {1, 2, 3, 4}


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
        first = played.crawl({**OURS, **FORGETS, "SCHEDULER_PERSIST": False}, "first")
        played.site.answers = {}
        second = played.crawl({**OURS, **FORGETS, "SCHEDULER_PERSIST": False}, "second")
        # The start URL has no slash.
        fetched = Counter(url.removeprefix(played.site.url) or "/" for url in second.fetched)
        assert fetched == dict.fromkeys(played.site.links, 1)
    assert_ended_well(first, second)


def test_default(valkey: Server, key: str, tmp_path: Path) -> None:
    """Without the setting, a failed page is seen and not kept, and nothing watches the pages."""
    with valkey.client() as client, scene(star(13), tmp_path, valkey.url, key) as played:
        played.spider = unfiltered.__file__
        failing_fifth(played)
        settings: Kind = {**OURS, **enabling(Hooks), "SCHEDULER_PERSIST": True, "RETRY_TIMES": 1}
        first = played.crawl(settings, "first")
        assert not client.exists(f"{{{key}:queue}}:failed")
        played.site.answers = {}
        second = played.crawl(settings, "second")
        watched = played.crawl(settings, "watched", **FORGETS)
        assert answers_of(played, "second") == {"/"}
    assert {FORGOTTEN, "bloomfilter/failed"}.isdisjoint(first.stats)
    assert (first.stats[HOOKS], watched.stats[HOOKS]) == (False, True)
    assert_ended_well(first, second)
