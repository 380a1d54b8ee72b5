"""A crawl that outlives its workers: stop it with one Ctrl-C, start it again, and it goes on where it was.

Each time with `scrapy crawl resumed -a start_url=URL`; `-s SCHEDULER_FLUSH_ON_START=True` begins anew.
"""

from crawler.spiders.s1_shared import SharedSpider


class ResumedSpider(SharedSpider):
    """Leaves queue and filter in Redis when it closes; a page fetched before is not fetched again.

    Without the setting, the last worker to close clears both.
    """

    name = "resumed"
    custom_settings = {"SCHEDULER_PERSIST": True}  # noqa: RUF012  # the name and the type are Scrapy's
