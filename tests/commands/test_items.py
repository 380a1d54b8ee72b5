"""The actions of `scrapy bloom` on a filter of items speak of items."""

import pytest
import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.settings import ITEM_KEY
from tests.commands.conftest import Say

KEY = f"{ITEM_KEY} = %s"


@pytest.fixture
def bloom(client: redis.Redis, key: str) -> BloomFilter:
    """A filter of one item, as of a `UniqueItemsPipeline`."""
    bloom = BloomFilter.with_parameters(client, key, FilterParameters(1000, fingerprint=KEY % "url"))
    bloom.add("an item")
    return bloom


@pytest.mark.usefixtures("bloom")
def test_nouns(key: str, say: Say, tmp_path: object) -> None:
    """The output counts items."""
    assert "holds         1 of 1,000 items" in say("info").out
    assert ", 1 item\n" in say("clear").out
    assert "with 1 item\n" in say("export", f"{tmp_path}/file").out
    assert "with 1 item\n" in say("restore", f"{tmp_path}/file", at=f"{key}:copy").out


@pytest.mark.usefixtures("bloom")
@pytest.mark.parametrize("action", ["check", "forget"])
def test_no_urls(action: str, key: str, say: Say) -> None:
    """A URL names no item: the error says so, and how to start over."""
    said = say(action, "https://example.com/")
    assert said.code == 2
    assert f"holds items ({KEY % 'url'}), which no URL names" in said.err
    assert f"`scrapy bloom clear --key {key} --yes`" in said.err
