"""`scrapy bloom requeue`: dead letters and kept failed requests, beside running workers."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli import requeue as action
from scrapy_bloom.queue.inspection import inspect
from scrapy_bloom.queue.values import Offer, Outcome
from tests.commands.conftest import Say
from tests.support import command
from tests.support.live_worker import LiveWorker

Requeue = Callable[..., tuple[int, dict[str, Any]]]
LETTERS = {b"request /shop/1": 3.0, b"request /news/2": 1.0}


@pytest.fixture
def requeue(url: str, key: str, capsys: pytest.CaptureFixture[str]) -> Requeue:
    """Run the action with `--json` and return its exit code and output."""

    def run(*options: str) -> tuple[int, dict[str, Any]]:
        code = command.call("requeue", "--queue", key, "--redis-url", url, "--json", *options)
        return code, json.loads(capsys.readouterr().out)

    return run


def filter_of(key: str) -> str:
    return f"{{{key}}}:dupefilter"


def failed_crawl(client: redis.Redis, key: str) -> LiveWorker:
    """A worker with two failed requests."""
    worker = LiveWorker(client, key, filter_of(key))
    worker.push(b"request /shop/1", b"request /news/2")
    for entry in worker.take(2):
        worker.end(entry.member, Outcome.FAILED)
    return worker


def test_dead_letters(
    client: redis.Redis, url: str, key: str, requeue: Requeue, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them, or those with a text in their bytes, wait again with their score; a dry run moves none."""
    worker = LiveWorker(client, key, filter_of(key))
    client.zadd(worker.queue.keys.dead_letters, LETTERS)
    client.hset(worker.queue.keys.deliveries, b"request /shop/1", 5)
    report = {"queue": key, "dead_letters": 2, "failed": 0, "matching": 1, "dry_run": True}
    assert requeue("--match", "/shop/", "--dry-run") == (0, report)
    assert client.zcard(key) == 0
    assert command.call("requeue", "--queue", key, "--redis-url", url, "--dry-run") == 0
    assert "scrapy bloom: no URL (15 bytes)" in capsys.readouterr().err
    assert requeue("--match", "/shop/") == (0, {**report, "dry_run": False})
    assert client.zrange(key, 0, -1, withscores=True) == [(b"request /shop/1", 3.0)]
    # Its next death is its first one.
    assert not client.exists(worker.queue.keys.deliveries)
    assert requeue()[1]["matching"] == 1
    assert (client.zcard(key), client.exists(worker.queue.keys.dead_letters)) == (2, 0)
    assert [entry.member for entry in worker.take(2)] == [b"request /news/2", b"request /shop/1"]
    assert not inspect(client, key).has_losses


def test_after_the_crawl(client: redis.Redis, key: str, requeue: Requeue) -> None:
    """Dead letters outlive the crawl, and the next worker takes the requeued ones."""
    worker = LiveWorker(client, key, filter_of(key))
    client.zadd(worker.queue.keys.dead_letters, LETTERS)
    worker.leave("finished")
    assert not client.exists(worker.queue.keys.crawl)
    assert requeue()[1]["matching"] == 2
    following = LiveWorker(client, key, filter_of(key), "next")
    assert len(following.take(2)) == 2
    assert not inspect(client, key).has_losses


def test_failed_requests(client: redis.Redis, key: str, requeue: Requeue) -> None:
    """With `--failed`, the requests that are kept for the next run wait in this one; dead letters stay."""
    worker = failed_crawl(client, key)
    client.zadd(worker.queue.keys.dead_letters, {"letter": 0})
    report = {"queue": key, "dead_letters": 1, "failed": 2, "matching": 2, "dry_run": False}
    assert requeue("--failed") == (0, report)
    state = inspect(client, key)
    assert (state.waiting, state.failed, state.dead_letters) == (2, 0, 1)
    assert len(worker.take(2)) == 2
    assert requeue("--failed")[1]["matching"] == 0


def test_failed_requests_and_a_new_filter(client: redis.Redis, key: str, requeue: Requeue) -> None:
    """A link to a requeued page is a repeat, even in a filter that did not know the page."""
    worker = failed_crawl(client, key)
    client.delete(filter_of(key))
    worker.call(1)
    worker.join()
    assert requeue("--failed")[1]["matching"] == 2
    worker.worker.offer(Offer(0.0, b"a link to it", b"request /shop/1"))
    worker.call()
    assert client.zcard(key) == 2


def test_a_loss(client: redis.Redis, key: str, requeue: Requeue) -> None:
    """Requeued requests that Redis loses are counted as lost."""
    failed_crawl(client, key)
    requeue("--failed")
    client.delete(key)
    assert inspect(client, key).lost == 2


def test_moved_meanwhile(client: redis.Redis, key: str) -> None:
    """A request that another action has moved is not queued twice, and an acknowledged one stays so."""
    worker = LiveWorker(client, key, filter_of(key))
    client.zadd(worker.queue.keys.dead_letters, {"letter": 0})
    arguments: list[str | bytes | int] = ["", "", b"", b"letter"]
    keys = worker.queue.keys.of_scripts(filter_of(key))
    assert action._REQUEUE.call(client, keys, arguments) == 1
    (entry,) = worker.take()
    worker.end(entry.member)
    assert action._REQUEUE.call(client, keys, arguments) == 0
    assert client.zcard(key) == 0
    assert action._REQUEUE.call(client, keys, ["", "another filter", *arguments[2:]]) == -1


def test_refused(client: redis.Redis, key: str, say: Say) -> None:
    """Without a queue, and with other data at its key, nothing is moved."""
    code, _, err = say("requeue")
    assert (code, "give the name of a spider of the project, or --queue KEY" in err) == (2, True)
    client.set(key, "a")
    code, _, err = say("requeue", "--queue", key)
    assert (code, "holds a string that is not a queue" in err) == (2, True)
    BloomFilter(client, f"{key}:filter")
    assert say("requeue", "--queue", f"{key}:filter", at=f"{key}:filter").code == 2
