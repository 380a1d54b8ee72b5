"""A cached fingerprint equals a newly made one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.http import FormRequest, JsonRequest
from scrapy.utils.request import fingerprint
from scrapy_redis.dupefilter import RFPDupeFilter

from scrapy_bloom.fingerprints import CachedFingerprints, uncached_fingerprints

KINDS = [Request, FormRequest, JsonRequest]
# Few of each, so that many requests differ in one part only, or in its spelling.
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
    """With any cache size, and very similar requests, each request has its own fingerprint."""
    make = MAKERS[maker]
    remembered, plain = CachedFingerprints(make, size), uncached_fingerprints(make)
    assert [remembered(request) for request in met] == [plain(request) for request in met]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("met", [ALIKE, ALIKE[::-1]], ids=["forwards", "backwards"])
def test_what_is_alike_is_told_apart(maker: str, met: list[Request]) -> None:
    """Requests that differ in method, URL or body alone are never confused, with all of them cached."""
    make = MAKERS[maker]
    remembered, plain = CachedFingerprints(make, 1000), uncached_fingerprints(make)
    for _ in range(2):
        assert [remembered(request) for request in met] == [plain(request) for request in met]


def test_the_same_request_is_made_once() -> None:
    """A known request costs no fingerprint, even as another object, unless it is very long."""
    made: list[str] = []

    def make(request: Request) -> str:
        made.append(request.url)
        return request.url

    remembered = CachedFingerprints(make, 10)
    for _ in range(3):
        for url in ("http://a.test/", "http://b.test/"):
            remembered(Request(url))
        remembered(Request("http://a.test/", method="POST", body=b"x"))
        remembered(Request("http://a.test/" + "x" * 1000))
    assert len(made) == 3 + 3
