"""The README and the pages of the documentation, as tests read them."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Paths from docs/.
EVERY_PAGE = ("../README.md", *sorted(path.name for path in DOCS.glob("*.md")))
# The address of Redis on every page.
PLACEHOLDER = "redis://localhost:6379"
# Appended to settings of a page: the site is on this machine and needs no politeness.
IMPOLITE = "DOWNLOAD_DELAY = 0\nROBOTSTXT_OBEY = False\nTELNETCONSOLE_ENABLED = False\n"
# A number, a size, a process and the rest of a bar depend on the run.
VARIABLE = re.compile(r"host-\d+-\w+|[\d.,]+(?:e-\d+)?|…")


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    language: str
    text: str


def text(file: str) -> str:
    """Return the text of a file of this repository."""
    return (ROOT / file).read_text()


def text_of(page: str) -> str:
    """Return the text of a page."""
    return (DOCS / page).read_text()


def all_blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in its order."""
    found = re.findall(r"^```(\S*)\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
    return [Block(page, language, content) for language, content in found]


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in one language."""
    return [block.text for block in all_blocks(page) if block.language == language]


def section(file: str, heading: str) -> str:
    """Return the text behind a heading of the second or third level, up to the next one of the same level."""
    found = re.search(rf"^(##+) {re.escape(heading)}\n(.*?)(?=^\1 |\Z)", text(file), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{file} has no heading {heading}"
    return found[2]


def tables(file: str, heading: str) -> list[list[list[str]]]:
    """Return the tables behind a heading: the rows of each without its head, as cells."""
    found = re.findall(r"(?:^\|.*\n)+", section(file, heading), re.MULTILINE)
    assert found, f"{file} has no table behind {heading}"
    rows = [[line.strip("|").split("|") for line in each.splitlines()[2:]] for each in found]
    return [[[cell.strip() for cell in row] for row in each] for each in rows]


def table(file: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table behind a heading."""
    return tables(file, heading)[0]


def matches(line: str, printed: str) -> bool:
    """Return whether a line of a sample was printed, with other numbers and another alignment."""
    words = [r"[\w.,-]+".join(map(re.escape, VARIABLE.split(word))) for word in line.split()]
    return line == "…" or re.search(r"\s+".join(words), printed) is not None
