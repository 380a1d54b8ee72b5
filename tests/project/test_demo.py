"""The demo accounts for every page: its counts, its faults, and its exit code."""

import json
import operator
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from devtools.crawl_process import ROOT
from devtools.demo.table import Memory, Report
from devtools.demo.tally import Tally
from devtools.site import MadeUpLinks
from tests.support.clusters import running_cluster
from tests.support.selection import long_unless

SITE = MadeUpLinks(pages=60, links=40)
# None of these is the only link to another page.
DROPPED = ("/page/57", "/page/58", "/page/59")
# Ends a demo that hangs before the limit of the test does, with the logs of its workers.
TIMEOUT = 300

# A filter that takes these pages for the first page.
LEAKY = f"""
from urllib.parse import urljoin
from scrapy_bloom import BloomRFPDupeFilter


class LeakyDupeFilter(BloomRFPDupeFilter):
    def request_fingerprint(self, request):
        if request.url.endswith({DROPPED!r}):
            request = request.replace(url=urljoin(request.url, "/"))
        return super().request_fingerprint(request)
"""
LEAKY_SETTINGS = """
from crawler.settings import *

DUPEFILTER_CLASS = "leaky.LeakyDupeFilter"
"""


def demo(*options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the demo with a small site and a server of its own."""
    command = [sys.executable, "-m", "devtools.demo", "--pages", f"{SITE.pages}", "--links", f"{SITE.links}"]
    inherited = {name: value for name, value in os.environ.items() if name != "REDIS_URL"}
    return subprocess.run(
        [*command, "--timeout", f"{TIMEOUT}", *options],
        cwd=ROOT,
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def counts(table: str) -> dict[str, float]:
    """The rows of a table that have one number."""
    rows = re.findall(r"^(\S+(?: \S+)*)  +([\d.,e-]+)$", table, re.MULTILINE)
    return {label: float(number.replace(",", "")) for label, number in rows}


@pytest.mark.crawl
@pytest.mark.parametrize("options", long_unless(operator.not_, [(), ("--cluster",), ("--sentinel",)]))
def test_demo_passes(options: tuple[str, ...]) -> None:
    """Two workers fetch each page once, and each link is accounted for."""
    ran = demo(*options)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert ran.stdout.endswith(f"\n\nPassed: every page was fetched exactly once ({SITE.pages} pages).\n")
    shown = counts(ran.stdout)
    # Each worker offers the start page.
    links = sum(len(set(SITE.targets(page))) for page in range(SITE.pages)) + 2
    assert shown == {
        "pages fetched": SITE.pages,
        "pages fetched twice": 0,
        "pages missed": 0,
        "links offered": links,
        "repeats filtered": links - SITE.pages,
    }


@pytest.mark.long
@pytest.mark.crawl
def test_demo_on_a_cluster_of_the_user() -> None:
    """A URL may name a cluster, as REDIS_URL does; the demo leaves no key there."""
    with running_cluster(2) as nodes:
        ran = demo("--redis-url", f"redis+cluster://127.0.0.1:{nodes[0].port}")
        assert (ran.returncode, ran.stderr) == (0, "")
        for node in nodes:
            with node.client() as client:
                assert client.dbsize() == 0


@pytest.mark.long
@pytest.mark.crawl
def test_demo_fails_where_pages_are_missed(tmp_path: Path) -> None:
    """A filter that drops three pages is detected: each is named as missed."""
    (tmp_path / "leaky.py").write_text(LEAKY)
    (tmp_path / "leaky_settings.py").write_text(LEAKY_SETTINGS)
    paths = [str(tmp_path), str(ROOT / "example_project"), str(ROOT)]
    ran = demo(SCRAPY_SETTINGS_MODULE="leaky_settings", PYTHONPATH=os.pathsep.join(paths))
    assert ran.returncode == 1, ran.stderr
    assert ran.stdout.endswith("\n\nFailed: 3 pages missed, 0 pages fetched twice.\n")
    shown = counts(ran.stdout)
    assert (shown["pages fetched"], shown["pages missed"], shown["pages fetched twice"]) == (SITE.pages - 3, 3, 0)
    assert re.sub(r"http://[^/]+", "", ran.stderr).splitlines() == [f"missed: {path}" for path in DROPPED]


A, B, C = "http://shop.test/a", "http://shop.test/b", "http://shop.test/c?y=2&x=1"
SAME_AS_C = "http://shop.test/c?x=1&y=2#top"

Ledgers = Sequence[Sequence[object]]
Read = Callable[..., Tally]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a tally of the ledgers of some workers, each given as its entries."""

    def of(*ledgers: Ledgers) -> Tally:
        paths = [tmp_path / f"{number}.ledger" for number in range(len(ledgers))]
        for path, entries in zip(paths, ledgers, strict=True):
            path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
        tally = Tally(paths)
        tally.read()
        return tally

    return of


def reported(tally: Tally, *expected: str) -> Report:
    """Make the report on a crawl of the expected pages."""
    return Report(tally, tally.missed(expected), Memory(filter=10, set=20), capacity=10)


def test_each_page_once_passes(read: Read) -> None:
    """A crawl passes if each page was fetched once, by any worker, by a retry too, under any spelling of its URL."""
    one = [["offered", A], ["fetched", A, 0], ["fetched", A, 1], ["offered", C]]
    report = reported(read(one, [["offered", A], ["fetched", SAME_AS_C, 0]]), A, SAME_AS_C)
    assert report.passed
    assert report.faults() == ""


def test_page_that_was_offered_and_not_fetched(read: Read) -> None:
    """A page that a worker offered and none fetched is missed, and fails the crawl."""
    report = reported(read([["offered", A], ["offered", B], ["fetched", A, 0]]))
    assert (report.passed, report.faults()) == (False, f"missed: {B}")
    assert counts(report.table())["pages missed"] == 1


def test_page_that_nobody_met(read: Read) -> None:
    """An expected page is missed even if no worker found a link to it."""
    report = reported(read([["offered", A], ["fetched", A, 0]]), A, C)
    assert (report.passed, report.faults()) == (False, f"missed: {SAME_AS_C.removesuffix('#top')}")


@pytest.mark.parametrize("workers", [1, 2])
def test_page_that_was_fetched_twice(read: Read, workers: int) -> None:
    """A page fetched twice, by one worker or by two, is named, and fails the crawl."""
    fetched = ["fetched", A, 0]
    report = reported(read([["offered", A], fetched, fetched]) if workers == 1 else read([fetched], [fetched]), A)
    assert (report.passed, report.faults()) == (False, f"fetched twice: {A}")
    assert counts(report.table())["pages fetched twice"] == 1


def test_ledger_is_read_while_it_grows(tmp_path: Path) -> None:
    """Each line counts once, and an incomplete one when it is complete."""
    path = tmp_path / "ledger"
    tally = Tally([path])
    tally.read()
    whole = json.dumps(["fetched", A, 0]) + "\n"
    for text, fetched in ((whole[:9], set()), (whole[9:], {A}), (whole.replace("/a", "/b"), {A, B})):
        with path.open("a") as file:
            file.write(text)
        tally.read()
        assert tally.fetched == fetched
    assert tally.fetched_twice == set()
