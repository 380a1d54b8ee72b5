"""`scrapy bloom requeue`: dead letters and kept failed requests, beside running workers."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.queue.inspection import inspect
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.messages import Offer, Outcome
from tests.commands.conftest import Say
from tests.support import command
from tests.support.imports import each_moment
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


def test_dead_letters(client: redis.Redis, key: str, requeue: Requeue) -> None:
    """All of them, or those with a text in their bytes, wait again with their score; a dry run moves none."""
    worker = LiveWorker(client, key, filter_of(key))
    client.zadd(worker.queue.keys.dead_letters, LETTERS)
    client.hset(worker.queue.keys.deaths, b"request /shop/1", 5)
    report = {"queue": key, "dead_letters": 2, "failed": 0, "matching": 1, "dry_run": True}
    assert requeue("--match", "/shop/", "--dry-run") == (0, report)
    assert client.zcard(key) == 0
    assert requeue("--match", "/shop/") == (0, {**report, "dry_run": False})
    assert client.zrange(key, 0, -1, withscores=True) == [(b"request /shop/1", 3.0)]
    # Its next death is its first one.
    assert not client.exists(worker.queue.keys.deaths)
    assert requeue()[1]["matching"] == 1
    assert (client.zcard(key), client.exists(worker.queue.keys.dead_letters)) == (2, 0)
    assert [entry.member for entry in worker.take(2)] == [b"request /news/2", b"request /shop/1"]
    assert not inspect(client, key).has_losses


def test_a_dry_run(client: redis.Redis, key: str, say: Say) -> None:
    """A dry run shows the URLs of the first 20 requests, and moves none."""
    letters = {f'{{"url": "https://example.com/{number}"}}': 0 for number in range(30)}
    client.zadd(QueueKeys(key).dead_letters, letters)
    said = say("requeue", "--queue", key, "--dry-run", at=filter_of(key))
    assert (said.code, said.out) == (0, f"would requeue 30 of 30 dead letters of {key}\n")
    assert len([line for line in said.err.splitlines() if "https://example.com/" in line]) == 20
    assert client.zcard(key) == 0


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
    letter = (b"", b"letter")
    assert worker.queue.requeue("", [letter]) == 1
    (entry,) = worker.take()
    worker.end(entry.member)
    assert worker.queue.requeue("", [letter]) == 0
    assert client.zcard(key) == 0
    assert worker.queue.requeue("another filter", [letter]) == -1


def test_a_filter_that_is_replaced_at_any_moment(client: redis.Redis, key: str, say: Say) -> None:
    """A filter that was replaced before it has the pages is an error, and no request is moved."""
    refused = 0
    for moment in each_moment():
        name = f"{key}:{moment.at}"
        failed_crawl(client, name)
        replace = partial(BloomFilter, client, filter_of(name), flush=True, capacity=7)
        code, _, err = say("requeue", "--failed", "--queue", name, at=filter_of(name), kind=moment.act(replace))
        refused += code == 2
        assert ("was replaced meanwhile: run it again" in err) == (code == 2)
        assert inspect(client, name).failed == (2 if code else 0)
    assert refused


def test_refused(client: redis.Redis, key: str, say: Say) -> None:
    """Without a queue, and with other data at its key, nothing is moved."""
    code, _, err = say("requeue")
    assert (code, "give the name of a spider of the project, or --queue KEY" in err) == (2, True)
    client.set(key, "a")
    code, _, err = say("requeue", "--queue", key)
    assert (code, "holds a string that is not a queue" in err) == (2, True)
    BloomFilter(client, f"{key}:filter")
    assert say("requeue", "--queue", f"{key}:filter", at=f"{key}:filter").code == 2
