"""The receipts of BloomScheduler: `when_queued` reports that requests are in Redis."""

from scrapy import Request

from scrapy_bloom import BloomScheduler
from tests.support import crawling
from tests.support.in_process import start
from tests.support.servers import Server


def test_receipts_at_the_end(valkey: Server, key: str) -> None:
    """Requests queued at a worker's end are reported then, and not before."""
    settings = {
        "DUPEFILTER_CLASS": crawling.BLOOM,
        "REDIS_URL": valkey.url,
        "SCHEDULER_DUPEFILTER_KEY": key,
        "SCHEDULER_QUEUE_KEY": f"{key}:queue",
        "BLOOMFILTER_CAPACITY": 1000,
        "BLOOMFILTER_ERROR_RATE": 1e-12,
    }
    crawler = start(settings)
    scheduler = BloomScheduler.from_crawler(crawler)
    assert crawler.spider is not None
    scheduler.open(crawler.spider)
    told: list[int] = []
    with valkey.client() as client:
        assert scheduler.enqueue_request(Request("https://example.com/"))
        scheduler.when_queued(lambda: told.append(client.zcard(scheduler.queue_keys.queue)))
        assert told == []
        scheduler.close("finished")
    assert told == [1]
