"""Crawls with other serializers than Scrapy's own, as text or bytes, in several encodings."""

import json
from pathlib import Path

import pytest

from tests.support.crawling import REFUSED_EXIT_CODE
from tests.support.pages import tree
from tests.support.scenario import FILTER_ALONE, LEASE, OURS, PAGES, Kind, assert_ended_well, keys_of, scene
from tests.support.serializers import bytes_to_text, text_to_bytes, unescaped
from tests.support.servers import Server
from tests.support.spiders import noted

pytestmark = pytest.mark.crawl

SOON = 180.0
DECODED: Kind = {"REDIS_DECODE_RESPONSES": True}
# A lone surrogate, which JSON can spell and no encoding has.
LONE_SURROGATE = '"\\ud800"'
LEAF = "/page/100"
JSON = "scrapy_bloom.serializers.json"

WAYS: dict[str, Kind] = {
    "text stored, bytes read": {"SCHEDULER_SERIALIZER": text_to_bytes.__name__},
    "bytes stored, text read": {"SCHEDULER_SERIALIZER": bytes_to_text.__name__, **DECODED},
    "JSON": {"SCHEDULER_SERIALIZER": JSON, **DECODED},
}


@pytest.mark.parametrize("way", WAYS)
def test_one_way_in_another_way_out(way: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """A serializer gets the type that the client returns, as under scrapy-redis."""
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        workers = [played.start(name, {**OURS, **LEASE, **WAYS[way]}) for name in ("left", "right")]
        crawls = [worker.wait(SOON) for worker in workers]
        assert played.missed == set()
        assert keys_of(client, key) == set()
    assert_ended_well(*crawls)
    assert all("cannot be read" not in ended.log for ended in crawls)


def test_json_under_scrapy_redis(valkey: Server, key: str, tmp_path: Path) -> None:
    """scrapy-redis's own Scheduler crawls with JSON requests as well."""
    settings: Kind = {"SCHEDULER_SERIALIZER": JSON, "SCHEDULER_PERSIST": True}
    with valkey.client() as client, scene(tree(40), tmp_path, valkey.url, key) as played:
        stopped = played.crawl({**FILTER_ALONE, **settings}, "stopped", CLOSESPIDER_PAGECOUNT=5, CONCURRENT_REQUESTS=1)
        stored = client.zrange(f"{key}:queue", 0, -1)
        assert stored
        assert {json.loads(member)["encoding"] for member in stored} == {"utf-8"}
        ended = played.crawl({**FILTER_ALONE, **settings})
        assert played.missed == set()
    assert stopped.exit_code == 0
    assert_ended_well(ended)


def test_request_that_no_encoding_has(valkey: Server, key: str, tmp_path: Path) -> None:
    """A request that no encoding can represent costs one error in one of two workers."""
    settings: Kind = {"SCHEDULER_SERIALIZER": unescaped.__name__, "NOTE": LONE_SURROGATE, "NOTED": LEAF}
    with valkey.client() as client, scene(tree(PAGES), tmp_path, valkey.url, key) as played:
        played.spider = noted.__file__
        workers = [played.start(name, {**OURS, **LEASE, **settings}) for name in ("left", "right")]
        crawls = [worker.wait(SOON) for worker in workers]
        assert played.missed == {LEAF}
        assert keys_of(client, key) == set()
    errors = [line for ended in crawls for line in ended.log.splitlines() if " ERROR: " in line]
    assert len(errors) == 1
    assert [ended.stats["finish_reason"] for ended in crawls] == ["finished", "finished"]


def test_encoding(valkey: Server, key: str, tmp_path: Path) -> None:
    """A REDIS_ENCODING other than UTF-8 works, or is refused at the start."""
    settings: Kind = {
        "SCHEDULER_SERIALIZER": unescaped.__name__,
        "NOTE": json.dumps("é"),
        "REDIS_ENCODING": "latin-1",
        **DECODED,
    }
    with scene(tree(40), tmp_path, valkey.url, key) as played:
        played.spider = noted.__file__
        ended = played.start("worker", {**OURS, **LEASE, **settings}).wait(SOON)
        if ended.exit_code == REFUSED_EXIT_CODE:
            assert "REDIS_ENCODING = 'latin-1'" in ended.log
            assert played.site.fetched == []
        else:
            assert played.missed == set()
            assert_ended_well(ended)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_pickles_as_text(encoding: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """A client that decodes replies cannot read pickles: the crawl is refused before it deletes or queues anything."""
    settings: Kind = {**OURS, **LEASE, **DECODED, "REDIS_ENCODING": encoding, "SCHEDULER_FLUSH_ON_START": True}
    with valkey.client() as client, scene(tree(40), tmp_path, valkey.url, key) as played:
        client.zadd(f"{key}:queue", {"of an earlier crawl": 0})
        ended = played.start("worker", settings).wait(SOON)
        assert client.exists(key, f"{{{key}:queue}}:workers") == 0
        assert client.zrange(f"{key}:queue", 0, -1) == [b"of an earlier crawl"]
        assert played.site.fetched == []
    assert ended.exit_code == REFUSED_EXIT_CODE
    last = ended.log.splitlines()[-1]
    assert last.startswith("scrapy_bloom: REDIS_DECODE_RESPONSES = True: the client returns requests as text")
    assert "Set it to False" in last


def test_bytes_that_cannot_be_decoded(valkey: Server, key: str, tmp_path: Path) -> None:
    """Such a client cannot read a pickle of an earlier crawl: the crawl ends with advice."""
    with valkey.client() as client, scene(tree(40), tmp_path, valkey.url, key) as played:
        client.zadd(f"{key}:queue", {b"\x80\x04.": 0})
        ended = played.start("worker", {**OURS, **LEASE, **DECODED, "SCHEDULER_SERIALIZER": JSON}).wait(SOON)
        assert client.exists(f"{{{key}:queue}}:workers") == 0
    assert ended.stats["finish_reason"] == "bloomfilter_error"
    assert ended.log.splitlines()[-1].startswith("scrapy_bloom: REDIS_DECODE_RESPONSES = True: ")
    assert "Traceback" not in ended.log
