"""The language of docstrings, comments, log lines and pages: `devtools.prose` has the table of patterns."""

from pathlib import Path

import pytest

from devtools import prose

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", [*prose.PRODUCT, "benchmarks", "devtools", "tests", "noxfile.py"])
def test_no_findings(path: str) -> None:
    """No sentence matches a pattern."""
    read = [*prose.read(ROOT / path)]
    assert read
    assert [f"{each.path}:{each.line}: {each.text}" for each in read if prose.findings(each.text)] == []


@pytest.mark.parametrize("pattern", prose.PATTERNS, ids=lambda pattern: pattern.reason)
def test_patterns(pattern: prose.Pattern) -> None:
    """Each pattern finds its example and accepts the correction."""
    assert pattern.reason in prose.findings(pattern.example.strip("`"))
    assert prose.findings(pattern.better.strip("`")) == []


def test_idioms() -> None:
    """A question and an infinitive are no findings."""
    assert prose.findings("Choose what to do.") == prose.findings("Disk full: what now?") == []
