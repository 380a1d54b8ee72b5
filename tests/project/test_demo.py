"""The demo accounts for every page: its counts, its faults, and its exit code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.crawl_process import ROOT
from devtools.site import MadeUpLinks

# Processes of their own, as `make demo` starts them.
pytestmark = pytest.mark.long
SITE = MadeUpLinks(pages=60, links=40)
# None of these is the only link to another page. A dupefilter drops the first ones, and takes the others for pages of
# this process's own.
DROPPED, REPEATED = ("/page/54", "/page/55", "/page/56"), ("/page/57", "/page/58", "/page/59")
DUPEFILTER = f"""
import os
from urllib.parse import urljoin
from scrapy_bloom import BloomRFPDupeFilter


class WrongDupeFilter(BloomRFPDupeFilter):
    def request_fingerprint(self, request):
        if request.url.endswith({DROPPED!r}):
            request = request.replace(url=urljoin(request.url, "/"))
        if request.url.endswith({REPEATED!r}):
            request = request.replace(url=f"{{request.url}}?{{os.getpid()}}")
        return super().request_fingerprint(request)
"""
SETTINGS = """
from crawler.settings import *

DUPEFILTER_CLASS = "wrong.WrongDupeFilter"
"""


def demo(*options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the demo with a small site."""
    command = [sys.executable, "-m", "devtools.demo", "--pages", f"{SITE.pages}", "--links", f"{SITE.links}"]
    return subprocess.run(
        [*command, *options],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def counts(table: str) -> dict[str, float]:
    """The rows of a table that have one number."""
    rows = re.findall(r"^(\S+(?: \S+)*)  +([\d,]+)$", table, re.MULTILINE)
    return {label: float(number.replace(",", "")) for label, number in rows}


@pytest.mark.crawl
def test_demo_passes() -> None:
    """Two workers fetch each page once, and each repeat is accounted for."""
    ran = demo()
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert ran.stdout.endswith(f"\n\nPassed: every page was fetched exactly once ({SITE.pages} pages).\n")
    # Each worker offers the start page.
    links = sum(len(set(SITE.targets(page))) for page in range(SITE.pages)) + 2
    assert counts(ran.stdout) == {
        "pages fetched": SITE.pages,
        "pages fetched twice": 0,
        "pages missed": 0,
        "repeats filtered": links - SITE.pages,
    }


@pytest.mark.crawl
def test_demo_fails(tmp_path: Path) -> None:
    """A filter that drops three pages, and under which each worker fetches three more, is detected: each is named."""
    (tmp_path / "wrong.py").write_text(DUPEFILTER)
    (tmp_path / "wrong_settings.py").write_text(SETTINGS)
    paths = [str(tmp_path), str(ROOT / "example_project"), str(ROOT)]
    ran = demo(SCRAPY_SETTINGS_MODULE="wrong_settings", PYTHONPATH=os.pathsep.join(paths))
    assert ran.returncode == 1, ran.stderr
    assert ran.stdout.endswith("\n\nFailed: 3 pages missed, 3 pages fetched twice.\n")
    assert counts(ran.stdout)["pages missed"] == len(DROPPED)
    named = [*(f"missed: {path}" for path in DROPPED), *(f"fetched twice: {path}" for path in REPEATED)]
    assert sorted(ran.stderr.splitlines()) == sorted(named)


def test_worker_that_fails(tmp_path: Path) -> None:
    """A worker that ends early fails the demo, which shows the end of its log."""
    ran = demo(SCRAPY_SETTINGS_MODULE="no_such_settings", PYTHONPATH=str(tmp_path))
    assert ran.returncode == 1
    assert "Failed: worker-1 ended early. The end of its log:\n" in ran.stderr
    assert "no_such_settings" in ran.stderr
