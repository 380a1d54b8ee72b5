"""The actions of `scrapy bloom` for a crawl with the filter on another server than the queue."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from scrapy import Request

from scrapy_bloom import BloomFilter, BloomScheduler
from tests.support import command, crawling
from tests.support.examining import OURS, examine, wrong
from tests.support.in_process import start
from tests.support.servers import Server, running

PASSWORD = "pa55-w0rd-of-the-test"  # noqa: S105  # of a server that lives as long as the test
FILTER, QUEUE = "shop:dupefilter", "shop:requests"
SMALL = {"BLOOMFILTER_CAPACITY": 1000}


class Pair(NamedTuple):
    """The queue's server, the filter's with a password, and a project with both."""

    queue: Server
    kept: Server
    settings: dict[str, Any]
    project: Path


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two servers and a project."""
    durable = ("--appendonly", "yes")
    with running("valkey", *durable) as queue, running("valkey", *durable, "--requirepass", PASSWORD) as kept:
        settings = {
            "REDIS_URL": queue.url,
            "BLOOMFILTER_REDIS_URL": kept.url,
            "BLOOMFILTER_REDIS_PARAMS": {"password": PASSWORD},
            "SCHEDULER_PERSIST": True,
            **SMALL,
        }
        yield Pair(queue, kept, settings, command.make_project(tmp_path / "project", **settings))


@pytest.fixture
def stopped(pair: Pair) -> Pair:
    """A crawl that has queued three requests and stopped."""
    crawler = start({"DUPEFILTER_CLASS": crawling.BLOOM, **pair.settings})
    scheduler = BloomScheduler.from_crawler(crawler)
    assert crawler.spider is not None
    scheduler.open(crawler.spider)
    for number in range(3):
        scheduler.enqueue_request(Request(f"https://shop.test/{number}"))
    scheduler.close("shutdown")
    return pair


def addresses(pair: Pair) -> tuple[str, str]:
    """The servers of filter and queue, as the reports have them."""
    return f"127.0.0.1:{pair.kept.port}, database 0", f"127.0.0.1:{pair.queue.port}, database 0"


def test_reports(stopped: Pair) -> None:
    """`info` and `check` find the filter on its server, and the requests in the queue on the other."""
    found = command.report("info", "shop", cwd=stopped.project)
    assert (found["server"], found["queue_server"]) == addresses(stopped)
    assert (found["estimated_count"], found["queues"][0]["waiting"]) == (3, 3)
    assert command.report("check", "shop", "https://shop.test/1", cwd=stopped.project)["all_seen"]


def test_one_server_for_both(stopped: Pair) -> None:
    """`--redis-url` replaces both servers; `-s` can still name another one for the filter."""
    found = command.run("info", "shop", "--redis-url", stopped.queue.url, "--json", cwd=stopped.project)
    assert '"exists": false' in found.stdout
    own = ("-s", f"BLOOMFILTER_REDIS_URL=redis://:{PASSWORD}@127.0.0.1:{stopped.kept.port}")
    found = command.run("info", "shop", "--redis-url", stopped.queue.url, *own, "--json", cwd=stopped.project)
    assert '"exists": true' in found.stdout


def test_moved(stopped: Pair, tmp_path: Path) -> None:
    """`export` and `restore` read and write on the filter's server."""
    file = str(tmp_path / "file")
    said = command.run("export", "shop", file, "--json", cwd=stopped.project)
    assert json.loads(said.stdout)["server"] == addresses(stopped)[0]
    assert f"3 unfetched requests of the queue {QUEUE!r}" in said.stderr
    assert command.report("restore", "--key", "elsewhere", file, cwd=stopped.project)["layers"] == 1
    with stopped.kept.client(password=PASSWORD) as client:
        assert client.exists("elsewhere")


def test_cleared(stopped: Pair) -> None:
    """`clear --with-queue` deletes the data of both."""
    found = command.report("clear", "shop", "--with-queue", "--yes", cwd=stopped.project)
    assert (found["server"], found["queue_server"], found["deleted"]) == (*addresses(stopped), True)
    for client in (stopped.queue.client(), stopped.kept.client(password=PASSWORD)):
        with client:
            assert client.keys("*shop*") == []


