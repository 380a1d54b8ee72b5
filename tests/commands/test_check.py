"""`scrapy bloom check`: look up requests in a crawl's own filter without adding any."""

import json
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import Request

from scrapy_bloom import BloomFilter, BloomRFPDupeFilter
from tests.support import command, in_process
from tests.support.servers import Server

SEEN = "https://example.com/?a=1&b=2"
SCRAPYS = "scrapy.utils.request.RequestFingerprinter"


@pytest.fixture
def place(server: Server, client: redis.Redis, key: str) -> list[str]:
    """Options for a filter that has seen one page and one form."""
    dupefilter = BloomRFPDupeFilter(client, key)
    assert not dupefilter.request_seen(Request(SEEN))
    assert not dupefilter.request_seen(Request("https://example.com/form", method="POST", body="q=1"))
    return ["--key", key, "--redis-url", server.url]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = command.call("check", *arguments, "--json")
    return code, json.loads(capsys.readouterr().out)


def test_answers(place: list[str], capsys: pytest.CaptureFixture[str], key: str) -> None:
    """A seen page is found, with its query in any order; checking an unseen page does not add it."""
    code, found = told(capsys, *place, "https://example.com/?b=2&a=1")
    (request,) = found["requests"]
    assert (code, request["is_seen"], request["canonical_url"]) == (0, True, SEEN)
    (layer,) = request["places"]
    assert (layer["layer"], layer["is_seen"], layer["is_lost"]) == (1, True, False)
    assert layer["key"].startswith(f"{{{key}}}:")
    for _ in range(2):
        code, found = told(capsys, *place, "https://example.com/new")
        assert (code, found["all_seen"]) == (1, False)


def test_methods_and_bodies(place: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The method and the body are part of a request."""
    form = [*place, "https://example.com/form"]
    assert told(capsys, *form)[0] == 1
    assert told(capsys, *form, "--method", "POST", "--body", "q=2")[0] == 1
    assert told(capsys, *form, "--method", "POST", "--body", "q=1")[0] == 0


def test_two(place: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """For two requests the command reports whether they are the same and where they differ."""
    assert told(capsys, *place, SEEN, "https://example.com/?b=2&a=1#top")[1]["same"] is True
    assert command.call("check", *place, SEEN, "https://example.com/x?a=1&b=3") == 1
    said = capsys.readouterr().out
    assert "path: / and /x" in said
    assert "argument b: 2 and 3" in said
    assert "argument a" not in said


def test_always(place: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A page that the filter knows is fetched in each run if the setting says so."""
    always = ["-s", "BLOOMFILTER_ALWAYS=example.com/.a="]
    assert command.call("check", *place, SEEN, *always) == 1
    assert "BLOOMFILTER_ALWAYS" in capsys.readouterr().out
    code, found = told(capsys, *place, SEEN, *always)
    assert (code, found["requests"][0]["is_always_new"], found["requests"][0]["is_seen"]) == (1, True, False)
    assert told(capsys, *place, SEEN, "-s", "BLOOMFILTER_ALWAYS=other")[0] == 0


def test_lost_bits(place: list[str], client: redis.Redis, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Evicted bits are reported as lost: the page would be fetched again."""
    client.delete(*client.keys(f"{{{key}}}:*:1:*"))
    assert command.call("check", *place, SEEN) == 1
    assert "LOST" in capsys.readouterr().out


def test_filters_of_other_fingerprints(
    valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stored filter determines the fingerprinter, unless a project has another."""
    with valkey.client() as client:
        BloomFilter(client, f"{key}:plain").add(SEEN)
        chosen = {"REDIS_URL": valkey.url, "SCHEDULER_DUPEFILTER_KEY": key, "REQUEST_FINGERPRINTER_CLASS": SCRAPYS}
        dupefilter = BloomRFPDupeFilter.from_crawler(in_process.start(chosen))
        assert not dupefilter.request_seen(Request(SEEN))
    assert command.call("check", "--key", f"{key}:plain", "--redis-url", valkey.url, SEEN) == 0
    assert command.call("check", "--key", key, "--redis-url", valkey.url, SEEN) == 0
    capsys.readouterr()
    project = command.make_project(tmp_path, REDIS_URL=valkey.url, SCHEDULER_DUPEFILTER_KEY=key)
    known = command.report("check", "shop", SEEN, "-s", f"REQUEST_FINGERPRINTER_CLASS={SCRAPYS}", cwd=project)
    assert known["all_seen"] is True
    said = command.run("check", "shop", SEEN, cwd=project)
    assert said.returncode == 2
    assert f"holds fingerprints of {SCRAPYS!r}" in said.stderr


def test_a_scheme_that_is_not_known(place: list[str], client: redis.Redis, key: str) -> None:
    """A fingerprinter named by a stored filter is never imported."""
    text = json.loads(client.hget(key, "parameters") or "")
    client.hset(key, "parameters", json.dumps({**text, "fingerprint": "os.abort"}))
    assert command.call("check", *place, SEEN) == 2


@pytest.mark.parametrize("arguments", [["example.com"], ["shop"]])
def test_no_urls(arguments: list[str], place: list[str]) -> None:
    """An argument that is not a URL is refused."""
    assert command.call("check", *place, *arguments) == 2
