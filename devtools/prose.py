"""Lint prose: docstrings, comments, log lines, errors and help texts of Python, comments of Lua, and Markdown.

`python -m devtools.prose [PATH...]` prints every finding as file:line, and how often each page speaks to its reader and
gives a reason. Without a path it reads the package and its documentation.

Code is short, so there a noun is better than a clause. A page explains, so there only a calque is a finding.
"""

import ast
import contextlib
import re
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

PRODUCT = ("scrapy_bloom", "docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "example_project")


class Pattern(NamedTuple):
    """A habit of language that costs the reader time."""

    regex: str
    reason: str
    example: str
    better: str


# Of docstrings, comments, strings and log lines.
IN_CODE = (
    # A question and an infinitive are idiom: "what now?", "what to do".
    Pattern(
        r"\bwhat\b(?!\s+to\b)(?!.*\?)",
        "a noun of the field is shorter than a clause",
        "`what could not be delivered`",
        "`undelivered requests`",
    ),
    Pattern(r"\b(?:who|what|which)(?:so)?ever\b", "name the actor", "`whoever calls`", "`the caller`"),
    Pattern(
        r"\b(?:those|ones?|nothing|anything)\s+(?:that|which|who|whose)\b",
        "an adjective and a noun are shorter than a clause",
        "`one that is dead`",
        "`a dead worker`",
    ),
    Pattern(r"\bnobody\b", "name the actor", "`nobody has it`", "`no worker holds the lease`"),
    Pattern(
        r"\b(?:told|tells?|telling)\s+of\b",
        "use the verb of the trade: log, count, report, raise",
        "`failures are told of`",
        "`failures are logged`",
    ),
    Pattern(r"\ban\s+other\b|\bthe\s+begin\b", "not English", "`an other worker`", "`another worker`"),
    Pattern(
        r"(?:\S+\s+){35}\S+",
        "a sentence over 35 words is read twice",
        f"`{'word ' * 36}`",
        f"`{'word ' * 34}word`",
    ),
)
# Of pages: word for word from another language, or from a dialect of specifications.
IN_PAGES = (
    Pattern(r"\banew\b", "say again, or start over", "`crawl anew`", "`start over`"),
    Pattern(r"\b(?:once more|for ever)\b", "say again, or forever", "`it is asked once more`", "`it is asked again`"),
    Pattern(r"\bmend(?:s|ed|ing)?\b", "software is fixed or repaired", "`that is mended`", "`that is fixed`"),
    Pattern(
        r"\brather\b(?! than)[^.;]*\bthan\b",
        "say better … than, or instead",
        "`a page is rather fetched twice than never`",
        "`better to fetch a page twice than to miss it`",
    ),
    Pattern(
        r"(?<!there )\b(?:is|are|was|were) no (?!longer|more|less|such|different|better|worse|in)\w",
        "say is not a …",
        "`it is no failure`",
        "`it is not a failure`",
    ),
    Pattern(
        r"\b(?:knows?|names?|forgets?|ends?|meets?) no\b",
        "negate the verb",
        "`the add-on knows no spider`",
        "`the add-on does not know the spider`",
    ),
    Pattern(
        r"\bagain\s+(?:whose|which|that)\b",
        "put the clause beside its noun",
        "`fetches pages again whose download failed`",
        "`fetches failed pages again`",
    ),
    Pattern(
        r"\b(?:the way of an?|users? of the server|in every end|for seen)\b",
        "word for word from another language",
        "`give the crawl a user of the server`",
        "`create a Redis user for the crawl`",
    ),
    Pattern(
        r"\b(?:crawls?|checks?) (?:warns?|learns?|meets?|knows?)\b",
        "a thing does not act like a person",
        "`a crawl warns`",
        "`the worker logs a warning`",
    ),
    Pattern(
        r"\b(?:page|file|log|table|section) ha(?:s|ve) (?!to\b|been\b|it\b)",
        "say contains, lists, shows",
        "`the page has the docstrings`",
        "`the page lists the docstrings`",
    ),
    Pattern(r"\b(?:an?|cached|the) repeats?\b", "readers say duplicate", "`a cached repeat`", "`a cached duplicate`"),
    Pattern(
        r"^This page (?:shows|lists|covers|describes|is|says|contains)\b",
        "begin with the reader's problem",
        "`This page shows how a crawl is resumed`",
        "`A crawl stopped half-way?`",
    ),
    Pattern(r"\ban\s+other\b|\bthe\s+begin\b", "not English", "`an other worker`", "`another worker`"),
)
PAGE = ".md"
# The goals of a page, in 1,000 words of its prose.
READER, REASONS = 10, 8

_READER = r"\b(?:you|your|yours|yourself)\b"
_REASON = (
    r"\b(?:because|since|so that|however|for example|e\.g\.|instead|if you|when you|note that|th(?:is|at) means"
    r"|therefore)\b"
)
_CODE = re.compile(r"``.+?``|`[^`]+`", re.DOTALL)
_CODES = re.compile(r"CODE(?:, CODE)+")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
# A sentence ends before anything but a small letter. "et al." and such are followed by one, or by a comma.
_END = re.compile(r"(?<=[.!?])[\"')\]*]*\s+(?![a-z])")
# A list item, the entry of a section, a heading: each begins a sentence without being part of the one before.
_OPENING = re.compile(r"^\s*(?:[-*#>]+ +|\d+\. +|\*{0,2}\w+: +|`[^`]+`: +|\w+:$)")
_PICTURE = re.compile(r"[─│┌└├▲▼►]")
# A name and its meaning in columns, as at the head of a script.
_COLUMNS = re.compile(r"(?<=\S) {2,}(?=\S)")


class Sentence(NamedTuple):
    """A sentence and the line on which it begins; code, or a list of code, is the word CODE."""

    path: Path
    line: int
    text: str


def read(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a file, or of all files in a folder."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if reader := _READERS.get(file.suffix):
            for line, text in reader(file):
                yield from (Sentence(file, line + below, sentence) for below, sentence in sentences(text))


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a text, and how many lines below its first line each begins.

    Examples, fenced blocks and pictures are left out. A cell of a table, an item of a list and an entry of a section
    are sentences by themselves.
    """
    for first, paragraph in _paragraphs(text):
        prose = _LINK.sub(r"\1", _CODE.sub(lambda code: "CODE" + "\n" * code.group().count("\n"), paragraph))
        start = 0
        for end in [*(match.end() for match in _END.finditer(prose)), len(prose)]:
            if sentence := _CODES.sub("CODE", " ".join(prose[start:end].split())):
                yield first + prose[:start].count("\n"), sentence
            start = end


def findings(text: str, patterns: Iterable[Pattern]) -> list[str]:
    """Return the reasons to rewrite a sentence."""
    return [pattern.reason for pattern in patterns if re.search(pattern.regex, text, re.IGNORECASE)]


def patterns_of(path: Path) -> tuple[Pattern, ...]:
    """Return the patterns to avoid in a file."""
    return IN_PAGES if path.suffix == PAGE else IN_CODE


class Manner(NamedTuple):
    """How a page speaks: its words without tables and code, and among 1,000 of them readers, reasons and colons."""

    words: int
    sentence: float
    reader: float
    reasons: float
    colons: float

    @classmethod
    def of(cls, page: Path) -> "Manner":
        """Count the words of a page."""
        prose = re.sub(r"^(?:\||#).*", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        read = [text for _, text in sentences(re.sub(r"<!--.*?-->", "", prose, flags=re.DOTALL))]
        text = "\n".join(read)
        words = len(text.split()) or 1
        reader, reasons, colons = (
            len(re.findall(regex, text, re.IGNORECASE)) * 1000 / words for regex in (_READER, _REASON, r":(?=\s)")
        )
        return cls(words, words / max(len(read), 1), reader, reasons, colons)

    def __str__(self) -> str:
        """Return the line of the report."""
        return (
            f"{self.words:,} words, {self.sentence:.1f} a sentence; in 1,000: {self.reader:.1f} you,"
            f" {self.reasons:.1f} reasons, {self.colons:.1f} colons"
        )


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a text, each with the number of lines above it."""
    lines: list[str] = []
    is_fenced = is_example = False
    for number, line in enumerate([*text.splitlines(), ""]):
        is_fence = line.lstrip().startswith("```")
        is_fenced ^= is_fence
        is_example = bool(line.strip()) and (is_example or line.lstrip().startswith(">>>"))
        is_cut = is_fence or is_fenced or is_example or bool(_PICTURE.search(line)) or not line.strip()
        *names, meaning = _COLUMNS.split(line)
        if lines and (is_cut or names or line.lstrip().startswith("|") or _OPENING.match(line)):
            yield number - len(lines), "\n".join(lines)
            lines = []
        if line.lstrip().startswith("|") and not is_cut:
            yield from ((number, cell) for cell in line.split("|"))
        elif not is_cut:
            lines.append(_OPENING.sub("", meaning))


def _python(path: Path) -> Iterator[tuple[int, str]]:
    """Yield docstrings, other strings with spaces, and comments of a Python file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "CODE" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            text = node.value
        else:
            continue
        if " " in text.strip() and not _is_code(text):
            yield node.lineno, text
    with tokenize.open(path) as file:
        comments = [token for token in tokenize.generate_tokens(file.readline) if token.type == tokenize.COMMENT]
    yield from _blocks((each.start[0], each.line, each.string.lstrip("#: ")) for each in comments)


def _is_code(text: str) -> bool:
    """Return whether a string of several lines is a script in Lua or Python."""
    if "\n" not in text:
        return False
    with contextlib.suppress(SyntaxError):
        return bool(ast.parse(textwrap.dedent(text)).body)
    return "redis.call" in text


def _lua(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the comments of a Lua script."""
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    return _blocks((number, line, line.partition("--")[2].strip()) for number, line in lines if "--" in line)


def _blocks(comments: Iterable[tuple[int, str, str]]) -> Iterator[tuple[int, str]]:
    """Yield comments, given as number, line and text: those on lines of their own that follow each other as one."""
    first, block = 0, [""]
    for number, line, text in comments:
        is_alone = line.lstrip().startswith(("#", "--"))
        if not (is_alone and number == first + len(block)):
            yield first, "\n".join(block)
            first, block = number, []
        block.append(text)
        if not is_alone:
            yield first, text
            first, block = 0, [""]
    yield first, "\n".join(block)


def _markdown(path: Path) -> Iterator[tuple[int, str]]:
    yield 1, path.read_text(encoding="utf-8")


_READERS: dict[str, Callable[[Path], Iterator[tuple[int, str]]]] = {".py": _python, ".lua": _lua, ".md": _markdown}


def main(arguments: Sequence[str]) -> int:
    """Print the findings; return 1 if there are any."""
    paths = [Path(path) for path in arguments or PRODUCT]
    lines = [
        f"{each.path}:{each.line}: {reason}: {each.text}"
        for path in paths
        for each in read(path)
        for reason in findings(each.text, patterns_of(each.path))
    ]
    pages = sorted(page for path in paths for page in ([path] if path.is_file() else path.rglob(f"*{PAGE}")))
    print(*lines, *(f"{page}: {Manner.of(page)}" for page in pages if page.suffix == PAGE), sep="\n")
    print(f"{len(lines)} findings")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
