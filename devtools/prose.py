"""Reads docstrings as prose: their first words, their sections, and the length of their sentences.

`python -m devtools.prose PATH...` lists what breaks the rules, in Python files, folders of them, and Markdown.
"""

import ast
import re
import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import NamedTuple

MOST_WORDS = 25
# A docstring says what something does or is; one that opens so says what it is about.
OPENINGS = ("What", "Who", "Where", "Whether", "How")
SECTIONS = ("Args", "Attributes", "Example", "Raises", "Returns", "Warning", "Yields")

_SECTIONS_OF_ENTRIES = ("Args", "Attributes", "Raises")
_HEADING = re.compile(rf"^({'|'.join(SECTIONS)}):$")
# The name, or the type, that an entry of a section begins with.
_ENTRY = re.compile(r"^(?:\*{0,2}\w+|`[^`]+`): +")
_CODE = re.compile(r"``.+?``|`[^`]+`", re.DOTALL)
# A sentence ends before anything but a small letter. "et al." and such are followed by one, or by a comma.
_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?![a-z])")
_LIST_ITEM = re.compile(r"^(?:[-*]|\d+\.) +")


class Docstring(NamedTuple):
    """A docstring, and where it stands."""

    path: Path
    line: int
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.name}"


def docstrings(path: Path) -> Iterator[Docstring]:
    """Yield the docstrings of a Python file or of all in a folder; a file of Markdown is taken for one."""
    if path.suffix == ".md":
        yield Docstring(path, 1, "", path.read_text(encoding="utf-8"))
        return
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node)
                if text is not None:
                    yield Docstring(file, getattr(node, "lineno", 1), getattr(node, "name", "(module)"), text)


def opens_badly(text: str) -> bool:
    """Return whether a docstring opens with one of the words that it should not open with."""
    return bool(re.match(rf"({'|'.join(OPENINGS)})\b", text))


def sections(text: str) -> dict[str, str]:
    """Return the sections of a docstring by their headings; that of the first one is empty."""
    parts, heading = {"": ""}, ""
    for line in cleandoc(text).splitlines():
        if match := _HEADING.match(line):
            heading = match[1]
        else:
            parts[heading] = f"{parts.get(heading, '')}{line}\n"
    return {heading: cleandoc(part) for heading, part in parts.items()}


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a docstring or of Markdown, in which code is one word.

    Code blocks, examples, tables and headings are left out. Entries of a section and items of a list are sentences by
    themselves, and the name of an entry is no part of one.
    """
    for heading, section in sections(text).items():
        for paragraph in _paragraphs(section, _ENTRY if heading in _SECTIONS_OF_ENTRIES else _LIST_ITEM):
            prose = " ".join(paragraph.split())
            yield from (sentence for sentence in _END.split(_CODE.sub("CODE", prose)) if sentence)


def words(sentence: str) -> int:
    """Return how many words a sentence has; signs between numbers are none."""
    return sum(any(character.isalnum() for character in word) for word in sentence.split())


def too_long(text: str) -> list[str]:
    """Return the sentences that have too many words."""
    return [sentence for sentence in sentences(text) if words(sentence) > MOST_WORDS]


def _paragraphs(text: str, opening: re.Pattern[str]) -> Iterator[str]:
    """Yield paragraphs; a line that matches `opening` begins one, and the match is no part of it."""
    lines: list[str] = []
    for line in _prose_lines(text):
        if lines and (not line or opening.match(line)):
            yield "\n".join(lines)
            lines = []
        if line:
            lines.append(opening.sub("", line))
    yield "\n".join(lines)


def _prose_lines(text: str) -> Iterator[str]:
    """Yield lines; what is no prose is an empty line."""
    is_example = is_fenced = False
    for line in text.splitlines():
        start = line.strip()
        is_fence = start.startswith("```")
        is_fenced ^= is_fence
        is_example = bool(start) and (is_example or start.startswith(">>>"))
        is_prose = not (is_fence or is_fenced or is_example or start.startswith(("|", "#")))
        yield line.rstrip() if is_prose else ""


def main() -> int:
    """List what breaks the rules; 1 where something does."""
    findings = 0
    for path in map(Path, sys.argv[1:]):
        for docstring in docstrings(path):
            if opens_badly(docstring.text):
                findings += 1
                print(f"{docstring}: opens with {docstring.text.split()[0]}: {docstring.text.splitlines()[0]}")
            for sentence in too_long(docstring.text):
                findings += 1
                print(f"{docstring}: {words(sentence)} words: {sentence}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
