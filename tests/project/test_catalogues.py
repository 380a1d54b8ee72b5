"""The check of the Chinese catalogues finds a wrong term."""

import pytest

pytest.importorskip("babel", reason="of the dependency group `docs`")
from devtools.catalogues import wrong_terms


@pytest.mark.parametrize(
    ("text", "translation", "wrong"),
    [
        ("The worker renews its leases.", "工作进程会续租约。", []),
        ("The worker renews its leases.", "工作进程会续租赁。", ["lease", "租赁"]),
        ("Each partition has a shard.", "每个分片都有分片。", ["partition"]),
        ("At this rate", "按这个错误率", ["错误率"]),
        ("`lease` and [start](start-requests.md#leases-of-start-urls)", "`lease` 和[启动](start-requests.md)", []),
        ("eviction", "eviction", []),
    ],
)
def test_terms(text: str, translation: str, wrong: list[str]) -> None:
    """A term of the English text is in the translation, and no wrong one; code, targets and names are no terms."""
    assert wrong_terms(text, translation) == wrong
