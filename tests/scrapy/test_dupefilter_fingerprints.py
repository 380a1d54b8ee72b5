"""The fingerprints of a dupefilter, and its answers by them; `test_golden_fingerprints` has those by default."""

import hashlib
import logging
from typing import Any

import pytest
import redis
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.utils.request import RequestFingerprinter, fingerprint
from scrapy_redis.dupefilter import RFPDupeFilter

from scrapy_bloom import BloomRFPDupeFilter, ConfigError, MismatchError, fingerprints
from scrapy_bloom.text import LimitedWarnings
from tests.support.dupefilters import KEY, Way, crawler_of, every_way, page, parameters_of, with_key
from tests.support.in_process import ShopSpider, start
from tests.support.servers import Server

FINGERPRINTER = "REQUEST_FINGERPRINTER_CLASS"


class PathFingerprinter:
    """Takes pages that differ in their queries for one."""

    def fingerprint(self, request: Request) -> bytes:
        return request.url.partition("?")[0].encode()


class BuiltFromCrawler(PathFingerprinter):
    @classmethod
    def from_crawler(cls, _: Crawler) -> "BuiltFromCrawler":
        return cls()


class HeadersToo:
    """A fingerprinter that reads more than method, URL and body."""

    def fingerprint(self, request: Request) -> bytes:
        return fingerprint(request, include_headers=["X-A"])


class PageToo(RequestFingerprinter):
    """Scrapy's fingerprinter, plus a value in the request's meta."""

    def fingerprint(self, request: Request) -> bytes:
        return super().fingerprint(request) + str(request.meta["page"]).encode()


class OverriddenDupeFilter(BloomRFPDupeFilter):
    """An overridden `request_fingerprint`, as scrapy-redis allows."""

    def request_fingerprint(self, request: Request) -> str:
        return f"{request.url} {request.meta.get('page')}"


PATH = f"{__name__}.PathFingerprinter"


