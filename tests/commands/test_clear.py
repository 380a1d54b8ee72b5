"""`scrapy bloom clear`: a dry run unless `--yes` is given; deletes only the keys it listed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom._format import as_text
from scrapy_bloom.cli import key_contents
from scrapy_bloom.cli.key_contents import DeletionPlan
from scrapy_bloom.queue.entries import QueueEntry
from scrapy_bloom.queue.operations import ClearFilter, Heartbeat, Join, RequestQueue, Requeue, Status, Sync
from scrapy_bloom.queue.worker import QueueWorker
from scrapy_bloom.storage.filter_hash import DeleteHash
from scrapy_bloom.storage.operation import Operations, Results
from scrapy_bloom.storage.stores import RedisStore
from tests.support import command
from tests.support.imports import OPTIONS, fill, keys_of, set_import, staging
from tests.support.moving import SMALL, items, keys_at
from tests.support.servers import Server

Clear = Callable[..., tuple[int, dict[str, Any]]]
LEASE = 60.0


@pytest.fixture
def clear(server: Server, key: str, capsys: pytest.CaptureFixture[str]) -> Clear:
    """Run the action with `--json` and return its exit code and output."""

    def run(*options: str) -> tuple[int, dict[str, Any]]:
        code = command.call("clear", "--key", key, "--redis-url", server.url, "--json", *options)
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else {"error": printed.err}

    return run


def fill_queue(client: redis.Redis, key: str) -> RequestQueue:
    """A queue with two waiting requests, one leased request and one dead letter."""
    queue = RequestQueue(client, key)
    queue.execute(Join("worker", "60", 0, True))
    pushed = tuple(QueueEntry(0, f"request {number}".encode()) for number in range(3))
    queue.execute(Sync("worker", 1, 1, pushes=pushed))
    client.zadd(queue.keys.dead_letters, {"letter": 0})
    return queue


def test_the_mark_of_another_scheduler(client: redis.Redis, key: str, server: Server) -> None:
    """The mark that scrapy-redis's scheduler leaves is deleted with the queue, even if nothing else is left of that."""
    client.hset(RequestQueue(client, f"{key}:queue").keys.audit, "shared", 1)
    named = ("--key", key, "--queue", f"{key}:queue", "--redis-url", server.url)
    assert command.call("clear", *named, "--with-queue", "--yes") == 0
    assert keys_of(client, key) == set()


def test_nothing_is_deleted_without_yes(client: redis.Redis, key: str, clear: Clear) -> None:
    """Without `--yes` the command lists the keys, deletes none and returns 1."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add_many(items(300))
    bloom.add_reference("shop:requests")
    before = {name: client.dump(name) for name in keys_at(client, key)}
    code, told = clear()
    assert (code, told["deleted"], told["key"]) == (1, False, key)
    (filter_,) = told["filters"]
    info = bloom.info()
    names = ("layers", "memory_bytes", "estimated_count")
    assert [filter_[name] for name in names] == [getattr(info, name) for name in names]
    assert (filter_["kind"], filter_["users"], filter_["unfinished"]) == ("filter", ["shop:requests"], None)
    assert [queue["key"] for queue in told["queues"]] == ["shop:requests"]
    assert {name: client.dump(name) for name in keys_at(client, key)} == before
    code, told = clear("--yes")
    assert (code, told["deleted"]) == (0, True)
    assert not keys_at(client, key)
    code, told = clear()
    assert (code, told["deleted"], told["filters"]) == (0, False, [])


OURS: dict[str, tuple[Callable[[redis.Redis, str], object], str]] = {
    "an unfinished filter": (
        lambda client, key: (BloomFilter(client, key, **SMALL), client.hset(key, "unfinished", "import")),
        "filter",
    ),
    "shards without a hash": (
        lambda client, key: (BloomFilter(client, key, **SMALL).add_many(items(300)), client.delete(key)),
        "shards",
    ),
    "a damaged filter": (
        lambda client, key: (BloomFilter(client, key, **SMALL).add("a"), client.hset(key, "filter", "{")),
        "unreadable filter",
    ),
    "a hash without parameters": (
        lambda client, key: (BloomFilter(client, key, **SMALL).add("a"), client.hdel(key, "filter")),
        "unreadable filter",
    ),
}


@pytest.mark.parametrize("occupant", OURS)
@pytest.mark.parametrize("place_of", [str, staging], ids=["key", "staging key"])
def test_what_is_ours_goes(
    client: redis.Redis, key: str, clear: Clear, occupant: str, place_of: Callable[[str], str]
) -> None:
    """All kinds of contents of ours are deleted, at the key and at an import's staging key."""
    put, kind = OURS[occupant]
    put(client, place_of(key))
    code, told = clear("--yes")
    assert code == 0
    assert [(each["key"], each["kind"]) for each in told["filters"]] == [(place_of(key), kind)]
    assert not keys_of(client, key)


