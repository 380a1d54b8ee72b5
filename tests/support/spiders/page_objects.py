"""A spider whose links are read by a page object of scrapy-poet."""

from collections.abc import Iterator

from scrapy import Request
from scrapy_poet.api import DummyResponse
from web_poet import WebPage

from tests.support.spiders.links import LinksSpider


class LinksPage(WebPage[dict[str, str]]):
    """A page with links."""

    def links(self) -> list[str]:
        """Return the absolute URLs of all links."""
        return [str(self.urljoin(href)) for href in self.css("a::attr(href)").getall()]


class PageObjectsSpider(LinksSpider):
    """Follows every link; the provider of scrapy-poet makes the page of each response."""

    def parse(self, response: DummyResponse, page: LinksPage) -> Iterator[Request]:  # type: ignore[override]  # noqa: ARG002  # so that poet makes the page
        """Follow the page's links."""
        for url in page.links():
            yield Request(url)
