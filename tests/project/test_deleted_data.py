"""Each way to start over deletes the data that the page lists, and keeps the rest."""

from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from scrapy_bloom import BloomFilter, BloomScheduler
from scrapy_bloom.queue.queue_keys import QueueKeys, StartKeys
from tests.support import command, crawling
from tests.support.documentation import table
from tests.support.imports import OPTIONS, staging
from tests.support.in_process import start
from tests.support.servers import Server
from tests.support.undelivered import leave

NEVER_AGAIN = 1_700_000_000_000  # the last heartbeat, in ms since 1970


class Crawl:
    """All data of a stopped crawl whose only worker was killed."""

    def __init__(self, client: redis.Redis, key: str, directory: Path) -> None:
        self.filter, self.queue, self.directory = f"{key}:dupefilter", f"{key}:requests", directory
        self._client = client
        keys, urls = QueueKeys(self.queue), StartKeys(f"{key}:start_urls")
        for place in (self.filter, staging(self.filter)):
            BloomFilter(client, place, **OPTIONS).add("a")
        client.sadd(f"{{{self.filter}}}:set", "a")
        client.hset(keys.workers, "worker", f"60 7 {NEVER_AGAIN}")
        for name in (self.queue, keys.leases("worker"), keys.dead_letters):
            client.zadd(name, {"request": 0})
        client.rpush(f"{key}:start_urls", "https://example.com/")
        client.hset(urls.leased, "https://example.com/", "worker")
        self._file = leave(directory, self.queue, 1)
        self._keys = (
            (self.filter,),
            (self.queue, keys.leases("worker"), keys.dead_letters),
            (staging(self.filter),),
            (f"{{{self.filter}}}:set",),
            (f"{key}:start_urls", urls.leased),
        )

        self._before = {name: client.dump(name) for names in self._keys for name in names}

    def fates(self) -> list[str]:
        """Return the fate of each kind of data, in the order of the page; a new value is not the old one."""
        same = {name for name, value in self._before.items() if self._client.dump(name) == value}
        return [
            *(
                "kept" if same.issuperset(names) else "partly" if same.intersection(names) else "deleted"
                for names in self._keys
            ),
            "kept" if self._file.exists() else "queued by the starting worker",
        ]


def flush(server: Server, crawl: Crawl) -> None:
    """Start a worker with SCHEDULER_FLUSH_ON_START, and stop it."""
    crawler = start(
        {
            "DUPEFILTER_CLASS": crawling.BLOOM,
            "REDIS_URL": server.url,
            "SCHEDULER_DUPEFILTER_KEY": crawl.filter,
            "SCHEDULER_QUEUE_KEY": crawl.queue,
            "SCHEDULER_FLUSH_ON_START": True,
            "BLOOMFILTER_CAPACITY": 2 * OPTIONS["capacity"],
            "JOBDIR": str(crawl.directory),
        }
    )
    scheduler = BloomScheduler.from_crawler(crawler)
    assert crawler.spider is not None
    scheduler.open(crawler.spider)
    assert len(scheduler) == 1, "the request of the file"
    scheduler.close("finished")


def clear(*options: str) -> Callable[[Server, Crawl], None]:
    """Run `scrapy bloom clear`."""

    def run(server: Server, crawl: Crawl) -> None:
        place = ("--key", crawl.filter, "--redis-url", server.url)
        assert command.call("clear", *place, *options, "--yes") == 0

    return run


@pytest.mark.parametrize("column", [1, 2, 3], ids=["flush", "clear", "with the queue"])
def test_deleted_data(column: int, valkey: Server, key: str, tmp_path: Path) -> None:
    """The data are kept or deleted as the page says."""
    with valkey.client() as client:
        crawl = Crawl(client, key, tmp_path)
        assert set(crawl.fates()) == {"kept"}
        way = {1: flush, 2: clear(), 3: clear("--with-queue", "--queue", crawl.queue)}[column]
        way(valkey, crawl)
        assert crawl.fates() == [row[column] for row in table("docs/start-over.md", "Deleted data")]
