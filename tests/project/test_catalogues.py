"""The Chinese catalogues are translated throughout, and each translation agrees with its text and the glossary."""

from pathlib import Path

import pytest

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
