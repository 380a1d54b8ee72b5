"""`scrapy bloom clear`: a dry run unless `--yes` is given; deletes only the data it has shown."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli import clear
from scrapy_bloom.filter.parameters import FORMAT
from scrapy_bloom.queue.inspection import inspect
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.messages import Outcome
from tests.commands.conftest import Say
from tests.support import command
from tests.support.live_worker import LiveWorker
from tests.support.servers import Server

SMALL: dict[str, Any] = {"capacity": 100, "error_rate": 1e-3, "cache_size": 0}
ITEMS = [f"item {number}" for number in range(300)]

Clear = Callable[..., tuple[int, dict[str, Any]]]
Change = Callable[[redis.Redis, str], object]


@pytest.fixture
def clear_it(say: Say) -> Clear:
    """Run the action with `--json` and return its exit code and output."""

    def run(*options: str) -> tuple[int, dict[str, Any]]:
        code, out, err = say("clear", "--json", *options)
        return code, {**json.loads(out or "{}"), "error": err}

    return run


def keys_of(client: redis.Redis, key: str) -> set[str]:
    """The test's keys, without the records of a filter's callers, which expire."""
    return {name.decode() for name in client.scan_iter(f"*{key}*", count=10_000)}


def dumps(client: redis.Redis, key: str) -> dict[str, bytes | None]:
    return {name: client.dump(name) for name in keys_of(client, key)}


def fill(client: redis.Redis, key: str) -> None:
    """A filter of three layers with other contents each time."""
    client.delete(key)
    BloomFilter(client, key, **SMALL).add_many(ITEMS)


def crawl(client: redis.Redis, key: str) -> LiveWorker:
    """A crawl with two waiting requests, one leased and one failed request, one dead letter and one worker.

    An earlier crawl has ended beside a dead worker.
    """
    worker = LiveWorker(client, f"{key}:queue", key)
    worker.push(*(f"request {number}".encode() for number in range(4)))
    failed, _ = worker.take(2)
    worker.end(failed.member, Outcome.FAILED)
    client.zadd(worker.queue.keys.dead_letters, {"letter": 0})
    client.hset(worker.queue.keys.ended, "id", "1")
    return worker


def test_nothing_is_deleted_without_yes(client: redis.Redis, key: str, clear_it: Clear) -> None:
    """Without `--yes` the command lists the data, deletes none and returns 1."""
    fill(client, key)
    bloom = BloomFilter(client, key, **SMALL)
    before = dumps(client, key)
    code, told = clear_it()
    assert (code, told["deleted"], told["key"]) == (1, False, key)
    (filter_,) = told["filters"]
    info = bloom.info()
    assert all(filter_[name] == getattr(info, name) for name in ("layers", "memory_bytes", "count", "forgotten"))
    assert (filter_["kind"], told["queues"]) == ("filter", [])
    assert dumps(client, key) == before
    code, told = clear_it("--yes")
    assert (code, told["deleted"], keys_of(client, key)) == (0, True, set())
    code, told = clear_it()
    assert (code, told["deleted"], told["filters"]) == (0, False, [])


def test_a_filter_that_nobody_can_open(client: redis.Redis, key: str, clear_it: Clear) -> None:
    """A filter of a newer format is deleted with its shards."""
    fill(client, key)
    client.hset(key, "parameters", json.dumps({"format": FORMAT + 1}))
    code, told = clear_it("--yes")
    assert (code, told["filters"][0]["kind"], keys_of(client, key)) == (0, "unreadable filter", set())


FOREIGN: dict[str, Change] = {
    "list": lambda client, key: client.rpush(key, "a"),
    "string": lambda client, key: client.set(key, "a"),
    "hash": lambda client, key: client.hset(key, mapping={"id": "17", "user:18": "bob"}),
    "zset": lambda client, key: client.zadd(key, {"a": 1}),
    "SET": lambda client, key: client.sadd(key, "a" * 40),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_not_ours_stays(client: redis.Redis, key: str, clear_it: Clear, kind: str) -> None:
    """Foreign data at the filter's key is refused, and the queue stays."""
    FOREIGN[kind](client, key)
    client.zadd(f"{key}:queue", {"request": 0})
    before = dumps(client, key)
    code, told = clear_it("--queue", f"{key}:queue", "--with-queue", "--yes")
    assert code == 2
    assert f"holds a {kind}" in told["error"]
    assert dumps(client, key) == before


