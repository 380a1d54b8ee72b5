"""The Chinese catalogues are translated throughout, and each translation agrees with its text and the glossary."""

from pathlib import Path

import pytest
from babel.messages import Catalog
from babel.messages.pofile import write_po

from devtools import catalogues

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


def test_glossary() -> None:
    """The glossary has the terms that users look up."""
    terms = dict(catalogues.glossary())
    assert terms["Bloom filter"] == ("布隆过滤器",)
    assert terms["resume"] == ("续爬", "恢复")
    assert {"error rate", "lease", "shard", "dead letter", "layer"} < set(terms)


@pytest.mark.parametrize(
    ("text", "translation", "fault"),
    [
        ("A page.", " ", "empty"),
        ("It waits for a page.", "It waits for a page.", "not translated"),
        ("Set `TTL` to `None`.", "把 `TTL` 设为 `none`。", "other code"),
        ("See [this](keys.md#a).", "见[这里](keys.md)。", "other links"),
        ("See <https://a.org/>.", "见 <https://b.org/>。", "other links"),
        ("It takes 1.5 seconds.", "需要 15 秒。", "other numbers"),
        ("A SET of 14 million.", "一个 140 万的 SET。", "other numbers"),
        ("**Never.** It stays.", "绝不。它会保留。", "other strong text"),
        ("**Never.** It stays.", "**绝不。**它会保留。", "** that Markdown does not read: put the punctuation outside"),
        ("Use **`add`** here.", "在此**“`add`”**处。", "** that Markdown does not read: put the punctuation outside"),
        ("The leases end.", "锁到期。", "lease is 租约"),
        ("The bloom filter.", "过滤器。", "Bloom filter is 布隆过滤器"),
        ("Resume it.", "继续。", "resume is 续爬 or 恢复"),
        ("Redis answers.", "Redis回答。", "no space between Chinese and Latin letters, digits or code"),
        ("`add` fails.", "`add`失败。", "no space between Chinese and Latin letters, digits or code"),
        ("At first, it waits.", "首先,等待。", "punctuation of half width beside Chinese"),
        ("It waits (long).", "等待 (很久)。", "punctuation of half width beside Chinese"),
        ("It waits, long.", "等待， 很久。", "a space beside punctuation of full width"),
        ("It waits.", "您等待。", "您"),
        ("It waits.", "等待", "does not end with 。"),
        ("It waits:", "等待。", "does not end with ："),
        ("`True`", "`True`", ""),
        ("**Never.** A lease lasts 30 seconds.", "**绝不**。租约持续 30 秒。", ""),
        ("See [the table](keys.md#a) of 1,000 `GET`s.", "1000 次 `GET` 见[表格](keys.md#a)。", ""),
        ("14 million (or 1e-6).", "1400 万（或 1e-6）。", ""),
        ("Requests wait, `request` waits.", "请求在等，`request` 也在等。", ""),
        ("**`add` may `fail`**, at once.", "**`add` 可能马上 `fail`**，立即。", ""),
        ("Scrapy's scheduler", "Scrapy 的调度器", ""),
    ],
)
def test_faults(text: str, translation: str, fault: str) -> None:
    """Each fault is found, and alone; a good translation has none."""
    assert list(catalogues.faults(text, translation)) == list(filter(None, [fault]))


def test_differences(tmp_path: Path) -> None:
    """Missing, obsolete and fuzzy entries are found, in every page."""
    for name, entries in {
        "one.pot": {"Same": "", "New": "", "Changed": ""},
        "one.po": {"Same": "同", "Gone": "去", "Changed": "变"},
        "two.pot": {"Two": ""},
        "three.po": {"Three": "三"},
    }.items():
        catalogue = Catalog()
        for text, translation in entries.items():
            catalogue.add(text, translation, flags=["fuzzy"] if translation == "变" else [])
        with (tmp_path / name).open("wb") as file:
            write_po(file, catalogue)
    assert sorted(catalogues.differences(tmp_path, tmp_path)) == [
        "one: fuzzy: Changed",
        "one: missing: New",
        "one: obsolete: Gone",
        "three: obsolete: Three",
        "two: missing: Two",
    ]