@pytest.mark.parametrize("is_at_staging", [False, True])
def test_an_unfinished_import(client: redis.Redis, server: Server, key: str, clear: Clear, is_at_staging: bool) -> None:
    """The copy goes with the SET, or alone by the key of its hash; its shards are not counted twice."""
    members = fill(client, key, 20)
    set_import(client, key).run(copy_only=True)
    if is_at_staging:
        assert command.call("clear", "--key", staging(key), "--redis-url", server.url, "--yes") == 0
        assert keys_of(client, key) == {key}
        assert client.scard(key) == len(members) + 1
        return
    code, told = clear()
    assert [each["kind"] for each in told["filters"]] == ["set", "filter"]
    client.delete(key)
    code, told = clear("--yes")
    assert [each["key"] for each in told["filters"]] == [staging(key)]
    assert (code, keys_of(client, key)) == (0, set())


def test_a_crawl_after_an_unfinished_import(client: redis.Redis, server: Server, key: str) -> None:
    """The copy of a SET that is gone is deleted, but no shard of the filter that is at the key by now."""
    fill(client, key, 20)
    set_import(client, key).run(copy_only=True)
    client.delete(key)
    BloomFilter(client, key, **OPTIONS).add("a")
    assert command.call("clear", "--key", staging(key), "--redis-url", server.url, "--yes") == 0
    assert keys_of(client, key) == {key, f"{key}:0:0"}
    assert "a" in BloomFilter(client, key, **OPTIONS)


def test_a_set_of_fingerprints_goes(client: redis.Redis, key: str, clear: Clear) -> None:
    """A SET at the filter's key is deleted if it holds fingerprints; a SET beside it stays."""
    client.sadd(key, "a" * 40, "b" * 40)
    client.sadd(staging(key), "a" * 40)
    code, told = clear("--yes")
    assert (code, [each["kind"] for each in told["filters"]]) == (0, ["set"])
    assert keys_of(client, key) == {staging(key)}
    client.sadd(key, "news", "sports")
    assert clear("--yes")[0] == 2
    assert client.scard(key) == 2


STRANGERS: dict[str, Callable[[redis.Redis, str], object]] = {
    "users of somebody": lambda client, key: client.hset(key, mapping={"user:17": "alice", "user:18": "bob"}),
    "a field of ours among others": lambda client, key: client.hset(key, mapping={"filter": "on", "color": "red"}),
    "a filter of another kind": lambda client, key: client.hset(key, "filter", "on"),
    "a layer of another kind": lambda client, key: client.hset(key, "layer:0", "{}"),
}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_hash_that_may_not_be_ours_stays(client: redis.Redis, key: str, clear: Clear, stranger: str) -> None:
    """A key whose name looks like ours stays unless its contents are ours, too."""
    STRANGERS[stranger](client, key)
    before = client.dump(key)
    assert clear("--yes")[0] == 2
    assert client.dump(key) == before


def test_a_bitmap_stays(client: redis.Redis, key: str, clear: Clear) -> None:
    """Zeros where a shard would be are not taken for a shard."""
    client.setbit(f"{key}:0:0", 100_000, 1)
    assert clear("--yes")[0] == 0
    assert client.exists(f"{key}:0:0")


FOREIGN: dict[str, Callable[[redis.Redis, str], object]] = {
    "list": lambda client, key: client.rpush(key, "a"),
    "string": lambda client, key: client.set(key, "a"),
    "hash": lambda client, key: client.hset(key, "a", "b"),
    "zset": lambda client, key: client.zadd(key, {"a": 1}),
}


