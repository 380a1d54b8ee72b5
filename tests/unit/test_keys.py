"""Keys that a filter and a queue call theirs."""

import pytest

from scrapy_bloom.queue import keys as queue_keys
from scrapy_bloom.storage import keys as filter_keys


@pytest.mark.parametrize("key", ["a.b", "a.b:0:0", "a.b:12:345", filter_keys.shard_key("a.b", 3, 4)])
def test_keys_of_a_filter(key: str) -> None:
    """Its hash, and any shard of any layer."""
    assert filter_keys.is_key_of("a.b", key)


@pytest.mark.parametrize("key", ["a", "axb", "a.b:", "a.b:0", "a.b:0:", "a.b:0:0:0", "a.b:0:x", "axb:0:0", "x:a.b:0:0"])
def test_not_of_a_filter(key: str) -> None:
    """Names that begin so, or look so, are anybody's."""
    assert not filter_keys.is_key_of("a.b", key)


@pytest.mark.parametrize(
    "key",
    [
        "q",
        queue_keys.leases_key("q", "host-1-abc"),
        queue_keys.recovery_key("q", "host-1-abc"),
        queue_keys.dead_letter_key("q"),
        queue_keys.workers_key("q"),
        queue_keys.closing_key("q"),
    ],
)
def test_keys_of_a_queue(key: str) -> None:
    """Itself, and all that its workers make beside it."""
    assert queue_keys.is_key_of("q", key)


@pytest.mark.parametrize("key", ["", "qq", "q:dupefilter", "q:workersx", "p:workers", "q:0:0"])
def test_not_of_a_queue(key: str) -> None:
    """Other names below it are anybody's."""
    assert not queue_keys.is_key_of("q", key)
