"""The language of docstrings, comments, log lines and pages: `devtools.prose` has the table of patterns."""

from pathlib import Path

import pytest

from devtools import prose

ROOT = Path(__file__).parents[2]
SCRIPT = '''"""Return one thing. It has `code. With a stop`, `more`, e.g. this (Bloom, 1970).

Args:
    first: its meaning. And more
        on another line.

Example:
    >>> f("No. Prose.")
"""

LEVELS = 3  # trailing
# A comment
# over two lines.
raise ValueError(f"{name} = {value}: must be " "an integer.")
CODE = ["import this\\nimport that", "local a = 1\\nredis.call('GET', a)"]
'''
PAGE = """# A heading

A paragraph with a [link](https://example.org/).
- an item
- **an item.** Two sentences.

```python
no prose
```

| a cell | 1.5 |
"""


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


@pytest.mark.parametrize(
    ("name", "content", "sentences"),
    [
        (
            "script.py",
            SCRIPT,
            [
                (1, "Return one thing."),
                (1, "It has CODE, e.g. this (Bloom, 1970)."),
                (4, "its meaning."),
                (4, "And more on another line."),
                (14, "CODE = CODE: must be an integer."),
                (11, "trailing"),
                (12, "A comment over two lines."),
            ],
        ),
        (
            "script.lua",
            "-- One line\n-- and another.\nreturn 1 -- trailing\n",
            [(1, "One line and another."), (3, "trailing")],
        ),
        (
            "page.md",
            PAGE,
            [
                (1, "A heading"),
                (3, "A paragraph with a link."),
                (4, "an item"),
                (5, "**an item.**"),
                (5, "Two sentences."),
                (11, "a cell"),
                (11, "1.5"),
            ],
        ),
    ],
)
def test_sentences(tmp_path: Path, name: str, content: str, sentences: list[tuple[int, str]]) -> None:
    """Sentences are found with their lines; code, examples, links and fenced blocks are no prose."""
    (tmp_path / name).write_text(content)
    assert [(each.line, each.text) for each in prose.read(tmp_path)] == sentences