def test_the_queue_goes_when_that_is_asked_for(client: redis.Redis, key: str, clear_it: Clear) -> None:
    """`--with-queue` deletes leases, dead letters and failed requests, too; the dry run counts them."""
    worker = crawl(client, key)
    queue = ("--queue", f"{key}:queue")
    content = {"key": f"{key}:queue", "waiting": 2, "leased": 1, "dead_letters": 1, "failed": 1, "workers": 1}
    code, told = clear_it(*queue)
    assert (code, told["queues"]) == (1, [{**content, "goes": False}])
    code, told = clear_it(*queue, "--with-queue")
    assert (code, told["queues"], client.zcard(f"{key}:queue")) == (1, [{**content, "goes": True}], 2)
    assert clear_it(*queue, "--yes")[0] == 0
    assert (client.exists(key), client.zcard(f"{key}:queue")) == (0, 2)
    # Another scheduler may take requests of the kept queue, which are not lost, even if the filter was gone before.
    crawl_key = QueueKeys(f"{key}:queue").crawl
    assert not client.hexists(crawl_key, "waiting")
    client.hset(crawl_key, "waiting", 2)
    assert clear_it(*queue, "--yes")[1]["deleted"] is False
    assert not client.hexists(crawl_key, "waiting")
    worker.leave()
    code, told = clear_it(*queue, "--with-queue", "--yes")
    assert (code, told["deleted"], keys_of(client, key)) == (0, True, set())


@pytest.mark.parametrize(("order", "expected"), [("Fifo", [b"3", b"2"]), ("Lifo", [b"2", b"3"])])
def test_a_list_again(order: str, expected: list[bytes], client: redis.Redis, key: str, say: Say) -> None:
    """With a queue class whose requests scrapy-redis keeps in a list, a kept queue becomes one when no worker lives."""
    queue = f"{key}:queue"
    named: dict[str, Any] = {"SCHEDULER_QUEUE_CLASS": f"scrapy_redis.queue.{order}Queue"}
    worker = LiveWorker(client, queue, key)
    worker.push(b"1", b"2", b"3")
    worker.take()
    worker.end(b"1")
    assert say("clear", "--queue", queue, "--yes", **named).code == 0
    assert client.type(queue) == b"zset"
    worker.leave()
    said = say("clear", "--queue", queue, "--yes", **named)
    assert said.code == 0
    assert f"queue: {queue}: a list now" in said.out
    assert client.lrange(queue, 0, -1) == expected


def test_other_queues(client: redis.Redis, key: str, clear_it: Clear) -> None:
    """A list queue is counted; other types, and a missing name, are refused."""
    queue = ("--queue", f"{key}:queue", "--with-queue", "--yes")
    client.rpush(f"{key}:queue", "a", "b")
    code, told = clear_it(*queue)
    assert (code, told["queues"][0]["waiting"], keys_of(client, key)) == (0, 2, set())
    client.set(f"{key}:queue", "a")
    code, told = clear_it(*queue)
    assert (code, "holds a string that is not a queue" in told["error"]) == (2, True)
    code, told = clear_it("--with-queue", "--yes")
    assert (code, "give --queue KEY" in told["error"]) == (2, True)
    assert client.get(f"{key}:queue") == b"a"


# The shown data, and the data at the time of the deletion.
REPLACED: dict[str, tuple[Change, Change]] = {
    "another filter": (fill, fill),
    "a string": (fill, lambda client, key: client.set(key, "a")),
    "somebody's hash": (fill, lambda client, key: (client.delete(key), client.hset(key, "a", "b"))),
    "a SET for a filter": (fill, lambda client, key: (client.delete(key), client.sadd(key, "a" * 40))),
    "a worker that has joined": (crawl, lambda client, key: LiveWorker(client, f"{key}:queue", key, "new")),
    "another crawl": (crawl, lambda client, key: (client.delete(f"{{{key}:queue}}:crawl"), crawl(client, key))),
    "another queue": (
        lambda client, key: client.zadd(f"{key}:queue", {"request": 0}),
        lambda client, key: (client.delete(f"{key}:queue"), client.rpush(f"{key}:queue", "a")),
    ),
}


