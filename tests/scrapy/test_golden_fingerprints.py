"""Stored requests and their fingerprints, the same under each version of Scrapy and of this package.

`make scrapys` runs these tests with each minor version of Scrapy. This module, run by `python -m`, adds new requests to
the table.
"""

import base64
import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest
from scrapy import Request, Spider
from scrapy.http import JsonRequest, Response
from scrapy.utils.request import RequestFingerprinter, fingerprint, request_from_dict
from scrapy_redis import picklecompat
from scrapy_redis.dupefilter import RFPDupeFilter

from scrapy_bloom import BloomRFPDupeFilter, serializer
from tests.support.in_process import start
from tests.support.servers import Server

TABLE = Path(__file__).parents[1] / "data" / "requests.json"
SITE = "https://example.com"
FORM = "application/x-www-form-urlencoded"


class PagesSpider(Spider):
    """The callbacks of a stored request."""

    name = "pages"

    def parse_page(self, response: Response) -> None:
        """Take a page."""

    def failed(self, failure: object) -> None:
        """Take a failure."""


SPIDER = PagesSpider()

# A value of each type that MessagePack restores.
VALUES: dict[Any, Any] = {
    "none": None,
    "text": "ü€",
    "bytes": b"\x00\xff",
    "set": {1},
    "tuple": (1, [2.5, True]),
    7: frozenset({"a"}),
    "large": 2**70,
}
REQUESTS = {
    "plain": Request(SITE),
    "path": Request(f"{SITE}/a/b.html"),
    "query in another order": Request(f"{SITE}/?b=2&a=1&a=0"),
    "empty values": Request(f"{SITE}/?a=&b"),
    "fragment": Request(f"{SITE}/a#part"),
    "hashbang": Request(f"{SITE}/#!/a"),
    "escapes": Request(f"{SITE}/%7Ea/%c3%bc?q=%2f+%20"),
    "not ASCII": Request(f"{SITE}/straße/日本?ü=€"),
    "host that is not ASCII": Request("https://bücher.example/ä"),
    "another encoding": Request(f"{SITE}/ä?ö=ü", encoding="latin-1"),
    "host in capitals, with a port": Request("HTTPS://EXAMPLE.com:443/A"),
    "spaces": Request(f"{SITE}/a b?c d=e f"),
    "HEAD": Request(f"{SITE}/a", method="HEAD"),
    "POST": Request(f"{SITE}/a", method="POST"),
    "POST with a body": Request(f"{SITE}/a", method="POST", body=b"\x00\xff"),
    "lower-case method": Request(f"{SITE}/a", method="put", body="ü"),
    "form": Request(f"{SITE}/search", method="POST", headers={"Content-Type": FORM}, body=b"q=%C3%BC&page=2"),
    "JSON": JsonRequest(f"{SITE}/api", data={"b": [1, "ü"], "a": None}),
    "headers": Request(f"{SITE}/a", headers={"Accept": "text/html", "X-A": ["1", "2"]}),
    "cookies": Request(f"{SITE}/a", cookies={"session": "1"}),
    "all else": Request(
        f"{SITE}/a",
        callback=SPIDER.parse_page,
        errback=SPIDER.failed,
        meta=VALUES,
        cb_kwargs={"page": 1, "kept": VALUES},
        priority=-5,
        dont_filter=True,
        flags=["a"],
    ),
}
FINGERPRINTS: dict[str, Callable[[Request], str]] = {
    "scrapy": lambda request: RequestFingerprinter().fingerprint(request).hex(),
    "scrapy, keep_fragments": lambda request: fingerprint(request, keep_fragments=True).hex(),
    "scrapy, include_headers": lambda request: fingerprint(request, include_headers=["X-A", "Accept"]).hex(),
    "scrapy-redis": lambda request: str(RFPDupeFilter(None, "").request_fingerprint(request)),
}


def row_of(request: Request) -> dict[str, str]:
    """Return the row of the table for a request."""
    fields = request.to_dict(spider=SPIDER)
    return {
        "pickle": base64.b64encode(picklecompat.dumps(fields)).decode(),
        "msgpack": base64.b64encode(serializer.dumps(fields)).decode(),
        **{name: make(request) for name, make in FINGERPRINTS.items()},
    }


def table() -> dict[str, dict[str, str]]:
    """Return the stored rows, by the names of their requests."""
    rows: dict[str, dict[str, str]] = json.loads(TABLE.read_text())
    return rows


def test_every_request_is_stored() -> None:
    """The table has the requests of this module."""
    assert list(table()) == list(REQUESTS)


@pytest.mark.parametrize("name", REQUESTS)
def test_request_is_restored(name: str) -> None:
    """A stored request has its class, all attributes and its fingerprints, from both serializers.

    A pickle has values alone, which each version of Scrapy and Python can load.
    """
    row, given = table()[name], REQUESTS[name]
    stored = {picklecompat: base64.b64decode(row["pickle"]), serializer: base64.b64decode(row["msgpack"])}
    assert type(pickle.loads(stored[picklecompat])) is dict  # noqa: S301  # of this repository
    requests = [request_from_dict(module.loads(data), spider=SPIDER) for module, data in stored.items()]
    for request in requests:
        assert type(request) is type(given)
        assert request.to_dict(spider=SPIDER) == given.to_dict(spider=SPIDER)
    for scheme, make in FINGERPRINTS.items():
        assert {make(request) for request in (given, *requests)} == {row[scheme]}


@pytest.mark.parametrize("name", REQUESTS)
def test_request_is_written_as_before(name: str) -> None:
    """A worker of an earlier release can read the bytes of this one; versions of Scrapy order the attributes."""
    written = serializer.dumps(REQUESTS[name].to_dict(spider=SPIDER))
    plain = partial(msgpack.unpackb, strict_map_key=False, use_list=False)  # with the extension values
    assert plain(written) == plain(base64.b64decode(table()[name]["msgpack"]))


@pytest.mark.parametrize("scheme", ["scrapy", "scrapy-redis"])
def test_filter_has_the_stored_fingerprint(scheme: str, valkey: Server, key: str) -> None:
    """The dupefilter makes the same fingerprints, with and without its cache of URLs."""
    chosen = {"REQUEST_FINGERPRINTER_CLASS": "scrapy.utils.request.RequestFingerprinter"} if scheme == "scrapy" else {}
    dupefilter = BloomRFPDupeFilter.from_crawler(
        start({"REDIS_URL": valkey.url, "SCHEDULER_DUPEFILTER_KEY": key, **chosen})
    )
    for _ in range(2):
        found = {name: dupefilter.fingerprint_of(request).decode() for name, request in REQUESTS.items()}
        assert found == {name: row[scheme] for name, row in table().items()}
        for request in REQUESTS.values():
            dupefilter.request_seen(request)


def main() -> None:
    """Add the rows of new requests to the table."""
    rows = table() if TABLE.exists() else {}
    every = {name: rows.get(name) or row_of(request) for name, request in REQUESTS.items()}
    TABLE.write_text(json.dumps(every, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