@pytest.mark.parametrize("place_of", [str, staging], ids=["key", "staging key"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_not_ours_stays(
    client: redis.Redis, key: str, clear: Clear, kind: str, place_of: Callable[[str], str]
) -> None:
    """A key of a foreign type is refused, and so are all other keys of the same run."""
    BloomFilter(client, key, **SMALL).add("a")
    if place_of is str:
        client.delete(key)
    FOREIGN[kind](client, place_of(key))
    before = {name: client.dump(name) for name in keys_of(client, key)}
    code, told = clear("--yes")
    assert code == 2
    assert f"holds a {kind} that is not a filter" in told["error"]
    assert {name: client.dump(name) for name in keys_of(client, key)} == before


def test_the_queue_goes_when_that_is_asked_for(client: redis.Redis, key: str, clear: Clear) -> None:
    """`--with-queue` deletes leases and dead letters, too; the dry run counts them."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add("a")
    queue = fill_queue(client, f"{key}:queue")
    code, told = clear("--queue", f"{key}:queue")
    content = {"key": f"{key}:queue", "waiting": 2, "leased": 1, "dead_letters": 1, "workers": 1}
    assert (code, told["queues"]) == (1, [{**content, "goes": False}])
    assert clear("--queue", f"{key}:queue", "--yes")[0] == 0
    assert queue.count() == 2
    code, told = clear("--queue", f"{key}:queue", "--with-queue")
    assert (code, told["queues"]) == (1, [{**content, "goes": True}])
    assert queue.count() == 2
    code, told = clear("--queue", f"{key}:queue", "--with-queue", "--yes")
    assert (code, told["deleted"]) == (0, True)
    assert not [*client.scan_iter(f"*{key}*", count=10_000)]


def test_other_queues(client: redis.Redis, key: str, clear: Clear) -> None:
    """A list queue is counted; other types, and a missing name, are refused."""
    client.rpush(f"{key}:queue", "a", "b")
    code, told = clear("--queue", f"{key}:queue", "--with-queue", "--yes")
    assert (code, told["queues"][0]["waiting"]) == (0, 2)
    client.set(f"{key}:queue", "a")
    code, told = clear("--queue", f"{key}:queue", "--with-queue", "--yes")
    assert code == 2
    assert "holds a string that is not a queue" in told["error"]
    code, told = clear("--with-queue", "--yes")
    assert code == 2
    assert "give --queue KEY" in told["error"]
    assert client.get(f"{key}:queue") == b"a"


def begin_anew(client: redis.Redis, key: str) -> None:
    """Another crawl makes a filter of its own."""
    client.delete(key, *keys_at(client, key))
    BloomFilter(client, key, **SMALL).add_many(items(300))


Change = Callable[[redis.Redis, str], object]

# The key's contents at the listing, and their replacement before the deletion.
REPLACED: dict[str, tuple[Change, Change]] = {
    "another filter": (begin_anew, begin_anew),
    "a string": (begin_anew, lambda client, key: client.set(key, "a")),
    "somebody's hash": (begin_anew, lambda client, key: (client.delete(key), client.hset(key, "a", "b"))),
    "a filter for an unreadable one": (OURS["a damaged filter"][0], begin_anew),
    "a filter for one without parameters": (OURS["a hash without parameters"][0], begin_anew),
    "parameters that were put back": (
        OURS["a hash without parameters"][0],
        lambda client, key: client.hset(key, "filter", "{}"),
    ),
    "a SET for a filter": (begin_anew, lambda client, key: (client.delete(key), client.sadd(key, "a" * 40))),
    "another SET": (
        lambda client, key: client.sadd(key, "a" * 40),
        lambda client, key: (client.delete(key), client.sadd(key, "news")),
    ),
}


@pytest.mark.parametrize("case", REPLACED)
def test_what_was_not_shown_stays(client: redis.Redis, key: str, case: str) -> None:
    """A key replaced since the listing stays, with its queue, and is named."""
    shown, change = REPLACED[case]
    shown(client, key)
    client.zadd(f"{key}:queue", {"request": 0})
    store = RedisStore(client)
    doomed = key_contents.plan_deletion(store, client, client, [key], queues=[], flushed=[f"{key}:queue"])
    change(client, key)
    before = {name: client.dump(name) for name in keys_at(client, key)}
    assert key_contents.execute_deletion(store, client, doomed, LEASE) == [key, f"{key}:queue"]
    assert {name: client.dump(name) for name in keys_at(client, key)} == before


def test_what_is_still_the_same_goes(client: redis.Redis, key: str) -> None:
    """Shards missing from the listing are deleted; keys already gone are no error."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add_many(items(300))
    BloomFilter(client, f"{key}:lost", **SMALL).add("a")
    for shard in (0, 1):
        client.copy(f"{key}:lost:0:0", f"{key}:{bloom.info().layers}:{shard}")
    client.delete(f"{key}:lost", f"{key}:lost:0:0")
    client.zadd(f"{key}:queue", {"request": 0})
    store = RedisStore(client)
    doomed = key_contents.plan_deletion(
        store, client, client, [key], queues=[], flushed=[f"{key}:queue", f"{key}:other"]
    )
    bloom.add_many(items(1000))
    client.zadd(f"{key}:other", {"a request that was not shown": 0})
    assert key_contents.execute_deletion(store, client, doomed, LEASE) == []
    assert key_contents.execute_deletion(store, client, doomed, LEASE) == []
    assert [as_text(name) for name in client.scan_iter(f"*{key}*", count=10_000)] == [f"{key}:other"]


def test_a_queue_that_was_not_shown_stays(client: redis.Redis, key: str) -> None:
    """A key with other contents than were listed stays."""
    client.zadd(key, {"request": 0})
    store = RedisStore(client)
    doomed = key_contents.plan_deletion(store, client, client, [f"{key}:filter"], queues=[], flushed=[key])
    client.delete(key)
    client.set(key, "a")
    assert key_contents.execute_deletion(store, client, doomed, LEASE) == [key]
    assert client.get(key) == b"a"


def test_a_queue_on_which_somebody_works_meanwhile_stays(client: redis.Redis, key: str) -> None:
    """A queue with workers that the listing did not have stays: a new crawl has begun."""
    queue = RequestQueue(client, key)
    queue.execute(Join("shown", "30", 0, is_new=True))
    client.zadd(key, {"request": 0})
    store = RedisStore(client)
    doomed = key_contents.plan_deletion(store, client, client, [f"{key}:filter"], queues=[], flushed=[key])
    queue.execute(Join("new", "30", 0, is_new=True))
    assert key_contents.execute_deletion(store, client, doomed, LEASE) == [key]
    assert queue.count() == 1
    doomed = key_contents.plan_deletion(store, client, client, [f"{key}:filter"], queues=[], flushed=[key])
    assert key_contents.execute_deletion(store, client, doomed, LEASE) == []
    assert not client.exists(key)


class BesideWorkers(RedisStore):
    """Lets two workers of a queue go on right before the hash of a filter is deleted, and keeps the replies."""

    def __init__(self, client: redis.Redis, queue: RequestQueue) -> None:
        super().__init__(client)
        self.queue = queue
        self.replies: list[Status] = []

    def execute(self, operations: Operations) -> Results:
        if any(isinstance(operation, DeleteHash) and operation.deletes for operation in operations):
            pushes = (QueueEntry(0, b"a new request"),)
            for operation in (Sync("worker", 2, 1, pushes=pushes), Join("another", "60", 0, is_new=True)):
                self.replies.append(self.queue.execute(operation).status)
        return super().execute(operations)


def test_no_request_is_queued_between_the_deletions(client: redis.Redis, key: str) -> None:
    """The queue goes first, and no worker joins it before the filter is deleted, which would call its requests seen."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add("a")
    queue = fill_queue(client, f"{key}:queue")
    store = BesideWorkers(client, queue)
    doomed = key_contents.plan_deletion(store, client, client, [key], queues=[], flushed=[f"{key}:queue"])
    assert key_contents.execute_deletion(store, client, doomed, LEASE) == []
    assert store.replies == [Status.EXPIRED, Status.WAIT]
    assert list(client.scan_iter(f"*{key}*")) == []
    assert queue.execute(Join("another", "60", 0, is_new=True)).status is Status.OK


class KilledStore(RedisStore):
    """Ends the process right before the hash of a filter is deleted."""

    def execute(self, operations: Operations) -> Results:
        if any(isinstance(operation, DeleteHash) and operation.deletes for operation in operations):
            raise KeyboardInterrupt
        return super().execute(operations)


def test_killed_between_the_deletions(client: redis.Redis, key: str) -> None:
    """The worker that takes over has to delete the filter, even if another queue uses it."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add("a")
    bloom.add_reference("another queue")
    queue = fill_queue(client, f"{key}:queue")
    store = KilledStore(client)
    doomed = key_contents.plan_deletion(store, client, client, [key], queues=[], flushed=[f"{key}:queue"])
    with pytest.raises(KeyboardInterrupt):
        key_contents.execute_deletion(store, client, doomed, LEASE)
    ((dead, value),) = (queue.execute(Heartbeat("next")).workers or {}).items()
    assert queue.execute(Requeue("next", dead, value, "60", 0)).status is Status.YOURS
    worker = QueueWorker("next", "60", 1)
    joining = worker.next_operation()
    assert isinstance(joining, Join)
    worker.receive_reply(joining, queue.execute(joining))
    assert worker.next_operation() == ClearFilter()


def test_a_filter_stays_with_its_queue(client: redis.Redis, key: str) -> None:
    """If a worker has joined the queue since the listing, its filter stays, too."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add("a")
    queue = fill_queue(client, f"{key}:queue")
    store = RedisStore(client)
    doomed = key_contents.plan_deletion(store, client, client, [key], queues=[], flushed=[f"{key}:queue"])
    queue.execute(Join("new", "30", 0, is_new=True))
    before = queue.count()
    assert key_contents.execute_deletion(store, client, doomed, LEASE) == [f"{key}:queue"]
    assert ("a" in bloom, queue.count()) == (True, before)


def test_exit_code_of_what_was_not_shown(
    client: redis.Redis, server: Server, key: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No kept key is listed as deleted, and the last line gives the reason."""
    look = key_contents.plan_deletion

    def look_and_begin_anew(*arguments: Any, **named: Any) -> DeletionPlan:
        doomed = look(*arguments, **named)
        begin_anew(client, key)
        return doomed

    begin_anew(client, key)
    monkeypatch.setattr(key_contents, "plan_deletion", look_and_begin_anew)
    assert command.call("clear", "--key", key, "--redis-url", server.url, "--yes") == 2
    said = capsys.readouterr()
    assert "a filter, " in said.out
    assert "deleted" not in said.out
    assert said.err.startswith(f"scrapy bloom: {key}: not deleted, because the data has changed since it was shown")
    assert all(BloomFilter(client, key, **SMALL).contains_many(items(300)))


def test_in_a_project(valkey: Server, key: str, tmp_path: Path) -> None:
    """The text names server, database, key and all keys to delete, and warns of workers."""
    cwd = command.make_project(
        tmp_path / "project",
        REDIS_URL=f"{valkey.url}/3",
        SCHEDULER_DUPEFILTER_KEY=key + ":%(spider)s",
        SCHEDULER_QUEUE_KEY=key + ":%(spider)s:queue",
    )
    with valkey.client(db=3) as client:
        bloom = BloomFilter(client, f"{key}:shop", **SMALL)
        bloom.add("a")
        bloom.add_reference(f"{key}:shop:queue")
        fill_queue(client, f"{key}:shop:queue")
        said = command.run("clear", "shop", cwd=cwd)
        assert said.returncode == 1
        assert said.stdout.splitlines() == [
            f"server: 127.0.0.1:{valkey.port}, database 3",
            f"key: {key}:shop: a filter, 1 layer, 320 bytes, about 1 request, used by the queues {key}:shop:queue",
            f"queue: {key}:shop:queue: kept; 2 pending requests, 1 leased, 1 dead letter, 1 worker",
            "warning: the empty filter does not know the 3 requests of the kept queue: a further link to such a page "
            "fetches it again; --with-queue deletes the requests, too",
            "warning: live workers would continue with an empty filter and fetch pages again; stop them first",
            "nothing was deleted: run it with --yes to delete this",
        ]
        said = command.run("clear", "shop", "--with-queue", "--yes", cwd=cwd)
        assert said.returncode == 0
        assert said.stdout.splitlines()[-2:] == [
            "warning: live workers continue with an empty filter and fetch pages again",
            "deleted",
        ]
        assert not [*client.scan_iter(f"*{key}*", count=10_000)]
