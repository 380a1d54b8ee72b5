"""The keys that belong to a queue."""

import re
from types import SimpleNamespace

import pytest
from redis.crc import key_slot

from scrapy_bloom.errors import ConfigError
from scrapy_bloom.queue.keys import QueueKeys, key_of, partition_keys, queue_name


@pytest.mark.parametrize(
    ("queue", "stem"), [("q", "{q}"), ("a:b", "{a:b}"), ("{a}:b", "{a}:b"), ("a{b}", "a{b}"), ("a{}", "{a{}}")]
)
def test_keys_of_a_queue(queue: str, stem: str) -> None:
    """The queue itself, and all keys of its workers, in its cluster slot wherever possible."""
    keys = QueueKeys(queue)
    slot = keys.of_slot("http://a:b@{c} \ud800")
    names = [keys.crawl, keys.dead_letters, keys.absent, *keys.of_worker("host-1-abc"), slot]
    ends = "crawl", "dead-letter", "absent", "leases:host-1-abc", "taken:host-1-abc", r"pace:http://a:b@{c} \ud800"
    assert names == [f"{stem}:{end}" for end in ends]
    assert all(keys.include(name) for name in (queue, *names))
    assert keys.share_a_slot == (len({key_slot(name.encode()) for name in (queue, *names)}) == 1)


@pytest.mark.parametrize(
    ("queue", "shares"), [("q", True), ("{a}:b", True), ("a}b", False), ("a{}b", False), ("a{b", True)]
)
def test_slots_of_a_queue(queue: str, shares: bool) -> None:
    """A name with an unpaired brace cannot be the hash tag of another key."""
    assert QueueKeys(queue).share_a_slot == shares


@pytest.mark.parametrize(("key", "form"), [("a:b", r"a:b:partition:\d+"), ("{a}:b", r"\{a:partition:\d+\}:b")])
def test_keys_of_partitions(key: str, form: str) -> None:
    """A key with a bare number at its end may be another crawl's."""
    own, *others = partition_keys(key, key, 16)
    assert own == (key, key)
    assert all(re.fullmatch(form, each) for pair in others for each in pair)
    assert len({*others}) == 15


@pytest.mark.parametrize("key", ["", "qq", "q:dupefilter", "q:crawl", "{q}:crawlx", "{p}:crawl", "q:0:0"])
def test_not_of_a_queue(key: str) -> None:
    """Other names below it belong to others."""
    assert not QueueKeys("q").include(key)


@pytest.mark.parametrize(
    ("template", "name"),
    [("%(spider)s:requests", "shop:requests"), ("%%(spider)s:requests", "shop:requests"), ("fixed", "fixed")],
)
def test_name_of_a_queue(template: str, name: str) -> None:
    """The spider's name is substituted as often as in scrapy-redis: twice."""
    assert queue_name(template, SimpleNamespace(name="shop")) == name


def test_attributes_in_a_key() -> None:
    """A key may name any attribute of the spider that is text or a number."""
    spider = SimpleNamespace(name="shop", job=7, region="eu")
    assert key_of("KEY", "%(spider)s:%(name)s:%(region)s:%(job)d", spider) == "shop:shop:eu:7"


@pytest.mark.parametrize("job", [None, "", ["a"]])
def test_attribute_without_a_value(job: object) -> None:
    """Jobs with such an attribute would share one key."""
    with pytest.raises(ConfigError, match=r"^KEY = '%\(job\)s:requests': .*the spider's attribute 'job' is not set"):
        key_of("KEY", "%(job)s:requests", SimpleNamespace(name="shop", job=job))
