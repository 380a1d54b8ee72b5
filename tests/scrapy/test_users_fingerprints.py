"""A fingerprint that is remembered is the one that would be made, and only one that may be is remembered."""

import re
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.http import FormRequest, JsonRequest
from scrapy.utils.request import fingerprint
from scrapy_redis.dupefilter import RFPDupeFilter

from scrapy_bloom import BloomRFPDupeFilter, MismatchError
from scrapy_bloom.fingerprints import Remembered, fresh
from tests.support.in_process import start
from tests.support.servers import Server

KINDS = [Request, FormRequest, JsonRequest]
# Few of each, so that many requests differ in one part only, or in how it is written.
urls = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["http://a.test", "https://a.test", "http://A.test:80", "http://a.test/%7e", "http://ä.test"]),
        st.sampled_from(["", "/", "/x", "/x/", "/X", "/%78", "/x;p"]),
        st.sampled_from(["", "?", "?a=1&b=2", "?b=2&a=1", "?a=1", "?a=&b", "?a=%20", "?a=+"]),
        st.sampled_from(["", "#", "#top", "#!x"]),
    ),
)
requests = st.builds(
    lambda kind, url, method, body, headers: kind(url, method=method, body=body, headers=headers),
    st.sampled_from(KINDS),
    urls,
    st.sampled_from(["GET", "get", "POST", "HEAD", "PUT"]),
    st.sampled_from([b"", b"a=1", b"x" * 2000, "a=1"]),
    st.sampled_from([{}, {"X-A": "1"}]),
)

# Each pair of these that differs in one part only is among them.
ALIKE = [
    Request(url, method=method, body=body)
    for url in ("http://a.test/", "http://a.test/#top", "http://a.test/x", "http://b.test/")
    for method in ("GET", "POST", "HEAD")
    for body in (b"", b"a=1", b"a=2")
]

MAKERS = {
    "scrapy-redis": lambda request: RFPDupeFilter.request_fingerprint(None, request),
    "scrapy": fingerprint,
}


@pytest.mark.parametrize("maker", MAKERS)
@given(size=st.integers(0, 6), met=st.lists(requests, max_size=30))
def test_remembered_is_what_would_be_made(maker: str, size: int, met: list[Request]) -> None:
    """However few are remembered and however alike requests are, each has the fingerprint that is made of it alone."""
    make = MAKERS[maker]
    remembered, plain = Remembered(make, size), fresh(make)
    assert [remembered(request) for request in met] == [plain(request) for request in met]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("met", [ALIKE, ALIKE[::-1]], ids=["forwards", "backwards"])
def test_what_is_alike_is_told_apart(maker: str, met: list[Request]) -> None:
    """Requests that differ in their method, URL or body alone are never taken for each other, all being remembered."""
    make = MAKERS[maker]
    remembered, plain = Remembered(make, 1000), fresh(make)
    for _ in range(2):
        assert [remembered(request) for request in met] == [plain(request) for request in met]


def test_the_same_request_is_made_once() -> None:
    """Nothing is made for a request that was met, be it another object, unless it is very long."""
    made: list[str] = []

    def make(request: Request) -> str:
        made.append(request.url)
        return request.url

    remembered = Remembered(make, 10)
    for _ in range(3):
        for url in ("http://a.test/", "http://b.test/"):
            remembered(Request(url))
        remembered(Request("http://a.test/", method="POST", body=b"x"))
        remembered(Request("http://a.test/" + "x" * 1000))
    assert len(made) == 3 + 3


def test_memory_is_bounded() -> None:
    """As many are remembered as were asked for, whatever comes, and none that is long."""
    remembered = Remembered(lambda request: request.url[-40:], 100)
    for number in range(10_000):
        remembered(Request(f"http://a.test/{number:0{number % 1500}}"))
    kept = [*remembered._young, *remembered._old]
    assert len(kept) <= 100
    assert all(sys.getsizeof(url) < 1100 for url in kept)


class HeadersToo:
    """A fingerprinter that looks at more than the method, the URL and the body."""

    def fingerprint(self, request: Request) -> bytes:
        return fingerprint(request, include_headers=["X-A"])


class OverriddenDupeFilter(BloomRFPDupeFilter):
    """A fingerprint of the user's, as scrapy-redis lets them be made."""

    def request_fingerprint(self, request: Request) -> str:
        return f"{request.url} {request.meta.get('version')}"


USERS: dict[str, tuple[type[BloomRFPDupeFilter], dict[str, object], list[Request]]] = {
    "overridden": (
        OverriddenDupeFilter,
        {},
        [Request("http://a.test/", meta={"version": version}) for version in (1, 2)],
    ),
    "fingerprinter": (
        BloomRFPDupeFilter,
        {"REQUEST_FINGERPRINTER_CLASS": HeadersToo},
        [Request("http://a.test/", headers={"X-A": value}) for value in ("1", "2")],
    ),
}


