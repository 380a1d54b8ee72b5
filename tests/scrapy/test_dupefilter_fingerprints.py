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


@every_way
def test_fingerprint_is_that_of_scrapy_redis(valkey: Server, key: str, way: Way) -> None:
    """By default the fingerprints are those in scrapy-redis's SETs."""
    expected = RFPDupeFilter(None, key).request_fingerprint(page(1))
    assert way(crawler_of(valkey, **{KEY: key})).request_fingerprint(page(1)) == expected
    assert BloomRFPDupeFilter(None, key).request_fingerprint(page(1)) == expected


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
