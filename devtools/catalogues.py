"""Compare the Chinese catalogues with the texts of the pages.

`python -m devtools.catalogues` prints the entries that are missing, obsolete, fuzzy or faulty, and exits with 1 if
there are any. It expects the texts that `make docs` and `make translations` extract.
"""

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from babel.messages import Catalog
from babel.messages.pofile import read_po

ROOT = Path(__file__).parents[1]
_TEXTS = ROOT / "build/gettext"
_LOCALE = ROOT / "docs/locale/zh_CN"

_TERMS = tomllib.loads((_LOCALE / "terms.toml").read_text(encoding="utf-8"))

_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_TARGET = re.compile(r"\]\(([^)\s]+)\)|<(https?://[^>]+)>")
_BLOCK = re.compile(r"^```(?:bash|console|dockerfile|ini|pycon|python|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A comment or a docstring of one line, behind what stands before it.
COMMENT = re.compile(r'^((?:.*\S {2,})?# |""")(.+?)(?="""$|$)', re.MULTILINE)


def main() -> int:
    """Print the differences, and how many there are."""
    found = [*_of_catalogues(), *_of_comments()]
    for line in found:
        print(line)
    if found:
        print(f"{len(found):,} Chinese texts differ: run `make translations`, and translate them.")
    return bool(found)


def _of_catalogues() -> Iterator[str]:
    """Yield the entries that are missing, obsolete, fuzzy or faulty, each with its page."""
    pages = {path.stem: _read(path) for path in _TEXTS.glob("*.pot")}
    translated = {path.stem: _read(path) for path in (_LOCALE / "LC_MESSAGES").glob("*.po")}
    for page in sorted({*pages, *translated}):
        texts = {str(entry.id) for entry in pages.get(page, Catalog()) if entry.id}
        entries = {str(entry.id): entry for entry in translated.get(page, Catalog()) if entry.id}
        yield from (f"{page}: missing: {text}" for text in sorted(texts - entries.keys()))
        for text, entry in entries.items():
            translation = str(entry.string or "")
            if text not in texts:
                yield f"{page}: obsolete: {text}"
            elif entry.fuzzy:
                yield f"{page}: fuzzy: {text}"
            elif not translation.strip():
                yield f"{page}: empty: {text}"
            elif _fixed(text) != _fixed(translation):
                yield f"{page}: other code or links: {text}\n    {translation}"
            elif wrong := wrong_terms(text, translation):
                yield f"{page}: {', '.join(wrong)}: {text}\n    {translation}"


def _of_comments() -> Iterator[str]:
    """Yield the comments in the code of the pages that have no Chinese, and those that are gone."""
    shown = {
        comment
        for page in (ROOT / "docs").glob("*.md")
        for block in _BLOCK.findall(page.read_text(encoding="utf-8"))
        for _, comment in COMMENT.findall(block)
    }
    translated = tomllib.loads((_LOCALE / "comments.toml").read_text(encoding="utf-8")).keys()
    yield from (f"comments.toml: missing: {comment}" for comment in sorted(shown - translated))
    yield from (f"comments.toml: obsolete: {comment}" for comment in sorted(translated - shown))


def wrong_terms(text: str, translation: str) -> list[str]:
    """Return the terms of a text that its translation lacks, and the wrong words in the translation."""
    words = re.sub(r"\]\([^)]*\)|<http[^>]*>", "]", _CODE.sub("", text))
    found = [each for each in _TERMS["always"] if re.search(rf"\b{each}(?:s|es|d|ed)?\b", words, re.IGNORECASE)]
    lacking = [each for each in found if not any(chinese in translation for chinese in _TERMS["always"][each])]
    return lacking * (text != translation) + [word for word in _TERMS["never"] if word in translation]


def _read(path: Path) -> Catalog:
    with path.open("rb") as file:
        return read_po(file, charset="utf-8", abort_invalid=True)


def _fixed(text: str) -> Counter[str]:
    """Return what a translation must not change: code, and the targets of links."""
    targets = (inline or plain for inline, plain in _TARGET.findall(_CODE.sub("", text)))
    return Counter([*(code.strip() for _, code in _CODE.findall(text)), *targets])


if __name__ == "__main__":
    sys.exit(main())
