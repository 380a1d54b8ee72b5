"""A spider whose pages fail in every way, for `scrapy runspider`."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy import Request
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response

from tests.support.spiders.unfiltered import UnfilteredSpider


class OwnRetry(RetryMiddleware):
    """A user's middleware, which fails itself at a page, and ignores another one."""

    def process_request(self, request: Request, spider: Any = None) -> None:  # noqa: ARG002  # older versions give it
        if request.url.endswith("/forbidden") and request.meta["fails"]:
            raise IgnoreRequest

    def process_response(self, request: Request, response: Response, spider: Any = None) -> Request | Response:
        if request.url.endswith("/mangled") and request.meta["fails"]:
            raise ValueError("a broken body")
        given = () if spider is None else (spider,)
        return super().process_response(request, response, *given)


class FailingSpider(UnfilteredSpider):
    """Treats the pages of a site by their names, as long as the setting FAILS is 1."""

    def parse(self, response: Response, **_: Any) -> Iterator[Request]:
        callbacks = {
            "raises": self.parse_and_raise,
            "midway": self.yield_and_raise,
            "coroutine": self.await_and_raise,
            "stream": self.stream_and_raise,
        }
        for request in super().parse(response):
            name = request.url.rpartition("/")[2]
            meta: dict[str, Any] = {"fails": self.settings.getbool("FAILS")}
            if name.startswith("allowed"):
                meta["handle_httpstatus_list"] = [503]
            yield request.replace(
                callback=callbacks.get(name, self.parse_page),
                errback=self.take_error if "errback" in name else None,
                meta=meta,
            )

    def parse_page(self, response: Response) -> None:
        """Take the page."""

    def take_error(self, failure: Any) -> None:
        """Take the failure, so that Scrapy logs none."""

    def parse_and_raise(self, response: Response) -> None:
        if response.meta["fails"]:
            raise ValueError("a page of another kind")

    def yield_and_raise(self, response: Response) -> Iterator[dict[str, str]]:
        yield {"url": response.url}
        self.parse_and_raise(response)

    async def await_and_raise(self, response: Response) -> None:
        self.parse_and_raise(response)

    async def stream_and_raise(self, response: Response) -> AsyncIterator[dict[str, str]]:
        yield {"url": response.url}
        self.parse_and_raise(response)
