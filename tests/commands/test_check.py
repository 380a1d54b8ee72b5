"""`scrapy bloom check`: look up requests in a crawl's own filter without adding any."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import redis
from scrapy import Request

from scrapy_bloom import BloomFilter, BloomRFPDupeFilter
from tests.commands.conftest import Said, Say
from tests.support import command, in_process
from tests.support.servers import Server

SEEN = "https://example.com/?a=1&b=2"
SCRAPYS = "scrapy.utils.request.RequestFingerprinter"


@pytest.fixture
def check(client: redis.Redis, key: str, say: Say) -> Callable[..., Said]:
    """Check requests in a filter that has seen one page and one form."""
    dupefilter = BloomRFPDupeFilter(client, key)
    assert not dupefilter.request_seen(Request(SEEN))
    assert not dupefilter.request_seen(Request("https://example.com/form", method="POST", body="q=1"))
    return partial(say, "check")


def test_answers(check: Callable[..., Said], key: str) -> None:
    """A seen page is found, with its query in any order; checking an unseen page does not add it."""
    said = check("https://example.com/?b=2&a=1", "--json")
    (request,) = said.report["requests"]
    assert (said.code, request["is_seen"], request["canonical_url"]) == (0, True, SEEN)
    (layer,) = request["places"]
    assert (layer["layer"], layer["is_seen"], layer["is_lost"]) == (1, True, False)
    assert layer["key"].startswith(f"{{{key}}}:")
    for _ in range(2):
        said = check("https://example.com/new", "--json")
        assert (said.code, said.report["all_seen"]) == (1, False)


def test_methods_and_bodies(check: Callable[..., Said]) -> None:
    """The method and the body are part of a request."""
    form = "https://example.com/form"
    assert check(form).code == check(form, "--method", "POST", "--body", "q=2").code == 1
    assert check(form, "--method", "POST", "--body", "q=1").code == 0


def test_two(check: Callable[..., Said]) -> None:
    """Requests are the same if their fingerprints are; the canonical forms show why."""
    one, other, new = check(SEEN, "https://example.com/?b=2&a=1#top", "https://example.com/x", "--json").report[
        "requests"
    ]
    assert (one["fingerprint"] == other["fingerprint"], one["fingerprint"] == new["fingerprint"]) == (True, False)
    code, said, _ = check(SEEN, "https://example.com/x?b=3&a=1#top")
    assert (code, "canonical    https://example.com/x?a=1&b=3\n" in said) == (1, True)
    assert "seen, or a false positive: dropped, unless it has dont_filter" in said


def test_always(check: Callable[..., Said]) -> None:
    """A page that the filter knows is fetched in each run if the setting says so."""
    always = ["-s", "BLOOMFILTER_ALWAYS=example.com/.a="]
    code, out, _ = check(SEEN, *always)
    assert (code, "BLOOMFILTER_ALWAYS" in out) == (1, True)
    said = check(SEEN, *always, "--json")
    (request,) = said.report["requests"]
    assert (said.code, request["is_always_new"], request["is_seen"]) == (1, True, False)
    assert check(SEEN, "-s", "BLOOMFILTER_ALWAYS=other").code == 0


def test_lost_bits(check: Callable[..., Said], client: redis.Redis, key: str) -> None:
    """Evicted bits are reported as lost: the page would be fetched again."""
    client.delete(*client.keys(f"{{{key}}}:*:1:*"))
    code, out, _ = check(SEEN)
    assert (code, "LOST" in out) == (1, True)


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


def test_a_scheme_that_is_not_known(check: Callable[..., Said], client: redis.Redis, key: str) -> None:
    """A fingerprinter named by a stored filter is never imported."""
    text = json.loads(client.hget(key, "parameters") or "")
    client.hset(key, "parameters", json.dumps({**text, "fingerprint": "os.abort"}))
    assert check(SEEN).code == 2


@pytest.mark.parametrize("arguments", [["example.com"], ["shop"]])
def test_no_urls(arguments: list[str], check: Callable[..., Said]) -> None:
    """An argument that is not a URL is refused."""
    assert check(*arguments).code == 2
