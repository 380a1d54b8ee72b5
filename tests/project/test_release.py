"""The changelog, the version and the workflows agree on a release."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from itertools import pairwise

import pytest
from packaging.version import Version

from devtools.crawl_process import ROOT
from devtools.release_notes import section
from tests.support.documentation import text

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
RELEASED = re.findall(r"^## (\S+)(?: - (\d{4}-\d\d-\d\d))?$", CHANGELOG, re.MULTILINE)
EXAMPLE = """# Changelog

## Unreleased

## 1.1.0 - 2026-12-01

### Added

- A long item
  on two lines:
  - with an item of its own.

A paragraph.

## 1.0.0 - 2026-11-30

- The first.
"""


def test_tests_of_each_commit() -> None:
    """The page on versions names the tests that `.ci/run` and the workflows call."""
    page = text("docs/servers.md")
    calls = {
        "`.ci/run`": text(".ci/run"),
        "in CI with each commit": text(".ci/run"),
        "in CI once a week": text(".github/workflows/weekly.yml"),
    }
    for place, commands in calls.items():
        sentences = [each for each in re.split(r"\.\s|\n\n|\n(?=\|)", page) if place in each]
        named = {target for each in sentences for target in re.findall(r"^(?:\| )?`make ([\w-]+)`", each)}
        assert named, place
        assert named <= set(re.findall(r"\bmake ([\w-]+)", commands)), place


def test_headings() -> None:
    """The changelog has the headings of Keep a Changelog, and one for the stored format."""
    assert len(RELEASED) == CHANGELOG.count("\n## ")
    allowed = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Stored format"}
    assert set(re.findall(r"^### (.*)$", CHANGELOG, re.MULTILINE)) <= allowed


def test_releases_are_in_order() -> None:
    """The section of unreleased changes is first; newer releases precede older ones, and each has a date."""
    (first, undated), *dated = RELEASED
    assert (first, undated) == ("Unreleased", "")
    assert all(Version(newer) > Version(older) for (newer, _), (older, _) in pairwise(dated))
    assert all(day for _, day in dated)


def test_version_has_one_place() -> None:
    """The version is in pyproject.toml alone, and the installed package has it."""
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version("scrapy-bloom") == written
    code = [*(ROOT / "scrapy_bloom").rglob("*.py"), ROOT / "docs" / "conf.py"]
    assert [path for path in code if f'"{written}"' in path.read_text()] == []


def test_section_of_a_release() -> None:
    """The notes have the text of one release, with each item on one line; one without date or text is refused."""
    assert section(EXAMPLE, "1.1.0") == (
        "### Added\n\n- A long item on two lines:\n  - with an item of its own.\n\nA paragraph."
    )
    assert section(EXAMPLE, "1.0.0") == "- The first."
    for changelog in (EXAMPLE.replace(" - 2026-12-01", ""), "## 1.1.0 - 2026-12-01\n\n## 1.0.0 - 2026-11-30\n"):
        with pytest.raises(ValueError, match=r"CHANGELOG\.md: has no"):
            section(changelog, "1.1.0")


def test_another_tag() -> None:
    """A tag that is not the version is refused, with the right one."""
    command = [sys.executable, "-m", "devtools.release_notes", "v0.0.1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"tag v{version('scrapy-bloom')}" in done.stderr