@pytest.mark.parametrize("fingerprinter", ["scrapy_redis", "scrapy.utils.request.RequestFingerprinter"])
def test_plain_urls_need_no_canonical_url(
    fingerprinter: str, valkey: Server, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dupefilter makes the fingerprint of a plain URL by itself, of scrapy-redis's and Scrapy's scheme."""
    chosen = {} if fingerprinter == "scrapy_redis" else {FINGERPRINTER: fingerprinter}
    dupefilter = BloomRFPDupeFilter.from_crawler(crawler_of(valkey, **{KEY: key}, **chosen))
    expected = dupefilter.request_fingerprint(page(1)).encode()
    assert dupefilter.fingerprint_of(page(2)) != expected
    for module in ("scrapy_redis.dupefilter", "scrapy.utils.request"):
        monkeypatch.delattr(f"{module}.canonicalize_url")
    assert dupefilter.fingerprint_of(page(1)) == expected


@pytest.mark.parametrize("priority", ["addon", "project", "spider", "cmdline"])
@every_way
def test_fingerprinter_of_the_user(valkey: Server, key: str, way: Way, priority: str) -> None:
    """A REQUEST_FINGERPRINTER_CLASS set at any priority makes the fingerprints."""

    class Priority(ShopSpider):
        @classmethod
        def update_settings(cls, settings: Any) -> None:
            settings.set(FINGERPRINTER, PATH, priority)

    dupefilter = way(start({"REDIS_URL": valkey.url, KEY: key}, spidercls=Priority))
    assert bytes.fromhex(dupefilter.request_fingerprint(Request("http://shop.test/a?b"))) == b"http://shop.test/a"
    found = [dupefilter.request_seen(Request(f"http://shop.test/{path}")) for path in ("a?1", "a?2", "b?1")]
    assert found == [False, True, False]


def test_fingerprinter_that_needs_a_crawler(valkey: Server, key: str) -> None:
    """`from_settings` refuses a fingerprinter that needs the crawler."""
    path = f"{__name__}.BuiltFromCrawler"
    crawler = crawler_of(valkey, **{FINGERPRINTER: path, KEY: key})
    BloomRFPDupeFilter.from_crawler(crawler)
    with pytest.raises(ConfigError, match=f"^{FINGERPRINTER} = '{path}'"):
        BloomRFPDupeFilter.from_settings(with_key(crawler.settings, key))


USERS: dict[str, tuple[type[BloomRFPDupeFilter], dict[str, Any]]] = {
    "overridden": (OverriddenDupeFilter, {}),
    "overridden beside a fingerprinter": (OverriddenDupeFilter, {FINGERPRINTER: PATH}),
    "fingerprinter": (BloomRFPDupeFilter, {FINGERPRINTER: HeadersToo}),
    "subclass of Scrapy's": (BloomRFPDupeFilter, {FINGERPRINTER: PageToo}),
}


@pytest.mark.parametrize(("dupefilter_class", "settings"), USERS.values(), ids=USERS)
def test_users_fingerprints_are_never_remembered(
    dupefilter_class: type[BloomRFPDupeFilter], settings: dict[str, Any], valkey: Server, key: str
) -> None:
    """Requests of equal method, URL and body differ if the user's fingerprinter tells them apart."""
    dupefilter = dupefilter_class.from_crawler(crawler_of(valkey, **{KEY: key}, **settings))
    different = [Request("http://a.test/", headers={"X-A": each}, meta={"page": each}) for each in ("1", "2")]
    assert [dupefilter.request_seen(request) for request in (*different, *different)] == [False, False, True, True]


def test_what_scrapys_fingerprint_depends_on_besides(valkey: Server, key: str) -> None:
    """A request whose meta changes Scrapy's own fingerprint gets that fingerprint."""
    scrapys = {FINGERPRINTER: "scrapy.utils.request.RequestFingerprinter"}
    dupefilter = BloomRFPDupeFilter.from_crawler(crawler_of(valkey, **{KEY: key}, **scrapys))
    url = "http://a.test/?b=2&a=1"
    for request in (Request(url), Request(url, meta={"verbatim_url": True}), Request(url)):
        assert dupefilter.fingerprint_of(request) == fingerprint(request).hex().encode()


# What requests count as by their meta.


@pytest.mark.parametrize("settings", [{}, {FINGERPRINTER: PATH}], ids=["scrapy-redis", "user"])
def test_key_in_the_meta(settings: dict[str, Any], valkey: Server, key: str) -> None:
    """Requests with a `bloom_key` are repeats by that alone, in a namespace of their own, whatever URLs are cached."""
    dupefilter = BloomRFPDupeFilter.from_crawler(crawler_of(valkey, **{KEY: key}, **settings))
    asked: list[tuple[int, dict[str, Any]]] = [
        *((1, {}), (1, {"bloom_key": "a"}), (1, {"bloom_key": "b"}), (2, {"bloom_key": "a"}), (1, {}), (2, {})),
        (3, {"bloom_key": "\udc80"}),
        (3, {"bloom_key": "http://shop.test/1"}),
    ]
    found = [dupefilter.request_seen(page(number).replace(meta=meta)) for number, meta in asked]
    assert found == [False, False, False, True, True, False, False, False]
    # As `printf 'bloom_key:a' | sha1sum`, which the page shows.
    (item,) = {dupefilter.mark_of(page(number).replace(meta={"bloom_key": "a"}), b"run") for number in (1, 2)}
    assert item == hashlib.sha1(b"bloom_key:a", usedforsecurity=False).hexdigest().encode()


def test_target_of_a_redirect(valkey: Server, key: str) -> None:
    """A redirect keeps the meta, and its target counts as its URL: it is no repeat of the page that led to it.

    Another key, set by the callback of a redirected page, counts.
    """
    dupefilter = BloomRFPDupeFilter.from_crawler(crawler_of(valkey, **{KEY: key}))
    first = page(1).replace(meta={"bloom_key": "a"})
    assert [dupefilter.request_seen(first), dupefilter.request_seen(first.copy())] == [False, True]
    target = first.replace(url=page(2).url)
    assert [dupefilter.request_seen(target), dupefilter.request_seen(page(2))] == [False, True]
    others = [page(number).replace(meta={**target.meta, "bloom_key": "b"}) for number in (3, 4)]
    assert [dupefilter.request_seen(request) for request in others] == [False, True]


def test_always_in_the_meta(valkey: Server, key: str) -> None:
    """A request with `bloom_always` is new once in each run, with a key, too; one without it is as usual."""
    crawler = crawler_of(valkey, **{KEY: key}, SCHEDULER_PERSIST=True)
    metas: list[dict[str, Any]] = [{"bloom_always": each} for each in (True, False)]
    metas += [{"bloom_always": True, "bloom_key": "a"}, {}]
    for expected in ([False, False, False, True], [False, True, False, True]):
        dupefilter = BloomRFPDupeFilter.from_crawler(crawler)
        requests = [page(1).replace(meta=meta) for meta in metas]
        assert [dupefilter.request_seen(request) for request in requests] == expected
        assert all(map(dupefilter.request_seen, requests))


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log each error of this test."""
    monkeypatch.setattr(fingerprints, "_warnings", LimitedWarnings(logging.getLogger("scrapy_bloom")))


FAULTY = [("bloom_key", each) for each in (None, 42, b"a", "", ["a"])] + [
    ("bloom_always", each) for each in (None, 1, "")
]


@pytest.mark.parametrize(("name", "value"), FAULTY)
@pytest.mark.usefixtures("unlimited")
def test_faulty_value_in_the_meta(
    name: str, value: object, valkey: Server, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the key, the value, the request and what is allowed, and the request counts as its URL."""
    dupefilter = BloomRFPDupeFilter.from_crawler(crawler_of(valkey, **{KEY: key}))
    assert not dupefilter.request_seen(page(1).replace(meta={name: value}))
    assert dupefilter.request_seen(page(1))
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert error.startswith(f"meta[{name!r}] = {value!r} of <GET http://shop.test/1>: must be ")


class Forgetful(BloomRFPDupeFilter):
    """Its fingerprint lacks a `return`."""

    def request_fingerprint(self, request: Request) -> Any:
        """Return nothing."""


class Wrong:
    """A fingerprinter that returns text."""

    def fingerprint(self, request: Request) -> Any:
        """Return the URL."""
        return request.url


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        (Forgetful, {}, "Forgetful': its request_fingerprint: returned None for <GET"),
        (BloomRFPDupeFilter, {FINGERPRINTER: Wrong}, "Wrong': its fingerprint returned 'http://shop.test/1' for <GET"),
    ],
)
def test_a_fingerprint_of_another_type(
    kind: type[BloomRFPDupeFilter], settings: dict[str, Any], named: str, valkey: Server, key: str
) -> None:
    """It is refused by the class and the method that made it."""
    dupefilter = kind.from_crawler(crawler_of(valkey, **{KEY: key}, **settings))
    with pytest.raises(ConfigError) as refusal:
        dupefilter.mark_of(page(1), b"run")
    assert named in str(refusal.value)


