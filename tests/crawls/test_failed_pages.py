"""Crawls with pages that fail: with BLOOMFILTER_RETRY_FAILED the next crawl fetches these, and no others.

BloomScheduler keeps the requests, see also `test_kept_pages`; under others the filter forgets them.
"""

import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.support import crawling
from tests.support.extensions import HOOKS, Hooks, enabling
from tests.support.outages import Outage
from tests.support.pages import star
from tests.support.scenario import FILTER_ALONE, LEASE, OURS, PAGES, Kind, Scene, assert_ended_well, scene
from tests.support.servers import Server
from tests.support.spiders import failing, raising, unfiltered

pytestmark = pytest.mark.crawl

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


@pytest.mark.parametrize("kind", SCHEDULERS.values(), ids=SCHEDULERS)
def test_failures_of_every_kind(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """Each failed page is fetched by the next crawl, with the pages that redirected to it; no other page is."""
    settings: Kind = {
        **FORGETS,
        "DOWNLOADER_MIDDLEWARES": f'{{"{failing.__name__}.OwnRetry": 550, '
        '"scrapy.downloadermiddlewares.retry.RetryMiddleware": null}',
    }
    links = {"/": LINKED, **{path: [] for path in (*FAILED, *RAISING, *FINE, "/well")}}
    with scene(links, tmp_path, valkey.url, key) as played:
        played.spider = failing.__file__
        played.site.answers = {**FAILED, **FINE}
        first = played.crawl(kind, "first", FAILS=1, **settings)
        played.site.answers = {path: answer for path, answer in FAILED.items() if isinstance(answer, str)}
        second = played.crawl(kind, "second", FAILS=0, **settings)
        third = played.crawl(kind, "third", FAILS=0, **settings)
        assert answers_of(played, "second") == {"/", *FAILED, *RAISING}
        assert answers_of(played, "third") == {"/"}
        asked = Counter(played.site.fetched)
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


@pytest.mark.parametrize("kind", SCHEDULERS.values(), ids=SCHEDULERS)
def test_a_fifth_fails_at_first(kind: Kind, valkey: Server, key: str, tmp_path: Path) -> None:
    """Of a site that recovers, the second crawl fetches exactly the pages that failed in the first."""
    with scene(star(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = unfiltered.__file__
        failed = failing_fifth(played)
        first = played.crawl(kind, "first", **FORGETS)
        played.site.answers = {}
        second = played.crawl(kind, "second", **FORGETS)
        asked = Counter(path for worker, path in played.site.fetched if worker == "second")
        assert asked == Counter({"/", *failed})
    assert first.stats[FORGOTTEN] == len(failed)
    assert_ended_well(first, second)


def test_failures_of_every_kind_are_kept(valkey: Server, key: str, tmp_path: Path) -> None:
    """BloomScheduler keeps each failed request once, and the next crawl fetches it again."""
    links = {"/": LINKED, **{path: [] for path in (*FAILED, *RAISING, *FINE, "/well")}}
    settings: Kind = {
        **FORGETS,
        **OURS,
        "DOWNLOADER_MIDDLEWARES": f'{{"{failing.__name__}.OwnRetry": 550, '
        '"scrapy.downloadermiddlewares.retry.RetryMiddleware": null}',
    }
    kept = {*FAILED, *RAISING} - {"/moved", "/moved-again"}
    with valkey.client() as client, scene(links, tmp_path, valkey.url, key) as played:
        played.spider = failing.__file__
        played.site.answers = {**FAILED, **FINE}
        first = played.crawl(settings, "first", FAILS=1)
        assert client.hlen(f"{{{key}:queue}}:failed") == len(kept)
        played.site.answers = {}
        before = len(played.site.fetched)
        second = played.crawl(settings, "second", FAILS=0)
        again = {path for _, path in played.site.fetched[before:]}
    assert first.stats["bloomfilter/failed"] == len(kept)
    assert again == {*kept, "/"}
    assert second.stats["finish_reason"] == "finished"


def test_default(valkey: Server, key: str, tmp_path: Path) -> None:
    """Without the setting, a failed page is seen, and nothing watches the pages."""
    with scene(star(13), tmp_path, valkey.url, key) as played:
        played.spider = unfiltered.__file__
        failing_fifth(played)
        settings: Kind = {**OURS, **enabling("EXTENSIONS", Hooks), "SCHEDULER_PERSIST": True, "RETRY_TIMES": 1}
        first = played.crawl(settings, "first")
        played.site.answers = {}
        second = played.crawl(settings, "second")
        watched = played.crawl(settings, "watched", **FORGETS)
        assert answers_of(played, "second") == {"/"}
    assert FORGOTTEN not in first.stats
    assert (first.stats[HOOKS], watched.stats[HOOKS]) == (False, True)
    assert_ended_well(first, second)


def test_kills_and_an_outage(durable: Server, key: str, tmp_path: Path) -> None:
    """Workers and Redis are killed while a fifth of the pages fail: the next crawl fetches all missing pages."""
    settings: Kind = {**OURS, **LEASE, **FORGETS, "CONCURRENT_REQUESTS": 4}
    source = random.Random(3)
    with scene(star(PAGES), tmp_path, durable.url, key) as played:
        played.spider = unfiltered.__file__
        failed = failing_fifth(played)
        away = Outage(durable, 2.0)

        def kill(victim: str) -> None:
            worker = next(each for each in played.workers if each.name == victim)
            if worker.process.poll() is not None:  # it was killed while this page was on its way: another one will do
                played.moments.when(played.moments.asked + 1, kill)
                return
            # In this order the list has grown before the last of the others can have ended.
            played.start(f"worker-{len(played.workers)}", settings)
            worker.kill()

        for part in range(3):
            played.moments.when(25 + 30 * part + source.randrange(10), kill)
        played.moments.when(70, away)
        for number in range(2):
            played.start(f"worker-{number}", settings)
        crawls = [worker.wait() for worker in played.workers]  # the list grows
        away.join()
        got = played.fetched.keys() - failed
        played.site.answers = {}
        second = played.crawl(settings, "second")
        again = {url.removeprefix(played.site.url) for url in second.fetched}
        assert played.site.links.keys() - got - again == set()
        assert again >= failed
    assert len([crawl for crawl in crawls if crawl.exit_code == -signal.SIGKILL]) == 3
    assert_ended_well(second, *(crawl for crawl in crawls if crawl.exit_code != -signal.SIGKILL))
