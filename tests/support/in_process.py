"""Real crawlers in this process, in the state in which their schedulers are opened."""

from typing import Any

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.utils.reactor import install_reactor, is_reactor_installed
from scrapy.utils.test import get_crawler


class ShopSpider(Spider):
    name = "shop"


def start(settings: dict[str, Any], spider_name: str = "shop", spidercls: type[Spider] = ShopSpider) -> Crawler:
    """A crawler with these settings alone, and a spider."""
    if not is_reactor_installed():  # required by older versions of Scrapy
        install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
    crawler = get_crawler(spidercls, settings)
    crawler.spider = spidercls.from_crawler(crawler, name=spider_name)
    return crawler