def test_pushed_and_requeued(stopped: Pair, tmp_path: Path) -> None:
    """`push` asks the filter on its server and queues on the other; `requeue` needs the queue's server only."""
    crawler = start({"DUPEFILTER_CLASS": crawling.BLOOM, "JOBDIR": str(tmp_path), **stopped.settings})
    scheduler = BloomScheduler.from_crawler(crawler)
    assert crawler.spider is not None
    scheduler.open(crawler.spider)
    stopped.queue.kill()
    for number in range(2, 5):
        scheduler.enqueue_request(Request(f"https://shop.test/{number}"))
    scheduler.close("shutdown")
    stopped.queue.start()
    (file,) = tmp_path.glob("undelivered-*.jsonl")
    (report,) = command.report("push", "shop", str(file), cwd=stopped.project)["files"]
    assert (report["queued"], report["repeats"]) == (2, 1)
    assert command.report("requeue", "shop", cwd=stopped.project)["dead_letters"] == 0


def test_import(pair: Pair) -> None:
    """A SET of the queue's server is refused with a way out, and imported there; one of the filter's is imported."""
    members = [f"{number:040x}" for number in range(50)]
    with pair.queue.client() as client:
        client.sadd(FILTER, *members)
        said = command.run("import", "shop", cwd=pair.project)
        assert said.returncode == 2
        assert f"the SET at {FILTER!r} is on the queue's server" in said.stderr
        ways = ("-s", "BLOOMFILTER_REDIS_URL=", "-s", "BLOOMFILTER_REDIS_PARAMS=")
        assert command.run("import", "shop", "--wait", "0", *ways, cwd=pair.project).returncode == 0
        assert client.hexists(FILTER, "filter")
    with pair.kept.client(password=PASSWORD) as client:
        client.sadd(FILTER, *members)
        assert command.report("import", "shop", "--wait", "0", cwd=pair.project)["added"] == 50
        assert client.hexists(FILTER, "filter")


def test_doctor(stopped: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    """`doctor` checks both servers, and names the one at fault."""
    settings = {**OURS, **stopped.settings, "BLOOMFILTER_REDIS_PARAMS": {"password": PASSWORD, "socket_timeout": 31}}
    code, found = examine(stopped.queue.url, capsys, "shop", **settings)
    assert (code, wrong(found)) == (0, {"timeouts": "advice"})
    assert "remove it from BLOOMFILTER_REDIS_PARAMS" in found["timeouts"][2]
    assert "on different servers" in found["slots"][1]
    for server, name in ((stopped.queue.client(), "queue"), (stopped.kept.client(password=PASSWORD), "filter")):
        with server as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
            client.config_set("maxmemory", 64_000_000)
            code, found = examine(stopped.queue.url, capsys, "shop", **settings)
            assert (code, found["eviction"][0]) == (1, "loss")
            assert found["eviction"][1].startswith(f"the {name}'s server: maxmemory-policy")
            client.config_set("maxmemory", 0)
    with stopped.kept.client(password=PASSWORD) as client:
        client.acl_setuser("default", enabled=True, commands=["-bitfield"], reset=False)
        code, found = examine(stopped.queue.url, capsys, "shop", **settings)
        assert (code, found["permissions"][0]) == (1, "loss")
        assert "on the filter's server" in found["permissions"][1]


def test_unreachable_server(stopped: Pair) -> None:
    """The error names the setting of the unreachable server."""
    stopped.kept.kill()
    said = command.run("info", "shop", cwd=stopped.project)
    assert "check BLOOMFILTER_REDIS_URL or --redis-url" in said.stderr
    stopped.kept.start()
    stopped.queue.kill()
    said = command.run("info", "shop", cwd=stopped.project)
    assert "check REDIS_URL or --redis-url" in said.stderr


def test_filter_of_a_plain_client(pair: Pair, key: str) -> None:
    """A filter of a program without Scrapy is found on the filter's server, too."""
    with pair.kept.client(password=PASSWORD) as client:
        BloomFilter(client, key).add("a")
        assert command.report("info", "--key", key, cwd=pair.project)["exists"]