def test_what_scrapys_fingerprint_depends_on_besides(server_settings: dict[str, object]) -> None:
    """A request whose meta matters to Scrapy's own fingerprint has the one that is made of it."""
    scrapys = {"REQUEST_FINGERPRINTER_CLASS": "scrapy.utils.request.RequestFingerprinter"}
    dupefilter = BloomRFPDupeFilter.from_crawler(start({**server_settings, **scrapys}))
    url = "http://a.test/?b=2&a=1"
    for request in (Request(url), Request(url, meta={"verbatim_url": True}), Request(url)):
        assert dupefilter.item(request) == fingerprint(request).hex().encode()


@pytest.fixture
def server_settings(valkey: Server, key: str) -> dict[str, object]:
    """Settings of a crawl of this test."""
    return {"REDIS_URL": valkey.url, "SCHEDULER_DUPEFILTER_KEY": key, "BLOOMFILTER_CAPACITY": 1000}


@pytest.mark.parametrize("way", USERS)
def test_users_fingerprints_are_never_remembered(way: str, server_settings: dict[str, object]) -> None:
    """Requests that differ in what only the user's code looks at are different, though method, URL and body agree."""
    dupefilter_class, chosen, different = USERS[way]
    dupefilter = dupefilter_class.from_crawler(start({**server_settings, **chosen}))
    assert [dupefilter.request_seen(request) for request in (*different, *different)] == [False, False, True, True]


def by_host(request: Request) -> str:
    """A fingerprint that a user sets on a filter that is there."""
    return request.url.split("/")[2]


PAGES_OF_A_HOST = [Request("http://a.test/1"), Request("http://a.test/2"), Request("http://b.test/1")]


@pytest.mark.parametrize("way", ["before the filter is open", "after"])
def test_fingerprint_that_is_set_on_a_filter(way: str, valkey: Server, key: str) -> None:
    """A request_fingerprint that is set on one filter makes its fingerprints from then on, as scrapy-redis's does."""
    with valkey.client() as client:
        dupefilters: list[Any] = [RFPDupeFilter(client, f"{key}:set"), BloomRFPDupeFilter(client, key)]
        for dupefilter in dupefilters:
            if way == "after":
                assert not dupefilter.request_seen(Request("http://c.test/"))
            dupefilter.request_fingerprint = by_host
            assert [dupefilter.request_seen(request) for request in PAGES_OF_A_HOST] == [False, True, False]


def test_users_fingerprint_on_one_filter_is_never_remembered(valkey: Server, key: str) -> None:
    """It is made anew for each request, as it may look at more than method, URL and body."""
    with valkey.client() as client:
        dupefilter: Any = BloomRFPDupeFilter(client, key)
        dupefilter.request_fingerprint = lambda request: str(request.meta["version"])
        versions = [Request("http://a.test/", meta={"version": version}) for version in (1, 2, 1)]
        assert [dupefilter.request_seen(request) for request in versions] == [False, False, True]


def test_scheme_of_a_fingerprint_that_is_set_on_a_filter(valkey: Server, key: str) -> None:
    """Its name is stored as of any other, so that a worker that makes other fingerprints is refused."""
    with valkey.client() as client:
        dupefilter = BloomRFPDupeFilter(client, key)
        dupefilter.request_fingerprint = by_host  # type: ignore[method-assign]  # the point of the test
        assert not dupefilter.request_seen(PAGES_OF_A_HOST[0])
        with pytest.raises(MismatchError, match=re.escape(f"{__name__}.by_host")):
            BloomRFPDupeFilter(client, key).request_seen(PAGES_OF_A_HOST[0])


def test_fingerprint_that_is_set_too_late_to_be_stored(
    server_settings: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """One that is set when the name of another one is stored already is told of, once, with what to do instead."""
    dupefilter = BloomRFPDupeFilter.from_crawler(start(server_settings))
    dupefilter.request_fingerprint = by_host  # type: ignore[method-assign]  # the point of the test
    (warning,) = [record.getMessage() for record in caplog.records if record.name.startswith("scrapy_bloom")]
    for part in ("scrapy-redis", f"{__name__}.by_host", "subclass"):
        assert part in warning


class SetsIt(BloomRFPDupeFilter):
    """Sets its fingerprint before anything else."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.request_fingerprint = by_host  # type: ignore[method-assign]  # as above
        super().__init__(*args, **kwargs)


def test_fingerprint_that_is_set_by_a_constructor(server_settings: dict[str, object]) -> None:
    """A subclass may set it before the rest of the filter is there."""
    dupefilter = SetsIt.from_crawler(start(server_settings))
    assert [dupefilter.request_seen(request) for request in PAGES_OF_A_HOST] == [False, True, False]
    assert dupefilter.filter.plan.fingerprint == f"{__name__}.by_host"


def test_fingerprint_of_another_filter(server_settings: dict[str, object], valkey: Server, key: str) -> None:
    """A request_fingerprint that is another filter's is the user's like any other."""
    with valkey.client() as client:
        dupefilter = BloomRFPDupeFilter(client, f"{key}:other")
        users = BloomRFPDupeFilter.from_crawler(start({**server_settings, "REQUEST_FINGERPRINTER_CLASS": HeadersToo}))
        dupefilter.request_fingerprint = users.request_fingerprint  # type: ignore[method-assign]  # as above
        different = [Request("http://a.test/", headers={"X-A": value}) for value in ("1", "2")]
        assert [dupefilter.request_seen(request) for request in different] == [False, False]
