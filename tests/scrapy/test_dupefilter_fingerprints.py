"""The fingerprints of a dupefilter, and its answers by them."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import redis
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter, fingerprint
from scrapy_redis.dupefilter import RFPDupeFilter

from scrapy_bloom import BloomRFPDupeFilter, ConfigError, MismatchError
from tests.support.dupefilters import (
    BUILT_FROM_CRAWLER,
    KEY,
    PATH_FINGERPRINTER,
    HostDupeFilter,
    Way,
    build,
    crawler_of,
    every_way,
    page,
    parameters_of,
    spider_of,
)
from tests.support.in_process import ShopSpider, start
from tests.support.servers import Server

REQUESTS = [
    pytest.param(Request("http://shop.test/"), id="plain"),
    pytest.param(Request("http://shop.test/?b=2&a=1#part"), id="to-be-made-canonical"),
    pytest.param(Request("http://shop.test/", method="POST"), id="method"),
    pytest.param(Request("http://shop.test/", method="POST", body=b"\x00\xff"), id="body"),
    pytest.param(Request("http://shop.test/", headers={"A": "b"}, cookies={"c": "d"}), id="headers"),
    pytest.param(Request("http://shop.test/ä ö?ü=€"), id="not-ascii"),
    pytest.param(Request("http://shop.test/" + "x" * 5000), id="long"),
]


@pytest.mark.parametrize("request_", REQUESTS)
@every_way
def test_fingerprint_is_that_of_scrapy_redis(valkey: Server, key: str, way: Way, request_: Request) -> None:
    """By default the fingerprints are those in scrapy-redis's SETs."""
    expected = RFPDupeFilter(None, key).request_fingerprint(request_)
    assert way(crawler_of(valkey, **{KEY: key})).request_fingerprint(request_) == expected
    assert BloomRFPDupeFilter(None, key).request_fingerprint(request_) == expected


@pytest.mark.parametrize("priority", ["addon", "project", "spider", "cmdline"])
@every_way
def test_fingerprinter_of_the_user(valkey: Server, key: str, way: Way, priority: str) -> None:
    """A REQUEST_FINGERPRINTER_CLASS set at any priority makes the fingerprints."""

    class Priority(ShopSpider):
        @classmethod
        def update_settings(cls, settings: Any) -> None:
            settings.set("REQUEST_FINGERPRINTER_CLASS", PATH_FINGERPRINTER, priority)

    dupefilter = way(start({"REDIS_URL": valkey.url, KEY: key}, spidercls=Priority))
    assert bytes.fromhex(dupefilter.request_fingerprint(Request("http://shop.test/a?b"))) == b"http://shop.test/a"
    assert not dupefilter.request_seen(Request("http://shop.test/a?1"))
    assert dupefilter.request_seen(Request("http://shop.test/a?2"))
    assert not dupefilter.request_seen(Request("http://shop.test/b?1"))


def test_fingerprinter_of_scrapy_if_it_is_wanted(valkey: Server, key: str) -> None:
    """A user who sets Scrapy's own fingerprinter gets it, although it is also Scrapy's default."""
    settings = {KEY: key, "REQUEST_FINGERPRINTER_CLASS": "scrapy.utils.request.RequestFingerprinter"}
    crawler = crawler_of(valkey, **settings)
    dupefilter = BloomRFPDupeFilter.from_spider(spider_of(crawler))
    fingerprinter = crawler.request_fingerprinter
    assert fingerprinter is not None
    assert dupefilter.request_fingerprint(page(1)) == fingerprinter.fingerprint(page(1)).hex()
    assert dupefilter.request_fingerprint(page(1)) != RFPDupeFilter(None, key).request_fingerprint(page(1))


def test_fingerprinter_that_needs_a_crawler(valkey: Server, key: str) -> None:
    """`from_settings` refuses a fingerprinter that needs the crawler."""
    crawler = crawler_of(valkey, REQUEST_FINGERPRINTER_CLASS=BUILT_FROM_CRAWLER, **{KEY: key})
    BloomRFPDupeFilter.from_crawler(crawler)
    with pytest.raises(ConfigError) as refusal:
        BloomRFPDupeFilter.from_settings(crawler.settings)
    assert f"REQUEST_FINGERPRINTER_CLASS = {BUILT_FROM_CRAWLER!r}" in str(refusal.value)


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


