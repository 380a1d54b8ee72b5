"""`scrapy bloom doctor` on stored data: unusable keys and orphaned leases."""

from collections.abc import Iterator
from typing import Any

import pytest

from scrapy_bloom import BloomFilter
from scrapy_bloom._format import plural
from scrapy_bloom.cli._target import CrawlTarget
from scrapy_bloom.cli.checks import leftovers
from scrapy_bloom.cli.checks.case import Case, Level
from scrapy_bloom.cli.doctor import SERVER_CHECKS
from scrapy_bloom.queue.entries import QueueEntry
from scrapy_bloom.queue.operations import Heartbeat, Join, RequestQueue, Sync
from scrapy_bloom.queue.queue_keys import QueueKeys, StartKeys
from scrapy_bloom.start_urls import leases
from scrapy_bloom.transport.transport import Transport
from tests.support import command
from tests.support.examining import OURS, examine, wrong
from tests.support.servers import KINDS, Server, running


@pytest.fixture(scope="module", params=KINDS)
def own(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A well-configured server."""
    with running(request.param, "--appendonly", "yes") as server:
        yield server


@pytest.fixture
def mine(own: Server) -> Iterator[Any]:
    with own.client(decode_responses=True) as client:
        yield client


def place(key: str) -> tuple[str, ...]:
    """The options for a test's filter and queue."""
    return ("--key", f"{key}:dupefilter", "--queue", f"{key}:requests")


@pytest.mark.parametrize("kind", ["list", "string", "hash"])
def test_a_queue_of_another_kind(
    kind: str, own: Server, mine: Any, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A queue that is not a sorted set is reported by its type: no worker would start."""
    name = f"{key}:requests"
    made = {"list": lambda: mine.lpush(name, "x"), "string": lambda: mine.set(name, "x")}
    made.get(kind, lambda: mine.hset(name, "x", "y"))()
    code, found = examine(own.url, capsys, *place(key))
    assert (code, wrong(found)) == (1, {"queue": "loss"})
    assert kind in found["queue"][1]


def test_a_list_for_scrapy_redis(own: Server, mine: Any, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A list suits scrapy-redis's scheduler with its list queues, but not its sorted set."""
    mine.lpush(f"{key}:requests", "x")
    theirs = {
        **OURS,
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_QUEUE_KEY": f"{key}:requests",
        "SCHEDULER_DUPEFILTER_KEY": f"{key}:%(spider)s",
    }
    lists = {"SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.FifoQueue"}
    assert examine(own.url, capsys, "shop", **theirs, **lists)[1]["queue"][0] == "advice"
    assert examine(own.url, capsys, "shop", **theirs)[1]["queue"][0] == "loss"


@pytest.mark.parametrize("is_open", [False, True])
def test_a_stranger_where_the_bits_go(
    is_open: bool, own: Server, mine: Any, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A foreign string at a shard's key is reported before a worker fails on it."""
    if is_open:
        BloomFilter(mine, f"{key}:dupefilter")
    mine.set(f"{key}:dupefilter:0:0", "a string of somebody else's")
    code, found = examine(own.url, capsys, *place(key))
    assert (code, wrong(found)) == (1, {"filter": "loss"})
    assert f"no worker would start: the key '{key}:dupefilter:0:0'" in found["filter"][1]


def test_a_shard_that_is_gone(own: Server, mine: Any, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`doctor`, `info` and the Python API report lost shards, and foreign strings in their place."""
    name = f"{key}:dupefilter"
    bloom = BloomFilter(mine, name, capacity=100_000)
    bloom.add_many([f"{number}" for number in range(5000)])
    shards = sorted(mine.scan_iter(f"{name}:*"))
    assert (bloom.info().lost_shards, bloom.info().shards) == (0, len(shards))
    assert examine(own.url, capsys, *place(key))[0] == 0
    mine.delete(shards[0])
    lost = f"1 of {plural(len(shards), 'shard')}"
    code, found = examine(own.url, capsys, *place(key))
    assert (code, wrong(found)) == (1, {"filter": "loss"})
    assert lost in found["filter"][1]
    assert command.call("info", "--key", name, "--redis-url", own.url) == 0
    assert lost in capsys.readouterr().out
    assert [layer.lost_shards for layer in bloom.info().by_layer] == [1]
    mine.set(shards[0], "a string of somebody else's")
    assert lost in examine(own.url, capsys, *place(key))[1]["filter"][1]


def test_a_layer_that_is_being_made(own: Server, mine: Any, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Shards that a worker has yet to create are not lost: a complete layer has a counter."""
    name = f"{key}:dupefilter"
    bloom = BloomFilter(mine, name, capacity=1000)
    bloom.add("a")
    (layer,) = bloom._protocol.stack.layers
    mine.hdel(name, layer.credit_field)
    mine.delete(f"{name}:0:0")
    code, found = examine(own.url, capsys, *place(key))
    assert (code, wrong(found)) == (0, {})


def test_bits_without_their_hash(own: Server, mine: Any, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A lost hash is reported with the remaining shards; `clear` deletes these."""
    name = f"{key}:dupefilter"
    bloom = BloomFilter(mine, name, capacity=100)
    bloom.add_many([f"{number}" for number in range(150)])
    number = len([*mine.scan_iter(f"{name}:*")])
    mine.delete(name)
    code, found = examine(own.url, capsys, *place(key))
    assert (code, wrong(found)) == (1, {"filter": "loss"})
    assert f"its hash was evicted or deleted, and {number} shards of it" in found["filter"][1]
    assert command.call("clear", "--key", name, "--redis-url", own.url, "--yes") == 0
    capsys.readouterr()
    code, found = examine(own.url, capsys, *place(key))
    assert (code, wrong(found)) == (0, {})


def test_start_urls(own: Server, mine: Any, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Dead start URLs and orphaned leases are reported, but no leases of a live worker."""
    start, queue = StartKeys(f"{key}:fed"), f"{key}:requests"
    settings: dict[str, Any] = {
        **OURS,
        "REDIS_START_URLS_KEY": f"{key}:%(name)s",
        "SCHEDULER_QUEUE_KEY": queue,
        "SCHEDULER_DUPEFILTER_KEY": f"{key}:dupefilter",
    }
    mine.hset(QueueKeys(queue).workers, "here", "60 7 closing")
    mine.hset(start.leased, f"1:here:{queue}", "http://localhost/1")
    code, found = examine(own.url, capsys, "fed", **settings)
    assert (code, found["start URLs"][:2]) == (0, ("ok", f"1 of '{start.start}' leased"))
    mine.hset(start.leased, f"2:gone:{queue}", "http://localhost/2")
    mine.hset(start.leased, f"3:gone:{queue}", "http://localhost/3")
    code, found = examine(own.url, capsys, "fed", **settings)
    assert (code, found["start URLs"][0]) == (0, "advice")
    assert f"2 of '{start.start}' leased by workers that are gone" in found["start URLs"][1]
    mine.rpush(start.dead_letters, "http://localhost/4")
    before = mine.dump(start.leased), mine.dump(start.dead_letters)
    code, found = examine(own.url, capsys, "fed", **settings)
    assert (code, found["start URLs"][0]) == (1, "loss")
    assert start.dead_letters in found["start URLs"][1]
    assert (mine.dump(start.leased), mine.dump(start.dead_letters)) == before


def test_a_worker_that_joins_meanwhile(own: Server, mine: Any, key: str) -> None:
    """The leases of a worker that joins between two reads are not reported as orphaned."""
    called, _ = command.parse("doctor", *place(key), "--redis-url", own.url)
    assert called.settings is not None
    case = Case(CrawlTarget.of(called._options, called.settings), 3600.0)
    keys = QueueKeys(f"{key}:requests")
    assert [state.workers for state in case.queue_states] == [()]
    mine.hset(keys.workers, "late", "60 7 3")
    mine.zadd(keys.leases("late"), {"a": 1})
    assert [finding.level for finding in SERVER_CHECKS["leases"](case)] == [Level.OK]
    mine.hdel(keys.workers, "late")
    assert [finding.level for finding in SERVER_CHECKS["leases"](case)] == [Level.ADVICE]


def test_a_worker_that_leaves_meanwhile(mine: Any, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases returned between two reads are not reported as orphaned, start URLs included."""
    keys, start = QueueKeys(f"{key}:requests"), StartKeys(f"{key}:start_urls")
    mine.zadd(keys.leases("leaving"), {"a": 1})

    def leave() -> list[str]:
        mine.delete(keys.leases("leaving"))
        return []

    assert leftovers.stray_leases(mine, keys.queue, leave).level is Level.OK
    mine.hset(start.leased, f"1:leaving:{keys.queue}", "http://localhost/1")
    mine.hset(start.leased, f"2:gone:{keys.queue}", "http://localhost/2")
    look = leases._registered

    def look_late(transport: Transport, queues: set[str]) -> dict[str, set[str]]:
        mine.hdel(start.leased, f"1:leaving:{keys.queue}")
        return look(transport, queues)

    monkeypatch.setattr(leases, "_registered", look_late)
    assert leases.inspect(mine, start.start).abandoned == 1


def test_the_probe_leaves_keys_alone(own: Server, mine: Any, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Permissions are probed with keys that hold no data: existing keys stay as they are."""
    names = [f"{key}:dupefilter:doctor", QueueKeys(f"{key}:requests").leases("doctor")]
    mine.hset(names[0], "field", "value")
    mine.zadd(names[1], {"member": 1})
    before = [mine.dump(name) for name in names]
    assert examine(own.url, capsys, *place(key))[1]["permissions"][0] == "ok"
    assert [mine.dump(name) for name in names] == before


def test_a_queue_that_has_lost_requests(own: Server, mine: Any, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`doctor` and `info` report requests lost with their queue, even before a worker notices."""
    requests = RequestQueue(mine, f"{key}:requests")
    requests.execute(Join("one", "1000", 0, is_new=True, spider="shop"))
    requests.execute(Sync("one", 1, 0, pushes=tuple(QueueEntry(0, b"%d" % number) for number in range(7))))
    assert wrong(examine(own.url, capsys, *place(key))[1]) == {}
    mine.delete(f"{key}:requests")
    for _ in range(2):
        code, found = examine(own.url, capsys, *place(key))
        assert (code, wrong(found)) == (1, {"queue": "loss"})
        assert "has lost requests that the filter takes for seen, 7 of them counted" in found["queue"][1]
        command.call("info", *place(key), REDIS_URL=own.url)
        assert "7 or more requests LOST" in capsys.readouterr().out
        # From here on the queue's own scripts have noticed.
        requests.execute(Heartbeat("one"))


def test_workers_of_two_spiders(own: Server, mine: Any, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Two spiders that take each other's requests are a loss; a worker that does not crawl is none."""
    requests = RequestQueue(mine, f"{key}:requests")
    requests.execute(Join("one", "1000", 0, is_new=True, spider="shop"))
    requests.execute(Join("pushing", "1000", 0, is_new=True))
    assert wrong(examine(own.url, capsys, *place(key))[1]) == {}
    # A registration of an earlier checkout, which compared no spider names.
    mine.hset(QueueKeys(f"{key}:requests").workers, "two", f"1000 0 {mine.time()[0]}000 @news")
    code, found = examine(own.url, capsys, *place(key))
    assert (code, wrong(found)) == (1, {"queue": "loss"})
    assert found["queue"][1].endswith("news, shop")
