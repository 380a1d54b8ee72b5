"""Requests as JSON compared with scrapy-redis's pickles: their bytes and times.

The requests resemble a crawl's: each stands for a link of the PostgreSQL documentation, with a page as its Referer
and its depth in meta, as Scrapy's spider middlewares leave them. Others have the additions of CrawlSpider, a form, or
ten fields of an item. `dumps` and `loads` are timed alone, and then together with Scrapy's `Request.to_dict` and
`request_from_dict` around them: the cost of a request to a scheduler. All take turns.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from types import ModuleType
from typing import Any

from scrapy import FormRequest, Request, Spider
from scrapy.utils.request import request_from_dict
from scrapy_redis import picklecompat

from benchmarks.harness import report
from benchmarks.harness.interleaved import interleave, ratio
from benchmarks.harness.options import Asked
from benchmarks.harness.plots import Plot
from benchmarks.suites.repeats import POSTGRESQL, streams
from scrapy_bloom.serializers import json

ROUNDS = 15
NUMBER = 1_000
PICKLE, JSON = "pickle", "JSON"
SERIALIZERS: dict[str, ModuleType] = {PICKLE: picklecompat, JSON: json}
_ITEM = {f"field {number}": f"The text of a field, which is number {number}" for number in range(10)}

Make = Callable[[Spider, str, str], Request]


class BenchSpider(Spider):
    """A spider with a callback other than `parse`."""

    name = "bench"

    def parse_page(self, _: object) -> None:
        """Serve as a callback."""


def run(_: Asked) -> list[Plot]:
    """Measure each kind of request, and print a table."""
    links = [link for page in streams()[POSTGRESQL] for link in page][: NUMBER + 1]
    rows = [row for kind, make in KINDS.items() for row in _measure(kind, make, links)]
    columns = ("request", "bytes to pickle's", "dumps", "loads", "with Scrapy's part", "bytes", "dumps us", "loads us")
    report.table(f"{NUMBER:,} requests of each kind, medians of {ROUNDS} rounds; ratios to pickle's.", columns, rows)
    return []


def _followed(spider: Spider, page: str, link: str) -> Request:
    callback = spider.parse_page  # type: ignore[attr-defined]  # BenchSpider's
    return Request(link, callback, headers={"Referer": page}, meta={"depth": 3}, priority=-3)


def _by_a_rule(spider: Spider, page: str, link: str) -> Request:
    request = _followed(spider, page, link)
    request.meta.update(rule=0, link_text="Chapter 5. Data Definition")
    return request


def _form(spider: Spider, page: str, link: str) -> Request:
    return _followed(spider, page, link).replace(cls=FormRequest, method="POST", body=b"query=bloom&page=2&sort=date")


def _with_item(spider: Spider, page: str, link: str) -> Request:
    return _followed(spider, page, link).replace(cb_kwargs={"item": _ITEM})


KINDS: dict[str, Make] = {
    "a link": _followed,
    "a link of a CrawlSpider": _by_a_rule,
    "a form": _form,
    "a link with an item": _with_item,
}


def _measure(kind: str, make: Make, links: Sequence[str]) -> list[tuple[str, ...]]:
    spider = BenchSpider()
    requests = [make(spider, page, link) for page, link in pairwise(links)]
    runs = {name: Run(module, spider, requests) for name, module in SERIALIZERS.items()}
    dumps, loads, whole = (
        interleave(ROUNDS, {name: getattr(each, step) for name, each in runs.items()})
        for step in ("dumps", "loads", "whole")
    )
    size = {name: sum(map(len, each.stored)) / len(requests) for name, each in runs.items()}
    return [
        (
            f"{kind}, {name}",
            report.times(size[name] / size[PICKLE]),
            *(report.times(ratio(costs[name], costs[PICKLE])) for costs in (dumps, loads, whole)),
            f"{size[name]:.0f}",
            *(f"{median(costs[name]) / len(requests) * 1e6:.1f}" for costs in (dumps, loads)),
        )
        for name in SERIALIZERS
    ]


class Run:
    """A serializer and its requests; each step returns its seconds."""

    def __init__(self, serializer: Any, spider: Spider, requests: Sequence[Request]) -> None:
        self._serializer = serializer
        self._spider = spider
        self._requests = requests
        self._dicts = [request.to_dict(spider=spider) for request in requests]
        self.stored: list[bytes] = [serializer.dumps(each) for each in self._dicts]

    def dumps(self) -> float:
        """Write all requests."""
        return _timed(self._serializer.dumps, self._dicts)

    def loads(self) -> float:
        """Read all requests."""
        return _timed(self._serializer.loads, self.stored)

    def whole(self) -> float:
        """Write and read all requests as a scheduler does."""

        def there_and_back(request: Request) -> Request:
            stored = self._serializer.dumps(request.to_dict(spider=self._spider))
            return request_from_dict(self._serializer.loads(stored), spider=self._spider)

        return _timed(there_and_back, self._requests)


def _timed(step: Callable[[Any], object], items: Sequence[Any]) -> float:
    started = time.perf_counter()
    for item in items:
        step(item)
    return time.perf_counter() - started
