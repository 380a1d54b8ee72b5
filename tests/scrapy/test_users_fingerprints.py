"""Fingerprints of user code are never cached: they may depend on anything."""

import re
from typing import Any

import pytest
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter, fingerprint
from scrapy_redis.dupefilter import RFPDupeFilter

from scrapy_bloom import BloomRFPDupeFilter, MismatchError
from tests.support.in_process import start
from tests.support.servers import Server


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
    "subclass of Scrapy's": (
        BloomRFPDupeFilter,
        {"REQUEST_FINGERPRINTER_CLASS": PageToo},
        [Request("http://a.test/", meta={"page": page}) for page in (1, 2)],
    ),
}


def test_what_scrapys_fingerprint_depends_on_besides(server_settings: dict[str, object]) -> None:
    """A request whose meta changes Scrapy's own fingerprint gets that fingerprint."""
    scrapys = {"REQUEST_FINGERPRINTER_CLASS": "scrapy.utils.request.RequestFingerprinter"}
    dupefilter = BloomRFPDupeFilter.from_crawler(start({**server_settings, **scrapys}))
    url = "http://a.test/?b=2&a=1"
    for request in (Request(url), Request(url, meta={"verbatim_url": True}), Request(url)):
        assert dupefilter.fingerprint_of(request) == fingerprint(request).hex().encode()


@pytest.fixture
def server_settings(valkey: Server, key: str) -> dict[str, object]:
    """Settings of a crawl of this test."""
    return {
        "REDIS_URL": valkey.url,
        "SCHEDULER_DUPEFILTER_KEY": key,
        "BLOOMFILTER_CAPACITY": 1000,
        "BLOOMFILTER_ERROR_RATE": 1e-12,
    }


@pytest.mark.parametrize("way", USERS)
def test_users_fingerprints_are_never_remembered(way: str, server_settings: dict[str, object]) -> None:
    """Requests of equal method, URL and body differ if the user's fingerprinter tells them apart."""
    dupefilter_class, chosen, different = USERS[way]
    dupefilter = dupefilter_class.from_crawler(start({**server_settings, **chosen}))
    assert [dupefilter.request_seen(request) for request in (*different, *different)] == [False, False, True, True]


def by_host(request: Request) -> str:
    """A fingerprint that a user sets on an existing filter."""
    return request.url.split("/")[2]


PAGES_OF_A_HOST = [Request("http://a.test/1"), Request("http://a.test/2"), Request("http://b.test/1")]


@pytest.mark.parametrize("way", ["before the filter is open", "after"])
def test_fingerprint_that_is_set_on_a_filter(way: str, valkey: Server, key: str) -> None:
    """A `request_fingerprint` set on one filter is used, as in scrapy-redis."""
    with valkey.client() as client:
        dupefilters: list[Any] = [RFPDupeFilter(client, f"{key}:set"), BloomRFPDupeFilter(client, key)]
        for dupefilter in dupefilters:
            if way == "after":
                assert not dupefilter.request_seen(Request("http://c.test/"))
            dupefilter.request_fingerprint = by_host
            assert [dupefilter.request_seen(request) for request in PAGES_OF_A_HOST] == [False, True, False]


def test_users_fingerprint_on_one_filter_is_never_remembered(valkey: Server, key: str) -> None:
    """It is made anew for each request, since it may read more than method, URL and body."""
    with valkey.client() as client:
        dupefilter: Any = BloomRFPDupeFilter(client, key)
        dupefilter.request_fingerprint = lambda request: str(request.meta["version"])
        versions = [Request("http://a.test/", meta={"version": version}) for version in (1, 2, 1)]
        assert [dupefilter.request_seen(request) for request in versions] == [False, False, True]


def test_scheme_of_a_fingerprint_that_is_set_on_a_filter(valkey: Server, key: str) -> None:
    """Its name is stored like any other, so that a worker with other fingerprints is refused."""
    with valkey.client() as client:
        dupefilter = BloomRFPDupeFilter(client, key)
        dupefilter.request_fingerprint = by_host  # type: ignore[method-assign]  # the point of the test
        assert not dupefilter.request_seen(PAGES_OF_A_HOST[0])
        with pytest.raises(MismatchError, match=re.escape(f"{__name__}.by_host")):
            BloomRFPDupeFilter(client, key).request_seen(PAGES_OF_A_HOST[0])


def test_fingerprint_that_is_set_too_late_to_be_stored(
    server_settings: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    """A `request_fingerprint` set after another's name was stored is logged once."""
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
    """A subclass may set it before the rest of the filter exists."""
    dupefilter = SetsIt.from_crawler(start(server_settings))
    assert [dupefilter.request_seen(request) for request in PAGES_OF_A_HOST] == [False, True, False]
    assert dupefilter.filter.parameters.fingerprint == f"{__name__}.by_host"


def test_fingerprint_of_another_filter(server_settings: dict[str, object], valkey: Server, key: str) -> None:
    """A `request_fingerprint` of another filter is user code like any other."""
    with valkey.client() as client:
        dupefilter = BloomRFPDupeFilter(client, f"{key}:other")
        users = BloomRFPDupeFilter.from_crawler(start({**server_settings, "REQUEST_FINGERPRINTER_CLASS": HeadersToo}))
        dupefilter.request_fingerprint = users.request_fingerprint  # type: ignore[method-assign]  # as above
        different = [Request("http://a.test/", headers={"X-A": value}) for value in ("1", "2")]
        assert [dupefilter.request_seen(request) for request in different] == [False, False]
