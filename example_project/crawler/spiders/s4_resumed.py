"""A crawl that outlives its workers: stop it with one Ctrl-C, and the next start resumes it.

Run `scrapy crawl resumed -a start_url=URL` each time; `-s SCHEDULER_FLUSH_ON_START=True` starts over.
"""

from crawler.spiders.s2_shared import SharedSpider


class ResumedSpider(SharedSpider):
    """Keep queue and filter in Redis at the end, so that no page is fetched again.

    Without the setting, the last worker to close deletes both.
    """

    name = "resumed"
    custom_settings = {"SCHEDULER_PERSIST": True}  # noqa: RUF012  # the name and the type are Scrapy's