@pytest.mark.parametrize("case", REPLACED)
def test_what_was_not_shown_stays(
    client: redis.Redis, key: str, clear_it: Clear, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If anything was replaced since it was shown, all stays and is named, and nothing is called deleted."""
    shown, change = REPLACED[case]
    shown(client, key)
    delete, before = clear._delete, {}

    def change_and_delete(*arguments: Any) -> bool:
        change(client, key)
        before.update(dumps(client, key))
        return delete(*arguments)

    monkeypatch.setattr(clear, "_delete", change_and_delete)
    code, told = clear_it("--queue", f"{key}:queue", "--with-queue", "--yes")
    assert (code, [*told]) == (2, ["error"])
    assert told["error"].startswith(f"scrapy bloom: {key}, {key}:queue: not deleted, because the data has changed")
    assert dumps(client, key) == before


def test_beside_a_worker(client: redis.Redis, key: str, clear_it: Clear) -> None:
    """A live worker joins a new crawl, and learns that the old one was deleted, and not lost."""
    worker = crawl(client, key)
    assert clear_it("--queue", f"{key}:queue", "--with-queue", "--yes")[0] == 0
    worker.offer(b"a link")
    assert [received.rejoin for received in worker.work_off() if received.rejoin] == ["flush"]
    state = inspect(client, f"{key}:queue")
    assert (state.has_losses, state.dead_letters, state.failed, len(state.workers)) == (False, 0, 0, 1)
    assert b"a link" in client.zrange(f"{key}:queue", 0, -1)


def test_a_shared_filter(valkey: Server, key: str, tmp_path: Path) -> None:
    """A spider's clear leaves the filter that other spiders share, says so, and how to delete it."""
    keys = {"SCHEDULER_DUPEFILTER_KEY": key, "SCHEDULER_QUEUE_KEY": f"{key}:queue"}
    cwd = command.make_project(tmp_path / "project", REDIS_URL=valkey.url, **keys)
    with valkey.client() as client:
        crawl(client, key).leave()
        for arguments in (["shop"], ["shop", "--yes"]):
            said = command.run("clear", *arguments, cwd=cwd)
            assert (said.returncode, said.stdout) == (2, "")
            assert f"is kept, as other spiders may share it; --key {key} deletes it" in said.stderr
        before = client.hgetall(key)
        assert before.pop(f"queue:{key}:queue".encode())
        said = command.run("clear", "shop", "--with-queue", "--yes", cwd=cwd)
        assert (said.returncode, said.stdout.splitlines()[-1]) == (0, "deleted")
        assert f"the filter at {key} is kept" in said.stdout
        assert "calls the deleted requests seen: their pages are missed" in said.stdout
        assert (client.hgetall(key), keys_of(client, key)) == (before, {key, *shards(client, key)})
        report = command.report("clear", "shop", "--with-queue", "--yes", cwd=cwd)
        assert (report["deleted"], report["filters"][0]["goes"]) == (False, False)
        said = command.run("clear", "shop", "--key", key, "--yes", cwd=cwd)
        assert (said.returncode, keys_of(client, key)) == (0, set())


def shards(client: redis.Redis, key: str) -> set[str]:
    return {name.decode() for name in client.scan_iter(f"{{{key}}}:*:*:*")}


def test_in_a_project(valkey: Server, key: str, tmp_path: Path) -> None:
    """The text names server, database, key and all data to delete, and warns of workers."""
    keys = {"SCHEDULER_DUPEFILTER_KEY": f"{key}:%(spider)s", "SCHEDULER_QUEUE_KEY": f"{key}:%(spider)s:queue"}
    key = f"{key}:shop"
    cwd = command.make_project(tmp_path / "project", REDIS_URL=f"{valkey.url}/3", **keys)
    with valkey.client(db=3) as client:
        crawl(client, key)
        said = command.run("clear", "shop", cwd=cwd)
        assert said.returncode == 1
        assert said.stdout.splitlines() == [
            f"server: 127.0.0.1:{valkey.port}, database 3",
            f"key: {key}: a filter, 1 layer, 448 bytes, 4 items",
            f"queue: {key}:queue: kept; 2 waiting, 1 leased, 1 dead letter, 1 failed, 1 worker",
            "warning: without the filter, further links to the pages of this queue are fetched again",
            "warning: live workers go on without the deleted data, and fetch pages again; stop them first",
            "nothing was deleted: run it with --yes to delete this",
        ]
        said = command.run("clear", "shop", "--with-queue", "--yes", cwd=cwd)
        assert (said.returncode, said.stdout.splitlines()[-1]) == (0, "deleted")
        # A live worker is told by this.
        crawl_of_worker = QueueKeys(f"{key}:queue").crawl
        assert keys_of(client, key) == {crawl_of_worker}
        assert client.ttl(crawl_of_worker) > 0
