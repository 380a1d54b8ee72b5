"""`scrapy bloom doctor`: each fault is made on a real server, and reported with its remedy."""

import json
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools import waiting
from devtools.site import MadeUpLinks, serving
from scrapy_bloom import BloomFilter
from scrapy_bloom.queue.queue_keys import QueueKeys
from scrapy_bloom.transport.server_info import FILTER_COMMANDS, QUEUE_COMMANDS
from tests.support import command, crawling
from tests.support.servers import KINDS, Server, running

KEY, QUEUE = "shop:dupefilter", "shop:requests"


@pytest.fixture(params=KINDS)
def own(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A well-configured server of this test's own."""
    with running(request.param, "--appendonly", "yes") as server:
        yield server


@pytest.fixture
def mine(own: Server) -> Iterator[Any]:
    with own.client(decode_responses=True) as client:
        yield client


def examine(
    server: Server, capsys: pytest.CaptureFixture[str], *arguments: str, **settings: object
) -> tuple[int, dict[str, tuple[str, str, str]]]:
    """Return the exit code and the worst finding of each check."""
    place = ("--key", KEY, "--queue", QUEUE, "--redis-url", server.url, *arguments)
    code = command.call("doctor", *place, "--json", **settings)
    found = json.loads(capsys.readouterr().out)["findings"]
    order = ["ok", "advice", "loss"]
    by_weight = sorted(found, key=lambda finding: order.index(finding["level"]))
    return code, {each["check"]: (each["level"], each["text"], each["advice"]) for each in by_weight}


def test_nothing_wrong(own: Server, mine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A well-configured server has no findings, and the command writes nothing."""
    code, found = examine(own, capsys)
    assert code == 0
    assert {level for level, _, _ in found.values()} == {"ok"}
    assert not mine.keys()
    assert command.call("doctor", "--key", KEY, "--redis-url", own.url) == 0
    assert "No losses found." in capsys.readouterr().out


def test_server_settings(own: Server, mine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Memory limits, eviction and persistence are reported where they lose data."""
    mine.config_set("maxmemory", "4mb")
    mine.config_set("maxmemory-policy", "allkeys-lru")
    mine.config_set("appendonly", "no")
    code, found = examine(own, capsys, BLOOMFILTER_CAPACITY=10**7)
    assert code == 1
    assert found["eviction"][0] == found["persistence"][0] == "loss"
    assert "with the queue its pending requests are lost" in found["eviction"][1]
    assert found["memory"][0] == "advice"
    mine.config_set("maxmemory-policy", "volatile-lru")
    mine.config_set("save", "3600 1")
    code, found = examine(own, capsys, BLOOMFILTER_CAPACITY=10**7)
    assert (code, found["eviction"][0], found["persistence"][0]) == (0, "ok", "advice")
    code, found = examine(own, capsys, BLOOMFILTER_TTL=3600)
    assert (code, found["eviction"][0]) == (1, "loss")


def test_appendfsync(own: Server, mine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`appendfsync no` is reported; where CONFIG is denied, the check is unknown."""
    for policy, level in (("no", "advice"), ("everysec", "ok"), ("always", "ok")):
        mine.config_set("appendfsync", policy)
        code, found = examine(own, capsys)
        assert (code, found["persistence"][0]) == (0, level)
        assert f"appendfsync {policy}" in found["persistence"][1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_without_info(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without INFO the server's checks are unknown, and the others run."""
    with running(kind, "--appendonly", "yes", "--rename-command", "INFO", "") as server:
        code, found = examine(server, capsys)
    assert (code, found["server"][0]) == (0, "advice")
    assert "not checked" in found["server"][1]
    assert found["permissions"][0] == found["filter"][0] == "ok"


def test_replicas(own: Server, mine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A replica is reported, with its lag."""
    mine.config_set("repl-diskless-sync-delay", 0)
    with running("valkey", "--replicaof", f"127.0.0.1 {own.port}") as replica:
        waiting.until(lambda: mine.info().get("slave0", {}).get("state") == "online")
        code, found = examine(own, capsys)
        assert (code, found["replication"][0]) == (0, "ok")
        code, found = examine(replica, capsys)
        assert (code, found["replication"][0]) == (1, "loss")


@pytest.mark.parametrize("missing", ["bitfield", "hsetnx", "zpopmin", "time", "zadd", "hincrby", "hset"])
def test_permissions(missing: str, own: Server, mine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The suggested ACL rule is exactly the missing one; with it, permissions are complete."""
    allowed = {command.lower() for command in (*FILTER_COMMANDS, *QUEUE_COMMANDS)} - {missing}
    looking = ["+info", "+config|get", "+scan", "+object", "+memory"]
    keys = [f"~{KEY}", f"~{KEY}:*", f"~{QUEUE}", f"~{{{QUEUE}}}:*"]
    mine.execute_command(
        "ACL", "SETUSER", "worker", "on", ">secret", *keys, *looking, *(f"+{each}" for each in allowed)
    )
    url = own.url.replace("//", "//worker:secret@")
    place = ["--key", KEY, "--queue", QUEUE, "--redis-url", url]
    if missing != "time":  # without TIME no filter can be examined at all
        assert command.call("doctor", *place) == 1
        said = capsys.readouterr()
        assert f"ACL SETUSER worker +{missing}\n" in said.out
        assert "secret" not in said.out + said.err
    mine.execute_command("ACL", "SETUSER", "worker", f"+{missing}")
    assert command.call("doctor", *place) == 0
    assert not mine.keys()


@pytest.mark.parametrize("missing", ["bitfield_ro", "hsetnx"])
def test_unknown_command(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that the server does not have, as a managed or a compatible one may not, is named."""
    with running("redis", "--rename-command", missing, "") as server:
        assert command.call("doctor", "--key", KEY, "--queue", QUEUE, "--redis-url", server.url) == 1
        said = capsys.readouterr().out
        assert f"the server does not know {missing.upper()}\n" in said
        assert "use Redis 6.2 or newer, or Valkey" in said


def test_keys_without_permission(own: Server, mine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Denied keys are named by their patterns."""
    mine.execute_command("ACL", "SETUSER", "worker", "on", ">secret", f"~{KEY}", f"~{KEY}:*", "~*none*", "+@all")
    url = own.url.replace("//", "//worker:secret@")
    assert command.call("doctor", "--key", KEY, "--redis-url", url) == 0
    capsys.readouterr()
    assert command.call("doctor", "--key", KEY, "--queue", "none", "--redis-url", url) == 0
    mine.execute_command("ACL", "SETUSER", "worker", "resetkeys", f"~{QUEUE}", f"~{{{QUEUE}}}:*", f"~{KEY}")
    assert command.call("doctor", "--key", KEY, "--queue", QUEUE, "--redis-url", url) == 1
    assert f"ACL SETUSER worker ~{KEY} ~{KEY}:*" in capsys.readouterr().out


def test_filter(own: Server, mine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A SET at the filter's key, an overfull filter and an incomplete one are reported."""
    mine.sadd(KEY, "a")
    code, found = examine(own, capsys)
    assert (code, found["filter"][0]) == (1, "loss")
    assert "scrapy bloom import" in found["filter"][1]
    mine.delete(KEY)
    bloom = BloomFilter(mine, KEY, capacity=100, expansion=0)
    bloom.add_many([f"{number}" for number in range(300)])
    code, found = examine(own, capsys)
    assert (code, found["filter"][0]) == (1, "loss")
    assert "too full" in found["filter"][1]
    bloom.clear()
    BloomFilter(mine, KEY).add("a")
    assert examine(own, capsys)[1]["filter"][0] == "ok"
    mine.hset(KEY, "unfinished", "restore")
    code, found = examine(own, capsys)
    assert (code, "scrapy bloom restore" in found["filter"][1]) == (1, True)


def test_barely_too_full(own: Server, mine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A filter is too full exactly when its error rate exceeds the allowed one."""
    bloom = BloomFilter(mine, KEY, capacity=100, error_rate=0.01, expansion=0)
    bloom.add_many([f"{number}" for number in range(100)])
    assert bloom.info().estimated_error_rate <= 0.01
    assert examine(own, capsys)[1]["filter"][0] == "ok"
    number = 100
    while bloom.info().estimated_error_rate <= 0.01:
        bloom.add(f"{number}")
        number += 1
    assert bloom.info().estimated_error_rate < 0.015
    code, found = examine(own, capsys)
    assert (code, found["filter"][0]) == (1, "loss")


def test_queue(own: Server, mine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Dead letters, silent workers and orphaned leases are reported."""
    keys = QueueKeys(QUEUE)
    mine.hset(keys.workers, "worker-1", "60 7 1700000000000")
    mine.hset(keys.workers, "worker-2", f"60 7 {time.time() * 1000:.0f}")
    mine.zadd(keys.leases("worker-1"), {"a": 1})
    code, found = examine(own, capsys)
    assert (code, found["queue"][0]) == (0, "advice")
    assert "1 worker silent" in found["queue"][1]
    mine.zadd(keys.dead_letters, {"c": 1})
    mine.zadd(keys.leases("worker-3"), {"b": 1})
    code, found = examine(own, capsys)
    assert (code, found["queue"][0], found["leases"][0]) == (1, "loss", "advice")
    assert keys.leases("worker-3") in found["leases"][1]
    assert keys.leases("worker-1") not in found["leases"][1]


def test_serializers(own: Server, tmp_path: Path) -> None:
    """A serializer that is missing, or cannot read the waiting requests, is reported."""
    project = command.make_project(tmp_path, REDIS_URL=own.url)
    with own.client() as client:
        client.zadd(QUEUE, {pickle.dumps({"url": "https://example.com/"}): 0})
    pickles = ("scrapy_bloom.serializers.json", "the pending requests are pickles")
    for name, text in (("nosuch.module", "cannot be imported"), pickles):
        said = command.run("doctor", "shop", "-s", f"SCHEDULER_SERIALIZER={name}", cwd=project)
        assert (said.returncode, text in said.stdout) == (1, True), said.stdout
    assert command.run("doctor", "shop", cwd=project).returncode == 0


def test_keys_that_may_not_be_looked_at(own: Server, mine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The ACL rule is suggested even where reading is denied."""
    mine.execute_command("ACL", "SETUSER", "worker", "on", ">secret", "~other", "+@all")
    url = own.url.replace("//", "//worker:secret@")
    assert command.call("doctor", "--key", KEY, "--queue", QUEUE, "--redis-url", url) == 1
    assert f"ACL SETUSER worker ~{KEY} ~{KEY}:* ~{QUEUE} ~{{{QUEUE}}}:*" in capsys.readouterr().out


def test_undelivered(
    own: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dead worker's file of undelivered requests is found where the next worker looks for it."""
    (tmp_path / "undelivered-shop_requests-1.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    assert examine(own, capsys)[1]["undelivered requests"][0] == "advice"


@pytest.mark.crawl
def test_leftovers(own: Server, mine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The keys of a crawl killed under Scrapy's own scheduler are found."""
    with serving(MadeUpLinks(pages=5000, links=5)) as site:
        settings = {"SCHEDULER": crawling.OWN_SCHEDULER, "REDIS_URL": own.url}
        with crawling.crawling("killed", site.url + "/", tmp_path, **settings):
            waiting.until(lambda: len(mine.keys("dupefilter:*")) > 3)
    left = mine.keys("dupefilter:*")
    assert examine(own, capsys)[1]["leftover filters"][0] == "ok"
    code, found = examine(own, capsys, "--idle", "0")
    level, text, what_to_do = found["leftover filters"]
    assert (code, level) == (0, "advice")
    assert f"1 filter of crawls killed under Scrapy's own scheduler, {len(left)} keys" in text
    assert "scrapy bloom clear --yes --key KEY" in what_to_do


def test_a_filter_that_is_used_is_not_left_over(own: Server, mine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A filter is in use if one of its keys is, even if its sealed layers have been idle for long."""
    name = "dupefilter:1700000000-0123abcd"
    bloom = BloomFilter(mine, name, capacity=100)
    bloom.add_many([f"{number}" for number in range(200)])
    keys = sorted(mine.scan_iter("dupefilter:*"))
    assert len(keys) >= 3
    with own.client() as client:
        stored = {key: client.dump(key) for key in keys}
        for idle, expected in ((7200, "advice"), (60, "ok"), (5000, "advice")):
            # The most recently used key gives the idle time of the filter.
            for key, dump in stored.items():
                client.restore(key, 0, dump, replace=True, idletime=idle if key == keys[1] else 9000)
            code, found = examine(own, capsys)
            assert (code, found["leftover filters"][0]) == (0, expected)
        assert (
            f"1 filter of crawls killed under Scrapy's own scheduler, {len(keys)} keys"
            in (found["leftover filters"][1])
        )


def test_in_a_project(own: Server, tmp_path: Path) -> None:
    """Scrapy-redis's own classes are reported: with them a crawl would lose requests."""
    project = command.make_project(tmp_path / "ours", REDIS_URL=own.url)
    said = command.run("doctor", "shop", cwd=project)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "SCHEDULER_QUEUE_KEY" not in said.stdout
    theirs: dict[str, Any] = {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    }
    project = command.make_project(tmp_path / "theirs", REDIS_URL=own.url, **theirs)
    found = command.report("doctor", "shop", cwd=project)["findings"]
    assert {each["check"] for each in found if each["level"] == "loss"} == {"dupefilter", "scheduler"}


def test_other_parameters(own: Server, mine: Any, tmp_path: Path) -> None:
    """A stored filter whose parameters differ from the settings is reported: no worker would start."""
    BloomFilter(mine, KEY, capacity=5000, fingerprint="scrapy-redis")
    project = command.make_project(tmp_path, REDIS_URL=own.url)
    said = command.run("doctor", "shop", cwd=project)
    assert said.returncode == 1
    assert "capacity = 1000000 here, 5000 in the stored filter" in said.stdout


OTHERS = """
import scrapy

class Unshared(scrapy.Spider):
    name = "unshared"
    custom_settings = {"SCHEDULER": "scrapy.core.scheduler.Scheduler"}

class Keyed(scrapy.Spider):
    name = "keyed"
    custom_settings = {"SCHEDULER_QUEUE_KEY": "%(spider)s:requests"}
"""


def test_a_queue_of_several_spiders(valkey: Server, key: str, tmp_path: Path) -> None:
    """Spiders that share a queue key are named, and no others."""
    modules = ["project.spiders", "project.others"]
    project = command.make_project(
        tmp_path, REDIS_URL=valkey.url, SCHEDULER_QUEUE_KEY=f"{key}:all", SPIDER_MODULES=modules
    )
    (tmp_path / "project/others.py").write_text(OTHERS)
    told = command.report("doctor", "shop", cwd=project)["findings"]
    (finding,) = [each for each in told if "SCHEDULER_QUEUE_KEY" in each["text"]]
    assert (finding["check"], finding["level"]) == ("queue", "advice")
    assert f"{key}:all': other spiders (news) have the same queue" in finding["text"]
