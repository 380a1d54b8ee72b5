"""The language of docstrings, comments, log lines and pages: `devtools.prose` has the tables of patterns."""

from pathlib import Path

import pytest

from devtools import prose

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))


@pytest.mark.parametrize("path", [*prose.PRODUCT, "benchmarks", "devtools", "tests", "noxfile.py"])
def test_no_findings(path: str) -> None:
    """No sentence matches a pattern."""
    read = [*prose.read(ROOT / path)]
    assert read
    found = [each for each in read if prose.findings(each.text, prose.patterns_of(each.path))]
    assert [f"{each.path}:{each.line}: {each.text}" for each in found] == []


@pytest.mark.parametrize("patterns", [prose.IN_CODE, prose.IN_PAGES], ids=["code", "pages"])
def test_patterns(patterns: tuple[prose.Pattern, ...]) -> None:
    """Each pattern finds its example and accepts the correction."""
    for pattern in patterns:
        assert pattern.reason in prose.findings(pattern.example.strip("`"), patterns)
        assert prose.findings(pattern.better.strip("`"), patterns) == []


def test_idioms() -> None:
    """Questions, infinitives and plain English are not findings."""
    for text in ("Choose what to do.", "Disk full: what now?"):
        assert prose.findings(text, prose.IN_CODE) == []
    for text in (
        "There is no risk, rather than a small one.",
        "The page is no longer needed.",
        "The file has to exist.",
    ):
        assert prose.findings(text, prose.IN_PAGES) == []


@pytest.mark.parametrize("page", PAGES)
def test_goals(page: str) -> None:
    """Each page speaks to its reader, and gives reasons and examples."""
    manner = prose.Manner.of(ROOT / page)
    assert manner.reader >= prose.READER
    assert manner.reasons >= prose.REASONS


def test_manner(tmp_path: Path) -> None:
    """The counts are those of the prose alone, without its tables, headings, comments and code."""
    page = tmp_path / "page.md"
    page.write_text(
        "# You\n\n<!-- you -->\n\nIf you stop: `you`, *your* crawl\nstays. It stays.\n\n| you |\n|---|\n| you |\n"
        "\n```bash\nyou\n```\n"
    )
    assert prose.Manner.of(page) == (9, 4.5, 2000 / 9, 1000 / 9, 1000 / 9)
