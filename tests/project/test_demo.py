"""The demo accounts for every page."""

import subprocess
import sys

import pytest

from devtools.crawl_process import ROOT


@pytest.mark.long
@pytest.mark.crawl
def test_demo() -> None:
    """Each crawl fetches each page once, and the filter takes fewer round trips than the SET."""
    command = [sys.executable, "-m", "devtools.demo", "--pages", "60"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert printed.endswith("\n\nPassed: every page was fetched exactly once (60 pages).\n")
    rows = {line[:28].strip(): line[28:].split() for line in printed.splitlines()}
    assert {len(rows[label]) for label in ("memory, bytes", "time, seconds")} == {3}
    of_set, of_filter, ratio = (float(cell.replace(",", "")) for cell in rows["round trips"])
    assert of_filter < of_set / 2
    assert ratio == pytest.approx(of_filter / of_set, abs=0.001)
