"""Each way to start over deletes the data that the page lists, and keeps the rest."""

from collections.abc import Callable

import pytest
import redis

from scrapy_bloom import BloomFilter, BloomScheduler
from scrapy_bloom.queue.keys import QueueKeys, StartKeys
from tests.commands.test_info import register
from tests.support import command
from tests.support.documentation import table
from tests.support.imports import OPTIONS
from tests.support.in_process import crawl_settings, start
from tests.support.servers import Server


class Crawl:
    """All data of a stopped crawl whose only worker was killed."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self.filter, self.queue = f"{key}:dupefilter", f"{key}:requests"
        self._client = client
        keys, urls = QueueKeys(self.queue), StartKeys(f"{key}:start_urls")
        BloomFilter(client, self.filter, **OPTIONS).add("a")
        client.sadd(f"{{{self.filter}}}:set", "a")
        leases, _ = keys.of_worker("worker")
        register(client, key, "worker", holds=1, contact=1_700_000_000)
        for name in (self.queue, leases, keys.dead_letters):
            client.zadd(name, {"request": 0})
        client.hset(keys.failed, "request", "1 0 x")
        client.rpush(f"{key}:start_urls", "https://example.com/")
        client.hset(urls.leased, "https://example.com/", "worker")
        self._keys = (
            (self.filter,),
            (self.queue, leases, keys.dead_letters, keys.failed),
            (f"{{{self.filter}}}:set",),
            (f"{key}:start_urls", urls.leased),
        )
        self._before = {name: client.dump(name) for names in self._keys for name in names}

    def fates(self) -> list[str]:
        """Return the fate of each kind of data, in the order of the page; a new value is not the old one."""
        same = {name for name, value in self._before.items() if self._client.dump(name) == value}
        return [
            "kept" if same.issuperset(names) else "partly" if same.intersection(names) else "deleted"
            for names in self._keys
        ]


def flush(server: Server, crawl: Crawl) -> None:
    """Start a worker with SCHEDULER_FLUSH_ON_START, and stop it."""
    keys = {"SCHEDULER_DUPEFILTER_KEY": "%(spider)s:dupefilter", "SCHEDULER_QUEUE_KEY": crawl.queue}
    settings = {**crawl_settings(server.url, ""), **keys, "SCHEDULER_FLUSH_ON_START": True}
    crawler = start(settings, crawl.filter.removesuffix(":dupefilter"))
    scheduler = BloomScheduler.from_crawler(crawler)
    scheduler.open(crawler.spider)
    scheduler.close("finished")


def clear(*options: str) -> Callable[[Server, Crawl], None]:
    """Run `scrapy bloom clear`."""

    def run(server: Server, crawl: Crawl) -> None:
        place = ("--key", crawl.filter, "--redis-url", server.url)
        assert command.call("clear", *place, *options, "--yes") == 0

    return run


@pytest.mark.parametrize("column", [1, 2, 3], ids=["flush", "clear", "with the queue"])
def test_deleted_data(column: int, valkey: Server, key: str) -> None:
    """The data are kept or deleted as the page says."""
    with valkey.client() as client:
        crawl = Crawl(client, key)
        assert set(crawl.fates()) == {"kept"}
        way = {1: flush, 2: clear(), 3: clear("--with-queue", "--queue", crawl.queue)}[column]
        way(valkey, crawl)
        assert crawl.fates() == [row[column] for row in table("docs/resume.md", "Deleted data")]
