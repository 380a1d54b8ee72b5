"""`scrapy bloom info`: filters and queues, for people, programs and Prometheus."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli.info import METRICS
from scrapy_bloom.filter.parameters import FORMAT
from scrapy_bloom.queue.keys import QueueKeys
from tests.commands.conftest import Say
from tests.support import command
from tests.support.servers import Server

ROOT = Path(__file__).parents[2]


def register(client: redis.Redis, key: str, name: str, *, holds: int, contact: int) -> None:
    """Register a worker with a lease of a minute and a last contact at this Unix time."""
    fields = [1, holds, 0, 1, 1, 0, contact * 1_000_000, 60_000_000, 1, 1, 0, 0, 0]
    client.hset(QueueKeys(f"{key}:requests").crawl, f"@{name}", " ".join(map(str, fields)) + " ")


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
    """The names are those of `FilterInfo`; the queue is named beside it."""
    bloom = fill(client, key)
    before = client.hgetall(f"{key}:dupefilter")
    found, info = say("info", "--json", "--queue", f"{key}:requests", at=f"{key}:dupefilter").report, bloom.info()
    for name in ("capacity", "error_rate", "layers", "shards", "bits", "hashes", "memory_bytes", "count"):
        assert found[name] == getattr(info, name)
    assert [layer["capacity"] for layer in found["by_layer"]] == [1000, 2000]
    assert (found["unfinished"], found["exists"]) == (None, True)
    assert (found["count"], found["age"], found["by_layer"][0]["created"]) == (1500, None, None)
    (queue,) = found["queues"]
    assert (queue["waiting"], queue["dead_letters"], queue["failed"], queue["has_losses"]) == (2, 1, 1, False)
    first, second = queue["workers"]
    assert (first["name"], first["holds"], first["lease"], first["spider"]) == ("worker-1", 3, 60.0, "project.Shop")
    assert first["silent"] > 10_000_000
    assert (second["holds"], second["silent"] < 60) == (0, True)
    assert client.hgetall(f"{key}:dupefilter") == before


def test_for_people(client: redis.Redis, key: str, say: Say) -> None:
    """Each layer has a bar, and each worker the time since its heartbeat."""
    fill(client, key)
    code, said, _ = say("info", "--queue", f"{key}:requests", at=f"{key}:dupefilter")
    assert code == 0
    assert re.search(r"^1 +\[#{20}\] ", said, re.MULTILINE)
    assert "holds         1,500 of 1,000 requests" in said
    assert re.search(r"^worker-1 .* d ago +3 +silent: other workers requeue", said, re.MULTILINE)
    assert "2 pending requests, 1 dead letter, 1 failed request kept for the next run" in said
    # A quarter of the shortest lease.
    assert "worker    last heartbeat (every 15 s)" in said


def test_prometheus_client_is_optional(
    client: redis.Redis, key: str, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only `--prometheus` needs the library, and is refused without it."""
    fill(client, key)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    place = f"{key}:dupefilter"
    assert say("info", at=place).code == 0
    code, _, err = say("info", "--prometheus", at=place)
    assert (code, "pip install 'scrapy-bloom[prometheus]'" in err) == (2, True)


def test_prometheus(client: redis.Redis, key: str, say: Say) -> None:
    """The metrics are those of the dashboard, labelled with the filter's key.

    Each has a distinct value here, so that none can stand for another.
    """
    info, keys = fill(client, key).info(), QueueKeys(f"{key}:requests")
    client.zadd(keys.queue, dict.fromkeys("123", 0))
    client.zadd(keys.dead_letters, dict.fromkeys("12345678", 0))
    client.hset(keys.failed, mapping=dict.fromkeys("123456", "1 0 x"))
    register(client, key, "worker-2", holds=8, contact=int(client.time()[0]))
    for name in ("worker-3", "worker-4"):
        register(client, key, name, holds=0, contact=1_700_000_000)
    of_queue = "--queue", keys.queue
    families = list(text_string_to_metric_families(say("info", "--prometheus", *of_queue, at=f"{key}:dupefilter").out))
    assert {sample.labels["filter"] for family in families for sample in family.samples} == {f"{key}:dupefilter"}
    values = {family.name: family.samples[0].value for family in families}
    assert values == {
        "scrapy_bloom_exists": 1,
        "scrapy_bloom_layers": 2,
        "scrapy_bloom_queue_silent_workers": 3,
        "scrapy_bloom_queue_workers": 4,
        "scrapy_bloom_queue_waiting": 5,
        "scrapy_bloom_queue_leased": 11,
        "scrapy_bloom_queue_failed": 7,
        "scrapy_bloom_queue_dead_letters": 9,
        "scrapy_bloom_capacity": 1000,
        "scrapy_bloom_error_rate": 1e-12,
        "scrapy_bloom_count": 1500,
        "scrapy_bloom_current_error_rate": info.current_error_rate,
        "scrapy_bloom_fill_ratio": info.fill_ratio,
        "scrapy_bloom_memory_bytes": info.memory_bytes,
    }
    assert len({*values.values()}) == len(values)
    assert {f"scrapy_bloom_{name}" for name in METRICS} == {*values}
    assert set(re.findall(r"scrapy_bloom_\w+", (ROOT / "docs/grafana.json").read_text())) == {*values}