class Own(RFPDupeFilter):  # type: ignore[misc]  # scrapy-redis has no types
    """A project's dupefilter for scrapy-redis."""

    def request_fingerprint(self, request: Request) -> str:
        """Tell the pages of a list apart."""
        return f"{super().request_fingerprint(request)}{request.meta.get('page', '')}"


class Mixed(BloomRFPDupeFilter, Own):
    """The same over our filter."""


def test_fingerprint_of_a_second_base(valkey: Server, key: str) -> None:
    """The fingerprint of a project's class is used and named, also if ours comes first."""
    dupefilter = Mixed.from_crawler(crawler_of(valkey, **{KEY: key}))
    requests = [page(1).replace(meta={"page": number}) for number in (1, 2, 1)]
    assert [dupefilter.request_seen(request) for request in requests] == [False, False, True]
    assert dupefilter.fingerprint_scheme() == f"{__name__}.Mixed.request_fingerprint"


class Bare(BloomRFPDupeFilter):
    """Its constructor calls no other."""

    def __init__(self, server: Any, key: str, debug: bool = False) -> None:
        self.server, self.key, self.debug, self.logdupes = server, key, debug, True


def test_a_constructor_of_its_own(valkey: Server, key: str) -> None:
    """A subclass need not call the constructor of its parent."""
    dupefilter = Bare.from_crawler(crawler_of(valkey, **{KEY: key}))
    assert [dupefilter.request_seen(page(number)) for number in (1, 2, 1)] == [False, False, True]


# By the stored name.
SCHEMES: dict[str, tuple[type[BloomRFPDupeFilter], dict[str, Any]]] = {
    "scrapy-redis": (BloomRFPDupeFilter, {}),
    PATH: (BloomRFPDupeFilter, {FINGERPRINTER: PATH}),
    f"{__name__}.OverriddenDupeFilter.request_fingerprint": (OverriddenDupeFilter, {}),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scheme_is_stored(server: Server, client: redis.Redis, key: str, scheme: str) -> None:
    """The fingerprinter's name is stored, and a worker with another is refused."""

    def build(scheme: str) -> BloomRFPDupeFilter:
        dupefilter_class, settings = SCHEMES[scheme]
        return dupefilter_class.from_spider(crawler_of(server, **{KEY: key}, **settings).spider)

    build(scheme)
    assert parameters_of(client, key)["fingerprint"] == scheme
    assert not build(scheme).request_seen(page(1))
    for other in SCHEMES.keys() - {scheme}:
        with pytest.raises(MismatchError) as refusal:
            build(other)
        assert all(part in str(refusal.value) for part in ("fingerprint", scheme, other))
