"""A cached fingerprint equals a newly made one, and that of a plain URL equals Scrapy's and scrapy-redis's."""

from itertools import product
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.http import FormRequest, JsonRequest
from scrapy.utils.request import fingerprint
from scrapy_redis.dupefilter import RFPDupeFilter

from scrapy_bloom.engine import FINGERPRINTED_META
from scrapy_bloom.fingerprints import _PLAIN, _PROBES, Compute, Marks, in_bytes, plain_or
from tests.support.real_links import links

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
    "scrapy-redis": in_bytes(lambda request: str(RFPDupeFilter.request_fingerprint(None, request)), ""),
    "scrapy": in_bytes(lambda request: fingerprint(request).hex(), ""),
}


@pytest.mark.parametrize("maker", MAKERS)
@given(size=st.integers(0, 6), met=st.lists(requests, max_size=30))
def test_remembered_is_what_would_be_made(maker: str, size: int, met: list[Request]) -> None:
    """With any cache size, and very similar requests, each request has its own fingerprint."""
    make = MAKERS[maker]
    remembered = Marks(make, size)
    assert [remembered(request, b"run") for request in met] == [make(request) for request in met]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("met", [ALIKE, ALIKE[::-1]], ids=["forwards", "backwards"])
def test_what_is_alike_is_told_apart(maker: str, met: list[Request]) -> None:
    """Requests that differ in method, URL or body alone are never confused, with all of them cached."""
    make = MAKERS[maker]
    remembered = Marks(make, 1000)
    for _ in range(2):
        assert [remembered(request, b"run") for request in met] == [make(request) for request in met]


def test_the_same_request_is_made_once() -> None:
    """A known URL costs no fingerprint, even of another request, unless it is very long or a POST."""
    made: list[str] = []

    def make(request: Request) -> str:
        made.append(request.url)
        return request.url

    remembered = Marks(in_bytes(make, ""), 10)
    for _ in range(3):
        for url in ("http://a.test/", "http://b.test/"):
            remembered(Request(url), b"")
        remembered(Request("http://a.test/", method="POST", body=b"x"), b"")
        remembered(Request("http://a.test/" + "x" * 1000), b"")
    assert len(made) == 2 + 3 + 3


# The fingerprints that are made for plain URLs: how they are made by others, and what `plain_or` is told of them.
PLAIN: dict[str, tuple[Compute, dict[str, Any]]] = {
    "scrapy-redis": (MAKERS["scrapy-redis"], {"is_scrapys": False}),
    "scrapy": (MAKERS["scrapy"], {"is_scrapys": True, "meta_keys": FINGERPRINTED_META}),
}
every_plain = pytest.mark.parametrize(("make", "told"), PLAIN.values(), ids=PLAIN)
# What canonicalize_url, Request or both change, or refuse.
TRAPS = [
    *["/", "//", "/.", "/..", "/./", "/../", ".", "%7e", "%2F", "%", "é", " ", "+", ",", ";", ";p", "@", "u:p@", "\\"],
    *["[", "]", "?", "?a", "?a=", "?=", "&", "&b=1", "&a=1", "=", "#", "#!a", "#é", "A", "_", "0x7f", "xn--", "a" * 64],
    *[":", ":80", ":443", ":0", ":8080", ":08080", ":99999", "\t", "\u200b", "\udc80"],
]
SPOILED = "http://a.test/b/c.d?e=f#g"
plain_urls = st.from_regex(_PLAIN, fullmatch=True)


def spoiled(url: str, trap: str, at: int, cut: int) -> str:
    """Put a trap at a place of a URL, instead of `cut` characters."""
    at %= len(url) + 1
    return url[:at] + trap + url[at + cut :]


near_misses = st.builds(spoiled, plain_urls, st.sampled_from(TRAPS), st.integers(0, 200), st.integers(0, 2))


def outcome(make: Compute, request: Request) -> bytes | type[ValueError]:
    """Return a fingerprint, or the class of the error in its place."""
    try:
        return make(request)
    except ValueError as error:
        return type(error)


def assert_theirs(plain: Compute, make: Compute, url: str, meta: dict[str, bool]) -> None:
    """Assert that a request has the same fingerprint by both, or the same error."""
    try:  # two requests, since Scrapy remembers fingerprints by the object
        ours, theirs = (Request(url, meta=meta) for _ in range(2))
    except ValueError:
        return
    assert outcome(plain, ours) == outcome(make, theirs), url


@every_plain
@given(url=plain_urls | near_misses | urls, meta=st.sampled_from([{}, {"verbatim_url": True}, {"verbatim_url": False}]))
@example(url="http://a.test/?page=2#!x", meta={"verbatim_url": True})
def test_plain_fingerprint_is_theirs(make: Compute, told: dict[str, Any], url: str, meta: dict[str, bool]) -> None:
    """The fingerprint of a plain URL, and of what resembles one, is that of Scrapy or scrapy-redis."""
    plain = plain_or(make, **told)
    assert plain is not make
    assert_theirs(plain, make, url, meta)


@every_plain
def test_url_with_a_trap_has_their_fingerprint(make: Compute, told: dict[str, Any]) -> None:
    """So has a plain URL with each trap at each of its places."""
    plain = plain_or(make, **told)
    for trap, at, cut in product(TRAPS, range(len(SPOILED) + 1), range(3)):
        assert_theirs(plain, make, spoiled(SPOILED, trap, at, cut), {})


@every_plain
def test_plain_fingerprints_are_made_without_theirs(make: Compute, told: dict[str, Any]) -> None:
    """The links of a real site are plain; requests with a method, a body or an escape are left to others."""
    left: list[str] = []

    def noted(request: Request) -> bytes:
        left.append(request.url)
        return make(request)

    plain = plain_or(noted, **told)
    assert left == [*_PROBES]
    for url in (*_PROBES, *links(), "http://a.test/a#b"):
        plain(Request(url))
    assert left == [*_PROBES]
    others = [Request(_PROBES[0], method="POST"), Request(_PROBES[0], body="a"), Request("http://a.test/%7E")]
    for request in others:
        plain(request)
    assert left == [*_PROBES, *(request.url for request in others)]


@every_plain
@pytest.mark.parametrize("probe", _PROBES)
def test_another_fingerprint_of_a_plain_url(probe: str, make: Compute, told: dict[str, Any]) -> None:
    """If others make another fingerprint of one plain URL, they make all: another version has other canonical URLs."""

    def changed(request: Request) -> bytes:
        return make(request.replace(url="http://a.test/") if request.url == probe else request)

    assert plain_or(changed, **told) is changed
