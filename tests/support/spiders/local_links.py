"""A spider half of whose requests cannot be serialized."""

from collections.abc import Iterator
from functools import partial
from threading import Lock
from typing import Any

from scrapy import Request
from scrapy.http import Response

from tests.support.spiders.links import LinksSpider

# A lambda, a closure, a partial, and an object in meta.
WAYS = 4


def is_local(path: str) -> bool:
    """Return whether the request of a page cannot be serialized."""
    return path != "/" and int(path.rpartition("/")[2]) % (2 * WAYS) < WAYS


class LocalLinksSpider(LinksSpider):
    """Follows every link, by the page's number with a lambda, a closure, a partial, an object in meta, or as it is."""

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        def closure(response: Response) -> Iterator[Request]:
            yield from self.parse(response)

        ways: list[dict[str, Any]] = [
            {"callback": lambda response: self.parse(response)},  # noqa: PLW0108  # the point of the test
            {"callback": closure},
            {"callback": partial(self.parse)},
            {"meta": {"lock": Lock()}},
        ]
        for request in super().parse(response):
            way = int(request.url.rpartition("/")[2]) % (2 * WAYS)
            yield request.replace(**ways[way]) if is_local(request.url) else request