def test_nothing_there(client: redis.Redis, key: str, say: Say) -> None:
    """A missing filter is the answer "no"."""
    said = say("info", "--json")
    assert (said.code, said.report["exists"]) == (1, False)
    code, out, _ = say("info", "--prometheus")
    assert (code, f'scrapy_bloom_exists{{filter="{key}"}} 0.0' in out) == (0, True)
    code, out, _ = say("info")
    assert (code, f"There is no filter at {key!r}" in out) == (1, True)
    assert not client.keys(f"{key}*")


def test_nothing_added(client: redis.Redis, key: str, say: Say) -> None:
    """A filter without a request is described by its memory, which its first worker has allocated, and not as empty."""
    assert "a" not in BloomFilter(client, key, capacity=1000)
    said = say("info")
    assert (said.code, "No request was added yet. The memory is that of the first layer" in said.out) == (0, True)
    assert "empty" not in said.out


def test_no_filter(client: redis.Redis, key: str, say: Say) -> None:
    """A filter of a newer format, a SET and a foreign hash are each reported by type."""
    newer: dict[Any, Any] = {"id": "1", "secret": "s", "parameters": json.dumps({"format": FORMAT + 1})}
    client.hset(f"{key}:newer", mapping=newer)
    client.sadd(f"{key}:set", "a")
    client.hset(f"{key}:hash", "a", "b")
    for name, text in (("newer", "upgrade scrapy-bloom"), ("set", "scrapy bloom import"), ("hash", "not a filter")):
        code, _, err = say("info", at=f"{key}:{name}")
        assert (code, text in err) == (2, True)


def test_losses(client: redis.Redis, key: str, say: Say) -> None:
    """The loss of a queue with its requests, or of some of them, is told at once."""
    fill(client, key)
    keys, place, at = QueueKeys(f"{key}:requests"), f"{key}:dupefilter", ("--queue", f"{key}:requests")
    client.zrem(keys.queue, "a")
    (queue,) = say("info", "--json", *at, at=place).report["queues"]
    assert (queue["lost"], queue["has_losses"]) == (1, True)
    client.delete(keys.queue)
    client.hset(keys.crawl, mapping={"losses": 1, "lost": 5})
    (queue,) = say("info", "--json", *at, at=place).report["queues"]
    assert (queue["lost"], queue["has_losses"]) == (7, True)
    assert "7 or more requests LOST" in say("info", *at, at=place).out


def test_generations(client: redis.Redis, key: str, say: Say) -> None:
    """With a TTL, layers have ages, and lost shards are counted."""
    bloom = BloomFilter(client, key, capacity=1000, ttl=1000.0, cache_size=0)
    bloom.add("a")
    client.delete(*client.keys(f"{{{key}}}:*:1:*"))
    bloom.add("a")
    found = say("info", "--json").report
    assert (found["ttl"], found["is_new"], found["lost_shards"]) == (1000.0, False, 1)
    assert 0 <= found["age"] == found["by_layer"][0]["age"] < 1000
    said = say("info").out
    assert "LOST          1 shard: their pages are fetched again" in said
    assert "memory    age" in said


def test_in_a_project(valkey: Server, key: str, tmp_path: Path) -> None:
    """In a project the spider's name selects the filter and the queue."""
    project = command.make_project(tmp_path, REDIS_URL=valkey.url, SCHEDULER_DUPEFILTER_KEY=f"{key}:%(spider)s")
    with valkey.client() as client:
        BloomFilter(client, f"{key}:shop", capacity=5000).add("a")
    found = command.report("info", "shop", cwd=project)
    assert (found["key"], found["capacity"]) == (f"{key}:shop", 5000)
    assert [queue["key"] for queue in found["queues"]] == ["shop:requests"]
