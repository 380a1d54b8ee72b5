"""Compare the Chinese catalogues with the texts of the pages, and each translation with its text.

`python -m devtools.catalogues` prints the entries that are missing, obsolete, fuzzy or faulty, and exits with 1 if
there are any. It expects the texts that `make docs` and `make translations` extract.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import NamedTuple

from babel.messages import Catalog, Message
from babel.messages.pofile import read_po

ROOT = Path(__file__).parents[1]
CATALOGUES = ROOT / "docs/locale/zh_CN/LC_MESSAGES"
_TEXTS = ROOT / "build/gettext"

_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_TARGET = re.compile(r"\]\(([^)\s]+)\)|<(https?://[^>]+)>")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_NUMBER = re.compile(r"(?<![A-Za-z\d])(\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?)(?: ?(thousand|million|billion|万|亿))?")
_UNITS = {"": 1, "thousand": 10**3, "million": 10**6, "billion": 10**9, "万": 10**4, "亿": 10**8}
_HAN = r"[\u3400-\u9fff]"
_FULL = "，。、：；！？（）"
_STRONG = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)

# Habits of a translation, which a Chinese engineer would not write, each with the advice.
HABITS = {
    r"(?:次|个|场|该|给|让|整个|的)爬取(?!的|到|过|了)|爬取会": "爬取 is a verb: a crawl is 任务 or 这次抓取",
    r"死(?!信|锁|循环)": "a crash is 崩溃 or 异常退出",
    r"杀(?!毒)": "to kill is 被强制结束（kill）",
    r"算作|[就仍也不都]算(?!法|出|上)": "say the consequence: 会重新抓取, 会被去重",
    r"以租约": "to lease is 登记租约",
    r"键上": "键的类型是 or 键里存的是",
    r"小了?(?:一百|[一二两三四五六七八九十\d]+) ?倍": "是…的 N 倍, or 减少 N%",
    r"\d ?%? 到 \d": "a range is 29%～33%",
    r"\d %": "95% has no space",
    r"(?s)\d ?(?:s|ms|us)\b.*。": "units in sentences are 秒、毫秒、微秒",
    r"；[^。\n]*；": "one semicolon a sentence",
    r"本页(?:说明|列出|介绍|讲)": "begin with the reader's problem",
    r"(?<![Hh])哈希被|的哈希(?!函数|值)": "Redis's is a Hash",
}


class Term(NamedTuple):
    """A row of the glossary: an English term, and its translations."""

    english: str
    chinese: tuple[str, ...]

    def is_in(self, text: str) -> bool:
        """Return whether an English text has the term."""
        return bool(re.search(rf"\b{self.english}s?\b", text, re.IGNORECASE))


@cache
def glossary() -> tuple[Term, ...]:
    """Return the glossary of CONTRIBUTING."""
    section = (
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n### Glossary\n")[2].partition("\n#")[0]
    )
    rows = re.findall(r"^\| ([\w -]+) \| (.+) \|$", section, re.MULTILINE)[1:]
    return tuple(Term(english, tuple(chinese.split(" or "))) for english, chinese in rows)


def read(path: Path) -> Catalog:
    """Read a catalogue."""
    with path.open("rb") as file:
        return read_po(file, charset="utf-8", abort_invalid=True)


def entries(catalogue: Catalog) -> Iterator[tuple[Message, str, str]]:
    """Yield the entries of a catalogue, each with its text and its translation."""
    for entry in catalogue:
        if entry.id:
            yield entry, str(entry.id), str(entry.string or "")


def faults(text: str, translation: str) -> Iterator[str]:
    """Yield the faults of a translation."""
    if not translation.strip():
        yield "empty"
        return
    prose = _prose(text)
    if re.search(r"\b[a-z]+ [a-z]+ [a-z]+\b", prose) and not re.search(_HAN, translation):
        yield "not translated"
    for name, parts in (("code", _codes), ("links", _targets), ("numbers", _numbers), ("strong text", _strong)):
        if parts(text) != parts(translation):
            yield f"other {name}"
    if _shows_asterisks(_CODE.sub("``", translation)):
        yield "** that Markdown does not read: put the punctuation outside"
    for term in glossary():
        if text != translation and term.is_in(prose) and not any(each in translation for each in term.chinese):
            yield f"{term.english} is {' or '.join(term.chinese)}"
    yield from _typography(prose, _prose(translation))
    yield from (advice for habit, advice in HABITS.items() if re.search(habit, _prose(translation)))


def differences(texts: Path, catalogues: Path) -> Iterator[str]:
    """Yield the entries that are missing, obsolete or fuzzy, each with its page."""
    pages = {path.stem: {text for _, text, _ in entries(read(path))} for path in texts.glob("*.pot")}
    translated = {path.stem: read(path) for path in catalogues.glob("*.po")}
    for page in sorted({*pages, *translated}):
        found = {text: entry for entry, text, _ in entries(translated.get(page, Catalog()))}
        expected = pages.get(page, set())
        yield from (f"{page}: missing: {text}" for text in expected if text not in found)
        yield from (f"{page}: obsolete: {text}" for text in found if text not in expected)
        yield from (f"{page}: fuzzy: {text}" for text, entry in found.items() if entry.fuzzy)


def _codes(text: str) -> Counter[str]:
    return Counter(code.strip() for _, code in _CODE.findall(text))


def _targets(text: str) -> Counter[str]:
    return Counter(inline or plain for inline, plain in _TARGET.findall(_CODE.sub("", text)))


def _numbers(text: str) -> Counter[Decimal]:
    found = _NUMBER.findall(_prose(text).replace("`", " "))
    return Counter(Decimal(number.replace(",", "")) * _UNITS[unit] for number, unit in found)


def _strong(text: str) -> int:
    return _CODE.sub("", text).count("**")


def _shows_asterisks(text: str) -> bool:
    """Return whether Markdown takes a ** for text: one with a letter outside and punctuation inside."""
    outer_and_inner = [
        pair
        for strong in _STRONG.finditer(text)
        for pair in ((text[: strong.start()][-1:], strong[1][0]), (text[strong.end() :][:1], strong[1][-1]))
    ]
    return any(re.match(r"\w", outer) and re.match(r"[^\w\s]", inner) for outer, inner in outer_and_inner)


def _prose(text: str) -> str:
    """Return a text with its code as two backticks, without link targets and strong marks."""
    return _LINK.sub(r"\1", _CODE.sub("``", text)).replace("**", "")


def _typography(text: str, translation: str) -> Iterator[str]:
    """Yield the faults of punctuation and spaces, in texts without code and link targets."""
    if re.search(rf"{_HAN}[A-Za-z0-9`]|[A-Za-z0-9`%]{_HAN}", translation):
        yield "no space between Chinese and Latin letters, digits or code"
    if re.search(rf"{_HAN} ?[,;:!?(]|{_HAN}\)|[()] ?{_HAN}", translation):
        yield "punctuation of half width beside Chinese"
    if re.search(rf" [{_FULL}]|[{_FULL}] ", translation):
        yield "a space beside punctuation of full width"
    if "您" in translation:
        yield "您"
    ends = {".": "。", ":": "：", "?": "？"}
    last, translated = text.rstrip("*) ")[-1:], translation.rstrip('*)）”" ')[-1:]
    if re.search(_HAN, translation) and ends.get(last, translated) != translated:
        yield f"does not end with {ends[last]}"


def main() -> int:
    """Print the differences and the faults, and how many there are."""
    found = sorted(differences(_TEXTS, CATALOGUES))
    for path in sorted(CATALOGUES.glob("*.po")):
        for _, text, translation in entries(read(path)):
            found += (f"{path.stem}: {fault}: {text}\n    {translation}" for fault in faults(text, translation))
    for line in found:
        print(line)
    if found:
        print(f"{len(found):,} entries of the Chinese catalogues differ: run `make translations`, and translate them.")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