USERS: dict[str, tuple[type[BloomRFPDupeFilter], dict[str, Any]]] = {
    "overridden": (OverriddenDupeFilter, {}),
    "fingerprinter": (BloomRFPDupeFilter, {"REQUEST_FINGERPRINTER_CLASS": HeadersToo}),
    "subclass of Scrapy's": (BloomRFPDupeFilter, {"REQUEST_FINGERPRINTER_CLASS": PageToo}),
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
    scrapys = {"REQUEST_FINGERPRINTER_CLASS": "scrapy.utils.request.RequestFingerprinter"}
    dupefilter = BloomRFPDupeFilter.from_crawler(crawler_of(valkey, **{KEY: key}, **scrapys))
    url = "http://a.test/?b=2&a=1"
    for request in (Request(url), Request(url, meta={"verbatim_url": True}), Request(url)):
        assert dupefilter.fingerprint_of(request) == fingerprint(request).hex().encode()


@pytest.mark.parametrize("settings", [{}, {"REQUEST_FINGERPRINTER_CLASS": PATH_FINGERPRINTER}], ids=["alone", "both"])
def test_overridden_fingerprint_wins(valkey: Server, key: str, settings: dict[str, str]) -> None:
    """A subclass that overrides `request_fingerprint` makes the fingerprints, with any settings."""
    dupefilter = HostDupeFilter.from_spider(spider_of(crawler_of(valkey, **{KEY: key}, **settings)))
    assert not dupefilter.request_seen(Request("http://one.test/a"))
    assert dupefilter.request_seen(Request("http://one.test/b"))
    assert not dupefilter.request_seen(Request("http://two.test/a"))


def by_default(server: Server, key: str) -> BloomRFPDupeFilter:
    return build(server, key)


def by_setting(server: Server, key: str) -> BloomRFPDupeFilter:
    return build(server, key, REQUEST_FINGERPRINTER_CLASS=PATH_FINGERPRINTER)


def by_subclass(server: Server, key: str) -> BloomRFPDupeFilter:
    return HostDupeFilter.from_spider(spider_of(crawler_of(server, **{KEY: key})))


SCHEMES: dict[Callable[[Server, str], BloomRFPDupeFilter], str] = {
    by_default: "scrapy-redis",
    by_setting: PATH_FINGERPRINTER,
    by_subclass: f"{HostDupeFilter.__module__}.HostDupeFilter.request_fingerprint",
}


@pytest.mark.parametrize("make", SCHEMES)
def test_scheme_is_stored(
    server: Server, client: redis.Redis, key: str, make: Callable[[Server, str], BloomRFPDupeFilter]
) -> None:
    """The fingerprinter's name is stored, and a worker with another is refused."""
    make(server, key)
    assert parameters_of(client, key)["fingerprint"] == SCHEMES[make]
    for other, scheme in SCHEMES.items():
        if other is make:
            assert not other(server, key).request_seen(page(1))
            continue
        with pytest.raises(MismatchError) as refusal:
            other(server, key)
        for part in ("fingerprint", SCHEMES[make], scheme):
            assert part in str(refusal.value)


# The answers.

PAIRS = [
    pytest.param(Request("http://shop.test/a"), True, id="same"),
    pytest.param(Request("http://shop.test/a#part"), True, id="fragment"),
    pytest.param(Request("http://shop.test/a", headers={"A": "b"}), True, id="headers"),
    pytest.param(Request("http://shop.test/a", priority=5, meta={"a": 1}), True, id="priority"),
    pytest.param(Request("http://shop.test/A"), False, id="case"),
    pytest.param(Request("http://shop.test/a/"), False, id="slash"),
    pytest.param(Request("http://shop.test/a?"), True, id="empty-query"),
    pytest.param(Request("http://shop.test/a?b"), False, id="query"),
    pytest.param(Request("https://shop.test/a"), False, id="scheme"),
    pytest.param(Request("http://shop.test/a", method="HEAD"), False, id="method"),
    pytest.param(Request("http://shop.test/a", body="x"), False, id="body"),
]


@pytest.mark.parametrize(("second", "expected"), PAIRS)
def test_what_is_the_same_request(valkey: Server, key: str, second: Request, expected: bool) -> None:
    """Requests differ by method, canonical URL and body alone."""
    dupefilter = build(valkey, key)
    assert dupefilter.request_seen(Request("http://shop.test/a")) is False
    assert dupefilter.request_seen(second) is expected


@pytest.mark.parametrize("cache_size", [0, 16, 65_536])
def test_answers_as_the_set_does(server: Server, client: redis.Redis, key: str, cache_size: int) -> None:
    """Two workers over one filter give the answers of scrapy-redis's SET."""
    workers = [build(server, key, BLOOMFILTER_CACHE_SIZE=cache_size) for _ in range(2)]
    oracle = RFPDupeFilter(client, f"{key}:oracle")
    draw = random.Random(cache_size)
    for _ in range(1000):
        request = page(int(draw.paretovariate(0.5)) % 400)
        assert draw.choice(workers).request_seen(request) == oracle.request_seen(request)
    assert client.scard(oracle.key) > 50


def test_repeats_stay_in_the_process(valkey: Server, key: str) -> None:
    """A request that a worker has seen costs no further round trip."""
    dupefilter = build(valkey, key)
    dupefilter.request_seen(page(1))
    before = dupefilter.filter.counters.round_trips
    assert all(dupefilter.request_seen(page(1)) for _ in range(10))
    assert dupefilter.filter.counters.round_trips == before
    dupefilter.request_seen(page(2))
    assert dupefilter.filter.counters.round_trips == before + 1
