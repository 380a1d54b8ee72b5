"""The demo accounts for every page."""

import subprocess
import sys

import pytest

from devtools.crawl_process import ROOT


@pytest.mark.long
@pytest.mark.crawl
def test_demo() -> None:
    """Two workers fetch each page once."""
    command = [sys.executable, "-m", "devtools.demo", "--pages", "60"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert printed.endswith("\n\nPassed: every page was fetched exactly once (60 pages).\n")
