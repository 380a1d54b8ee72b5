"""Workers that a queue refuses, and schedulers and queue classes that BloomScheduler does."""

from pathlib import Path

import pytest

from devtools.crawl_process import LIMIT
from tests.support.pages import star, tree
from tests.support.scenario import OURS, Scene, assert_complete, assert_ended_well, complaints_in, scene
from tests.support.servers import Server

OVERRIDES = """
from scrapy_redis.queue import PriorityQueue
from scrapy_bloom import BloomScheduler

class OwnQueue(PriorityQueue):
    def {name}(self, *args):
        return super().{name}(*args)

class OwnScheduler(BloomScheduler):
    def enqueue_request(self, request):
        self.{call}
        return True

class Preferring(BloomScheduler):
    def enqueue_request(self, request):
        request.priority = 7 if request.url.endswith("/page/3") else 0
        return super().enqueue_request(request)
"""


def refused(played: Scene, parts: list[str], **settings: object) -> None:
    """Assert that a second worker is refused with these parts, and the first one ends well."""
    held, release = played.hold("/")
    first = played.start("first", OURS)
    assert held.wait(LIMIT)
    spider, played.spider = played.spider, str(settings.pop("spider", played.spider))
    ended = played.start("refused", OURS, **settings).wait()
    played.spider = spider
    release.set()
    line = ended.log.rstrip().splitlines()[-1]
    assert ended.exit_code == 1
    assert line.startswith("scrapy_bloom: ")
    assert [part for part in parts if part not in line] == []
    ended = first.wait()
    assert_ended_well(ended)
    assert complaints_in(ended.log) == []
    assert played.missed == set()
    assert played.twice == 0


def test_another_filter_key(valkey: Server, key: str, tmp_path: Path) -> None:
    """Two workers of a queue with different filters: the second is refused."""
    with scene(tree(13), tmp_path, valkey.url, key) as played:
        parts = [f"SCHEDULER_DUPEFILTER_KEY = '{key}:other'", f"use the filter '{key}'"]
        refused(played, parts, SCHEDULER_DUPEFILTER_KEY=f"{key}:other")


@pytest.mark.parametrize("flush", [False, True])
def test_another_spider(flush: bool, valkey: Server, key: str, tmp_path: Path) -> None:
    """A spider that starts on another one's queue is refused, and deletes nothing."""
    with scene(tree(13), tmp_path, valkey.url, key) as played:
        text = Path(played.spider).read_text().replace("LinksSpider", "OtherSpider")
        (tmp_path / "other.py").write_text(text)
        parts = ["SCHEDULER_QUEUE_KEY: workers of the spider 'links.LinksSpider' are ", f"'{key}:queue'", "%(spider)s"]
        refused(played, parts, spider=tmp_path / "other.py", SCHEDULER_FLUSH_ON_START=flush)


@pytest.mark.parametrize("name", ["push", "pop", "clear"])
def test_own_queue(name: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """A PriorityQueue that overrides a method without effect is refused."""
    (tmp_path / "own.py").write_text(OVERRIDES.format(name=name, call="queue"))
    with scene(tree(13), tmp_path, valkey.url, key) as played:
        ended = played.crawl(OURS, SCHEDULER_QUEUE_CLASS="own.OwnQueue")
        assert ended.exit_code == 1
        assert played.site.fetched == []
    line = ended.log.rstrip().splitlines()[-1]
    assert f"SCHEDULER_QUEUE_CLASS = 'own.OwnQueue': overrides {name}" in line


def test_advice_for_own_queues(valkey: Server, key: str, tmp_path: Path) -> None:
    """A scheduler that sets priorities, as the refusal advises, changes the order."""
    (tmp_path / "own.py").write_text(OVERRIDES.format(name="push", call="queue"))
    with scene(star(13), tmp_path, valkey.url, key) as played:
        ended = played.crawl(OURS, SCHEDULER="own.Preferring", CONCURRENT_REQUESTS=1)
        assert played.site.paths[:2] == ["/", "/page/3"]
        assert_complete(played, ended)


def test_own_enqueue(valkey: Server, key: str, tmp_path: Path) -> None:
    """A scheduler with its own way to queue ends the crawl, with one line and an exit code."""
    (tmp_path / "own.py").write_text(OVERRIDES.format(name="push", call="queue.push(request)"))
    with scene(tree(13), tmp_path, valkey.url, key) as played:
        ended = played.crawl(OURS, SCHEDULER="own.OwnScheduler")
        assert played.site.fetched == []
    assert ended.exit_code == 1
    # Scrapy's own reason is "shutdown" if start() has failed.
    assert ended.stats["finish_reason"] != "finished"
    line = ended.log.rstrip().splitlines()[-1]
    assert line.startswith("scrapy_bloom: SCHEDULER = ")
    assert "super().enqueue_request(request)" in line
