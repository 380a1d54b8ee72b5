"""Which links a crawl follows: those of an HTML page to its own host. Knows no queue and no filter."""

from urllib.parse import urlsplit

from scrapy.http import HtmlResponse, Response
from scrapy.link import Link
from scrapy.linkextractors import LinkExtractor

# Leaves out what is no page by its extension: images, style sheets, archives.
_PAGES = LinkExtractor(tags="a")


def same_host(response: Response) -> list[Link]:
    """Links by `<a href>` to pages of the response's host and port.

    None where the response is not HTML, or where a redirect led to it from another host.
    """
    redirected_from: list[str] = response.meta.get("redirect_urls", [])
    host = _host(redirected_from[0] if redirected_from else response.url)
    if not isinstance(response, HtmlResponse) or _host(response.url) != host:
        return []
    return [link for link in _PAGES.extract_links(response) if _host(link.url) == host]


def _host(url: str) -> str:
    return urlsplit(url).netloc.lower()
