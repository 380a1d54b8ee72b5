"""`scrapy bloom info`: filters and queues, for people and programs."""

import json
import re
from pathlib import Path
from typing import Any

import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.filter.parameters import FORMAT
from scrapy_bloom.queue.keys import QueueKeys
from tests.commands.conftest import Say
from tests.support import command
from tests.support.servers import Server


def register(client: redis.Redis, key: str, name: str, *, holds: int, contact: int) -> None:
    """Register a worker with a lease of a minute, whose last contact at this Unix time was a sync."""
    fields = [holds, 0, contact * 1000, contact * 1000, 60_000, 0]
    client.hset(QueueKeys(f"{key}:requests").workers, name, " ".join(map(str, fields)))


def fill(client: redis.Redis, key: str) -> BloomFilter:
    """Create a filter of two layers, a queue, and a worker with an old heartbeat."""
    bloom = BloomFilter(client, f"{key}:dupefilter", capacity=1000, error_rate=1e-12)
    bloom.add_many([f"{number}" for number in range(1500)])
    keys = QueueKeys(f"{key}:requests")
    client.zadd(keys.queue, {"a": 1, "b": 2})
    client.zadd(keys.dead_letters, {"c": 1})
    client.hset(keys.failed, "f", "1 0 x")
    client.hset(keys.crawl, mapping={"id": 1, "spider": "project.Shop", "filter": f"{key}:dupefilter", "waiting": 2})
    register(client, key, "worker-1", holds=3, contact=1_700_000_000)
    register(client, key, "worker-2", holds=0, contact=int(client.time()[0]))
    return bloom


def test_as_an_object(client: redis.Redis, key: str, say: Say) -> None:
    """The names are those of `FilterInfo`."""
    bloom = fill(client, key)
    before = client.hgetall(f"{key}:dupefilter")
    found, info = say("info", "--json", "--queue", f"{key}:requests", at=f"{key}:dupefilter").report, bloom.info()
    for name in ("capacity", "error_rate", "layers", "shards", "bits", "hashes", "memory_bytes", "count"):
        assert found[name] == getattr(info, name)
    assert [layer["capacity"] for layer in found["by_layer"]] == [1000, 2000]
    assert found["exists"]
    assert (found["count"], found["by_layer"][0]["created"]) == (1500, None)
    (queue,) = found["queues"]
    assert (queue["waiting"], queue["dead_letters"], queue["failed"], queue["has_losses"]) == (2, 1, 1, False)
    first, second = queue["workers"]
    assert (first["name"], first["holds"], first["lease"], first["spider"]) == ("worker-1", 3, 60.0, "project.Shop")
    assert first["silent"] > 10_000_000
    assert (second["holds"], second["silent"] < 60) == (0, True)
    assert client.hgetall(f"{key}:dupefilter") == before


def test_for_people(client: redis.Redis, key: str, say: Say) -> None:
    """Each layer has its fill, and each worker the time since its heartbeat."""
    fill(client, key)
    code, said, _ = say("info", "--queue", f"{key}:requests", at=f"{key}:dupefilter")
    assert code == 0
    assert re.search(r"^1 +100% +1,000 +1,000 ", said, re.MULTILINE)
    assert "holds         1,500 of 1,000 items" in said
    assert re.search(r"^worker-1 .* d ago .* d ago +3 +silent: other workers requeue", said, re.MULTILINE)
    assert "2 pending requests, 1 dead letter, 1 failed request kept for the next run" in said
    # A quarter of the shortest lease.
    assert "worker    last heartbeat (every 15 s)" in said


def test_nothing_there(client: redis.Redis, key: str, say: Say) -> None:
    """A missing filter is the answer "no"."""
    said = say("info", "--json")
    assert (said.code, said.report["exists"]) == (1, False)
    code, out, _ = say("info")
    assert (code, f"There is no filter at {key!r}" in out) == (1, True)
    assert not client.keys(f"{key}*")


def test_nothing_added(client: redis.Redis, key: str, say: Say) -> None:
    """A filter without a request is described by its memory, which its first worker has allocated, and not as empty."""
    assert "a" not in BloomFilter(client, key, capacity=1000)
    said = say("info")
    assert (said.code, "Nothing was added yet. The memory is that of the first layer" in said.out) == (0, True)
    assert "empty" not in said.out


def test_no_filter(client: redis.Redis, key: str, say: Say) -> None:
    """A filter of a newer format, a SET and a foreign hash are each reported by type."""
    newer: dict[Any, Any] = {"state": "1 0 0 0 0;", "secret": "s", "parameters": json.dumps({"format": FORMAT + 1})}
    client.hset(f"{key}:newer", mapping=newer)
    client.sadd(f"{key}:set", "a")
    client.hset(f"{key}:hash", "a", "b")
    for name, text in (("newer", "upgrade scrapy-bloom"), ("set", "scrapy bloom import"), ("hash", "not a filter")):
        code, _, err = say("info", at=f"{key}:{name}")
        assert (code, text in err) == (2, True)


def test_losses(client: redis.Redis, key: str, say: Say) -> None:
    """The loss of a queue with its requests is told at once."""
    fill(client, key)
    keys, place = QueueKeys(f"{key}:requests"), ("--queue", f"{key}:requests")
    client.delete(keys.queue)
    (queue,) = say("info", "--json", *place, at=f"{key}:dupefilter").report["queues"]
    assert (queue["lost"], queue["has_losses"]) == (2, True)
    client.hset(keys.crawl, mapping={"losses": 1, "lost": 7})
    assert "at least 9 requests LOST" in say("info", *place, at=f"{key}:dupefilter").out


def test_generations(client: redis.Redis, key: str, say: Say) -> None:
    """With a TTL, layers have times of creation, and lost shards are counted."""
    bloom = BloomFilter(client, key, capacity=1000, ttl=1000.0, cache_size=0)
    bloom.add("a")
    client.delete(*client.keys(f"{{{key}}}:*:1:*"))
    bloom.add("a")
    found = say("info", "--json").report
    assert (found["ttl"], found["is_new"], found["lost_shards"]) == (1000.0, False, 1)
    assert abs(client.time()[0] - found["by_layer"][0]["created"]) < 1000
    said = say("info").out
    assert "LOST          1 shard: their items are new again" in said


def test_in_a_project(valkey: Server, key: str, tmp_path: Path) -> None:
    """In a project the spider's name selects the filter and the queue."""
    project = command.make_project(tmp_path, REDIS_URL=valkey.url, SCHEDULER_DUPEFILTER_KEY=f"{key}:%(spider)s")
    with valkey.client() as client:
        BloomFilter(client, f"{key}:shop", capacity=5000).add("a")
    found = command.report("info", "shop", cwd=project)
    assert (found["key"], found["capacity"]) == (f"{key}:shop", 5000)
    assert [queue["key"] for queue in found["queues"]] == ["shop:requests"]
