"""The example project can be copied: its spiders run unchanged elsewhere. `test_demo` runs `shared`."""

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devtools.crawl_process import ROOT, CrawlProcess, Job
from devtools.site import Site, serving
from tests.support import forked
from tests.support.outcomes import assert_ended_well, complaints_in
from tests.support.pages import linked
from tests.support.servers import Server
from tests.support.waiting import until

PAGES = 60
FAILED = "Error downloading"

Start = Callable[..., CrawlProcess]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project."""
    return shutil.copytree(ROOT / "example_project", tmp_path / "copy")


@pytest.fixture
def site() -> Iterator[Site]:
    """A site whose pages link to each other."""
    with serving(linked(PAGES)) as site:
        yield site


@pytest.fixture
def start(project: Path, valkey: Server, key: str) -> Iterator[Start]:
    """Starts a worker in the copy, with keys of this test."""
    workers: list[CrawlProcess] = []

    def begin(name: str, spider: str, settings: dict[str, object] | None = None, **arguments: object) -> CrawlProcess:
        # The site is on this machine and needs no politeness.
        common = {"DOWNLOAD_DELAY": 0, "ROBOTSTXT_OBEY": False, "BLOOMFILTER_ERROR_RATE": 1e-12}
        keys = {"SCHEDULER_DUPEFILTER_KEY": key, "SCHEDULER_QUEUE_KEY": f"{key}:queue"}
        settings = {**common, **keys, **(settings or {})}
        environment = {"REDIS_URL": valkey.url, "SCRAPY_PROJECT": "default"}
        job = Job(("crawl", spider), arguments, settings, environment)
        workers.append(CrawlProcess(name, job, project, launch=forked.start))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.kill()


def test_copy(project: Path) -> None:
    """Scrapy finds the three spiders in the copy, whose first crawl is polite to a stranger's site."""
    for arguments, lines in (
        (["list"], ["fed", "plugin", "shared"]),
        (["settings", "--get", "ROBOTSTXT_OBEY"], ["True"]),
        (["settings", "--get", "DOWNLOAD_DELAY"], ["1"]),
    ):
        said = forked.run(arguments, project, os.environ)
        assert (said.returncode, said.stdout.split()) == (0, lines), said.stderr


@pytest.mark.crawl
def test_plugin(start: Start, site: Site, valkey: Server, key: str) -> None:
    """Two workers under scrapy-redis's scheduler share queue and filter, and fetch each page once."""
    start_key = f"{key}:start_urls"
    names = {"first", "second"}

    def agents() -> set[str]:
        return {name for name, _ in site.fetched}

    def wait_for_both(_: str) -> None:
        """Let pages below the first wait for the other worker, which must find one in the queue."""
        if len(site.fetched) > 1:
            until(lambda: agents() == names)

    site.before = wait_for_both
    with valkey.client() as stored:
        stored.rpush(start_key, json.dumps({"url": f"{site.url}/"}))
        # As by default the key has the spider's name, so that the crawl may delete it.
        keys = {"REDIS_START_URLS_KEY": start_key, "SCHEDULER_DUPEFILTER_KEY": f"{key}:%(spider)s"}
        own = {**keys, "CONCURRENT_REQUESTS": 1}
        workers = [start(name, "plugin", {**own, "USER_AGENT": name}) for name in sorted(names)]
        until(lambda: set(site.paths) == set(site.links) and not stored.exists(f"{key}:queue"))
        for worker in workers:
            worker.process.send_signal(signal.SIGINT)
        ended = [worker.wait() for worker in workers]
        assert stored.type(f"{key}:plugin") == b"hash", "a filter, no SET"
    assert Counter(site.paths) == dict.fromkeys(site.links, 1)
    assert agents() == names
    for crawl in ended:
        assert crawl.stats["finish_reason"] == "shutdown"
        assert crawl.stats["bloomfilter/count"] == PAGES
        assert "scrapy_bloom.addon" not in crawl.log
        assert complaints_in(crawl.log) == []


@pytest.mark.crawl
def test_fed(start: Start, site: Site, valkey: Server, key: str) -> None:
    """A worker waits for start URLs, in JSON and plain, follows them, and fetches no URL twice."""
    start_key = f"{key}:start_urls"
    worker = start("worker", "fed", {"REDIS_START_URLS_KEY": start_key})
    with valkey.client() as stored:
        for entry in (json.dumps({"url": site.url}), site.url):
            stored.rpush(start_key, entry)
            until(lambda: (set(site.paths) == set(site.links) and not stored.exists(start_key)) or FAILED in worker.log)
        worker.process.send_signal(signal.SIGINT)
        ended = worker.wait()
        assert stored.exists(key), "the filter stays for the next start"
    assert ended.stats["finish_reason"] == "shutdown"
    assert Counter(site.paths) == dict.fromkeys(site.links, 1)


@pytest.mark.crawl
def test_resumed(start: Start, site: Site) -> None:
    """A stopped crawl resumes, and fetches no page twice."""
    first = start("first", "shared", {"CLOSESPIDER_PAGECOUNT": 10, "CONCURRENT_REQUESTS": 1}, start_url=site.url)
    assert first.wait().stats["finish_reason"] == "closespider_pagecount"
    assert 10 <= len(site.paths) < PAGES
    assert_ended_well(start("second", "shared", start_url=site.url).wait())
    assert Counter(site.paths) == dict.fromkeys(site.links, 1)
