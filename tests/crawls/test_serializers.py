"""Crawls with other serializers than Scrapy's own, as text or bytes, and with unreadable requests in the queue."""

import re
from pathlib import Path

import pytest

from scrapy_bloom.queue.inspection import inspect
from tests.support import command
from tests.support.documentation import section
from tests.support.extensions import ALL_TURNS, LONGEST_STALL, Ticker, enabling
from tests.support.outcomes import assert_cleared, assert_complete, assert_ended_well, complaints_in, holders_of, tell
from tests.support.pages import tree
from tests.support.scenario import LEASE, OURS, STOCK, Kind, keys_of, scene
from tests.support.serializers import text_to_bytes
from tests.support.servers import Server
from tests.support.waiting import until

SAFE = "scrapy_bloom.serializer"

WAYS: dict[str, Kind] = {
    "text stored, bytes read": {"SCHEDULER_SERIALIZER": text_to_bytes.__name__},
    "MessagePack over a client that decodes replies": {"SCHEDULER_SERIALIZER": SAFE, "REDIS_DECODE_RESPONSES": True},
    "pickles over a client that decodes replies": {"REDIS_DECODE_RESPONSES": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_one_way_in_another_way_out(way: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """A serializer gets bytes, of any text it has written, and whether or not the client decodes replies."""
    with scene(tree(40), tmp_path, valkey.url, key) as played:
        crawls = played.crawl_by("left", "right", kind={**OURS, **LEASE, **WAYS[way]})
        assert_cleared(played, *crawls)
    assert all("cannot be read" not in ended.log for ended in crawls)


@pytest.mark.parametrize("serializer", [None, SAFE])
def test_from_scrapy_redis_and_back(serializer: str | None, valkey: Server, key: str, tmp_path: Path) -> None:
    """By the steps of docs/migrate.md no pending request is lost or fetched twice, on the way here and back."""
    settings: Kind = {"SCHEDULER_SERIALIZER": serializer, "SCHEDULER_PERSIST": True}
    stopping: Kind = {**settings, "CLOSESPIDER_PAGECOUNT": 8, "CONCURRENT_REQUESTS": 1}
    at = ("--key", key, "--redis-url", valkey.url)
    with valkey.client() as client, scene(tree(40), tmp_path, valkey.url, key) as played:
        crawls = [played.crawl({**STOCK, **stopping}, "before")]
        told = [command.run("import", *at, "--capacity", "1000", "--error-rate", "1e-12", cwd=tmp_path)]
        crawls.append(played.crawl({**OURS, **stopping}, "here"))
        told.append(command.run("clear", *at, "--yes", cwd=tmp_path))
        waiting = client.zcard(f"{key}:queue")
        assert 0 < waiting < 40 - 8
        crawls.append(played.crawl({**STOCK, **settings, "SCHEDULER_DUPEFILTER_KEY": f"{{{key}}}:set"}, "back"))
        assert_complete(played, crawls[-1])
        assert played.twice == 0
    stopped = (0, "closespider_pagecount")
    assert [(ended.exit_code, ended.stats["finish_reason"]) for ended in crawls[:-1]] == [stopped] * 2
    assert [(ended.returncode, ended.stderr) for ended in told] == [(0, "")] * 2


@pytest.mark.parametrize("order", ["Priority", "Fifo", "Lifo"])
def test_back_after_a_kill(order: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """By the steps of "Going back" scrapy-redis fetches the requests of a killed worker, and a failed one."""
    steps = re.findall(r"`scrapy bloom (\w+) news ?(.*?)`", " ".join(section("docs/migrate.md", "Going back").split()))
    assert [action for action, _ in steps] == ["requeue", "requeue", "info", "clear"]
    queue_class: Kind = {"SCHEDULER_QUEUE_CLASS": f"scrapy_redis.queue.{order}Queue"}
    kind = {**OURS, **LEASE, **queue_class, "BLOOMFILTER_RETRY_FAILED": True, "RETRY_TIMES": 0}
    chosen = f"SCHEDULER_QUEUE_CLASS={queue_class['SCHEDULER_QUEUE_CLASS']}"
    at = ("--key", key, "--queue", f"{key}:queue", "--redis-url", valkey.url, "-s", chosen)

    def run(action: str, options: str) -> str:
        done = command.run(action, *at, *options.split(), cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    with valkey.client() as client, scene(tree(60), tmp_path, valkey.url, key) as played:
        played.site.answers = {"/page/1": 503}
        killed = played.start("killed", kind, CONCURRENT_REQUESTS=4)
        played.moments.when(15, lambda _: killed.kill())
        until(lambda: killed.process.poll() is not None)
        played.site.answers = {}
        until(lambda: all(worker.is_silent for worker in inspect(client, f"{key}:queue").workers))
        found = inspect(client, f"{key}:queue")
        assert found.leased > 0
        assert [run(*step) for step in steps[:2]][1].startswith("requeued 1 of 1 failed request")
        last = played.crawl({**kind, "SCHEDULER_PERSIST": True, "CLOSESPIDER_PAGECOUNT": 4}, "last")
        (left,) = re.findall(r"Left \d+ requests in the queue", last.log)
        assert "no worker of BloomScheduler" in run(*steps[2])
        run(*steps[3])
        assert client.type(f"{key}:queue") == (b"zset" if order == "Priority" else b"list")
        back = played.crawl({**STOCK, **queue_class, "SCHEDULER_PERSIST": True}, "back")
        assert int(left.split()[1]) <= back.stats["scheduler/dequeued/redis"]
        assert set(played.site.links) - set(played.site.paths) == set()
        assert_ended_well(back)


# Unreadable requests: no worker waits for them or deletes them.


GARBAGE = b"not a request"


def garbage(number: int) -> dict[bytes, float]:
    """Return unreadable members that precede all others."""
    return {b"%s %d" % (GARBAGE, each): -5 for each in range(number)}


def test_kept_and_told_of(valkey: Server, key: str, tmp_path: Path) -> None:
    """Unreadable requests are kept even without SCHEDULER_PERSIST, and logged; the next worker tries them again."""
    with valkey.client() as client, scene(tree(40), tmp_path, valkey.url, key) as played:
        unreadable = garbage(3)
        played.moments.when(2, lambda _: client.zadd(f"{key}:queue", unreadable))
        crawls = played.crawl_by("left", "right", kind=OURS)
        assert played.missed == set()
        kept = {each for member in unreadable for each in holders_of(client, key, member)}
        assert len(kept) == 1
        assert keys_of(client, key) == kept
        assert client.zrange(kept.pop(), 0, -1) == [*unreadable]
        assert played.crawl(OURS, "later").log.count("cannot be read") == 3
    assert [ended.stats["finish_reason"] for ended in crawls] == ["finished"] * 2
    warnings = [line for ended in crawls for line in complaints_in(ended.log) if " WARNING: " in line]
    assert [line for line in warnings if " 3 " in line and f"{key}:queue" in line]


def test_thousands_at_the_start(valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Thousands of unreadable requests are not read in one turn of the reactor."""
    settings: Kind = {**OURS, **enabling(Ticker)}
    with valkey.client() as client, scene(tree(13), tmp_path, valkey.url, key) as played:
        client.zadd(f"{key}:queue", garbage(5000))
        ended = played.start("worker", settings).wait()
        assert played.missed == set()
    longest, every = ended.stats[LONGEST_STALL], ended.stats[ALL_TURNS]
    tell(capsys, f"5,000 unreadable requests: the longest of all turns took {longest:.2f} of {every:.2f} s of CPU")
    assert ended.stats["finish_reason"] == "finished"
    assert longest < every / 3
