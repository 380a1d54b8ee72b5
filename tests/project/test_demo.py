"""The demo accounts for every page."""

import subprocess
import sys

import pytest

from devtools import demo
from devtools.crawl_process import ROOT
from devtools.site import MadeUpLinks, serving


@pytest.mark.long
@pytest.mark.crawl
def test_demo() -> None:
    """Two workers fetch each page once."""
    command = [sys.executable, "-m", "devtools.demo", "--pages", "60"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert printed.endswith("\n\nPassed: every page was fetched exactly once (60 pages).\n")


def test_verdict() -> None:
    """Pages that were missed or fetched twice are faults."""
    with serving(MadeUpLinks(2, 1)) as site:
        site.fetched.extend([("one", "/"), ("other", "/")])
        assert demo.fetched_twice(site) == ["/"]
        assert demo.verdict(site, ["/page/1"], ["/"]) == "Failed: 1 page missed, 1 page fetched twice."
