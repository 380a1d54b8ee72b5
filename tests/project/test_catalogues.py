"""The Chinese catalogues are translated throughout, and each translation agrees with its text and the glossary."""

import re
import tomllib
from pathlib import Path

import pytest

from devtools import catalogues
from tests.support.documentation import DOCS, all_blocks

# Languages of code with comments.
CODE = ("bash", "console", "dockerfile", "ini", "pycon", "python", "yaml")
PAGES = sorted(catalogues.CATALOGUES.glob("*.po"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_catalogue(page: Path) -> None:
    """No entry is empty, fuzzy, obsolete or at fault."""
    catalogue = catalogues.read(page)
    assert list(catalogue.obsolete) == []
    assert [text for entry, text, _ in catalogues.entries(catalogue) if entry.fuzzy] == []
    translated = [(text, translation) for _, text, translation in catalogues.entries(catalogue)]
    assert translated
    assert [(fault, *each) for each in translated for fault in catalogues.faults(*each)] == []


def test_comments() -> None:
    """Each comment in the code of a page has its Chinese, and no other text has."""
    found = {
        comment
        for page in DOCS.glob("*.md")
        for block in all_blocks(page.name)
        if block.language in CODE
        for comment in re.findall(r"(?:^|\S {2,})# (.+)$", block.text, re.MULTILINE)
    }
    assert found == set(tomllib.loads((DOCS / "locale/zh_CN/comments.toml").read_text()))


@pytest.mark.parametrize("picture", sorted(DOCS.glob("*.zh_CN.svg")), ids=lambda picture: picture.name)
def test_pictures(picture: Path) -> None:
    """A Chinese picture is the English one with other words."""
    english = picture.with_name(picture.name.replace(".zh_CN", "")).read_text()
    without_words = [re.sub(r">[^<]+<", "><", text) for text in (english, picture.read_text())]
    assert without_words[0] == without_words[1]


def test_glossary() -> None:
    """The glossary has the terms that users look up."""
    terms = dict(catalogues.glossary())
    assert terms["Bloom filter"] == ("布隆过滤器",)
    assert terms["resume"] == ("续爬", "恢复")
    assert {"error rate", "lease", "shard", "dead letter", "layer"} < set(terms)


@pytest.mark.parametrize(
    "translation",
    [
        "整个爬取结束。",
        "工作进程死掉了。",
        "被杀掉",
        "仍算见过",
        "以租约领取",
        "键上是一个 SET",
        "小了一百倍",
        "29 到 33%",
        "95 %",
        "等待 5 s。",
        "一；二；三",
        "本页说明如何续爬。",
        "过滤器的哈希被删除",
    ],
)
def test_habits(translation: str) -> None:
    """Each habit of a translation is a fault."""
    assert set(catalogues.faults(translation, translation)) & set(catalogues.HABITS.values())


def test_chinese() -> None:
    """Chinese as engineers write it has no findings."""
    for text in ("爬取的速度", "死信", "算法", "`--ttl 5 s` 等待 5 秒。", "29%～33%", "哈希函数", "2 ms"):
        assert list(catalogues.faults(text, text)) == []


def test_readme() -> None:
    """The Chinese README has no habits of a translation."""
    text = re.sub(
        r"^```.*?^```$|`[^`\n]*`", "", (DOCS.parent / "README.zh-CN.md").read_text(), flags=re.MULTILINE | re.DOTALL
    )
    assert [line for line in text.splitlines() for habit in catalogues.HABITS if re.search(habit, line)] == []
