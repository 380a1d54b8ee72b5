"""The keys that belong to a filter or a queue."""

from bisect import bisect_right
from collections import Counter

import pytest
from redis.crc import key_slot

from scrapy_bloom.queue.queue_keys import QueueKeys, queue_name
from scrapy_bloom.storage import filter_keys


@pytest.mark.parametrize(
    "key", ["a.b", "a.b:0:0", "a.b:12:345", filter_keys.shard_key("a.b", 3, 4), filter_keys.shard_key("a.b", 3, 4, 9)]
)
def test_keys_of_a_filter(key: str) -> None:
    """Its hash, and any shard of any layer."""
    assert filter_keys.is_key_of("a.b", key)


@pytest.mark.parametrize(
    "key",
    [
        "a",
        "axb",
        "a.b:",
        "a.b:0",
        "a.b:0:",
        "a.b:0:0:0",
        "a.b:0:x",
        "axb:0:0",
        "x:a.b:0:0",
        "a.b:0:0{x}",
        "a.b:0:0{1}x",
    ],
)
def test_not_of_a_filter(key: str) -> None:
    """Names that merely begin or look like these belong to others."""
    assert not filter_keys.is_key_of("a.b", key)


# Stored: another release must find the same keys.
SPREAD_KEYS = {
    "books:dupefilter": [
        "books:dupefilter:0:0{24949}",
        "books:dupefilter:0:1{1199}",
        "books:dupefilter:0:2{69531}",
        "books:dupefilter:1:0{11309}",
        "books:dupefilter:1:1{2178}",
        "books:dupefilter:1:2{9478}",
    ],
    "a": ["a:0:0{20200}", "a:0:1{61919}", "a:0:2{120}", "a:1:0{2016}", "a:1:1{43162}", "a:1:2{1601}"],
}


@pytest.mark.parametrize(("key", "names"), SPREAD_KEYS.items())
def test_keys_that_spread(key: str, names: list[str]) -> None:
    """The numbers in braces are a promise of the stored format."""
    found = [filter_keys.shard_key(key, layer, shard, 3) for layer in range(2) for shard in range(3)]
    assert found == names


@pytest.mark.parametrize("masters", [2, 3, 5, 6, 7, 10, 16])
@pytest.mark.parametrize("key", ["books:dupefilter", "shop:dupefilter", "x"])
def test_balance(key: str, masters: int) -> None:
    """From 20 shards a master on, no master has 5 % more or fewer than the others on average."""
    first_slots = [master * 16_384 // masters for master in range(masters)]
    for shards in range(20 * masters, 22 * masters):
        for layer in range(3):
            slots = [key_slot(filter_keys.shard_key(key, layer, shard, shards).encode()) for shard in range(shards)]
            counts = Counter(bisect_right(first_slots, slot) for slot in slots)
            assert max(abs(counts[master] * masters / shards - 1) for master in range(1, masters + 1)) <= 0.05


def test_first_shard() -> None:
    """The first shard is found without the number of shards."""
    assert len({filter_keys.shard_key("books", 1, 0, shards) for shards in (1, 2, 95, 8192)}) == 1


@pytest.mark.parametrize("shard", [0, 1, 2, 94, 8191])
def test_numbers_of_the_same_slot(shard: int) -> None:
    """All numbers of a part give a shard the same key, and the parts are few."""
    numbers = range(1, 65_537)
    parts = list(filter_keys.of_same_slot(shard, numbers))
    assert [number for part in parts for number in part] == list(numbers[shard:])
    keys = [{filter_keys.shard_key("books", 1, shard, number) for number in part} for part in parts]
    assert {len(each) for each in keys} == {1}
    assert len(parts) == len(set[str]().union(*keys))


@pytest.mark.parametrize(
    ("key", "can"), [("books:dupefilter", True), ("{books}:x", False), ("a{b", False), ("{}", False)]
)
def test_braces_of_the_user(key: str, can: bool) -> None:
    """A brace in the key may choose the slot already, or would begin the number's."""
    assert filter_keys.can_spread(key) == can


@pytest.mark.parametrize(
    ("queue", "stem"), [("q", "{q}"), ("a:b", "{a:b}"), ("{a}:b", "{a}:b"), ("a{b}", "a{b}"), ("a{}", "{a{}}")]
)
def test_keys_of_a_queue(queue: str, stem: str) -> None:
    """The queue itself, and all keys of its workers, in its cluster slot wherever possible."""
    keys = QueueKeys(queue)
    names = [keys.workers, keys.dead_letters, keys.leases("host-1-abc")]
    assert names == [f"{stem}:workers", f"{stem}:dead-letter", f"{stem}:leases:host-1-abc"]
    assert all(keys.include(name) for name in (queue, *names))
    assert keys.share_a_slot == (len({key_slot(name.encode()) for name in (queue, *names)}) == 1)


@pytest.mark.parametrize(
    ("queue", "shares"), [("q", True), ("{a}:b", True), ("a}b", False), ("a{}b", False), ("a{b", True)]
)
def test_slots_of_a_queue(queue: str, shares: bool) -> None:
    """A name with an unpaired brace cannot be the hash tag of another key."""
    assert QueueKeys(queue).share_a_slot == shares


@pytest.mark.parametrize("key", ["", "qq", "q:dupefilter", "q:workers", "{q}:workersx", "{p}:workers", "q:0:0"])
def test_not_of_a_queue(key: str) -> None:
    """Other names below it belong to others."""
    assert not QueueKeys("q").include(key)


@pytest.mark.parametrize(
    ("template", "name"),
    [("%(spider)s:requests", "shop:requests"), ("%%(spider)s:requests", "shop:requests"), ("fixed", "fixed")],
)
def test_name_of_a_queue(template: str, name: str) -> None:
    """The spider's name is substituted as often as in scrapy-redis: twice."""
    assert queue_name(template, "shop") == name
