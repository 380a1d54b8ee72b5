"""Extract the links of an HTML page to its own host."""

from urllib.parse import urlsplit

from scrapy.http import HtmlResponse, Response
from scrapy.link import Link
from scrapy.linkextractors import LinkExtractor

# Skips images, style sheets and archives by their extension.
_PAGES = LinkExtractor(tags="a")


def same_host(response: Response) -> list[Link]:
    """Return the `<a href>` links to pages of the response's host and port.

    There are none if the response is not HTML, or came by a redirect from another host.
    """
    redirected_from: list[str] = response.meta.get("redirect_urls", [])
    host = _host(redirected_from[0] if redirected_from else response.url)
    if not isinstance(response, HtmlResponse) or _host(response.url) != host:
        return []
    return [link for link in _PAGES.extract_links(response) if _host(link.url) == host]


def _host(url: str) -> str:
    return urlsplit(url).netloc.lower()
