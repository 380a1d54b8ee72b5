"""`scrapy bloom push` and `requeue`: undelivered requests and dead letters."""

import signal
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import Request

from devtools import waiting
from devtools.proxy.link import Link, LinkProxy, forwarding
from scrapy_bloom import BloomRFPDupeFilter
from scrapy_bloom._format import as_text
from scrapy_bloom.queue.queue_keys import QueueKeys
from tests.support import command
from tests.support.scripts import calls
from tests.support.selection import valkey_first
from tests.support.servers import Server
from tests.support.undelivered import entry, leave


@pytest.fixture
def queue(key: str) -> str:
    return f"{key}:requests"


def place(server: Server | LinkProxy, key: str) -> list[str]:
    return ["--key", f"{key}:dupefilter", "--redis-url", server.url]


def test_push(server: Server, client: redis.Redis, key: str, queue: str, tmp_path: Path) -> None:
    """Each request is queued once, and the file is deleted."""
    path = leave(tmp_path, queue, 1, 2, 3)
    found = command.report("push", *place(server, key), str(path), cwd=tmp_path)
    assert found["files"] == [{"file": str(path), "queue": queue, "queued": 3, "repeats": 0}]
    assert set(client.zrange(queue, 0, -1)) == {entry(number).member for number in (1, 2, 3)}
    assert not path.exists()
    assert not client.exists(QueueKeys(queue).workers)
    assert client.hexists(f"{key}:dupefilter", f"user:{queue}")


@pytest.mark.parametrize(("is_unsure", "queued"), [(True, 1), (False, 0)], ids=["from that worker", "from another"])
def test_push_of_what_the_filter_knows(
    is_unsure: bool, queued: int, valkey: Server, key: str, tmp_path: Path, *, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request that the dead worker may have added itself is queued; others are repeats."""
    queue = f"{key}:requests"
    path = leave(tmp_path, queue, 1, are_unsure=is_unsure)
    with valkey.client() as client:
        dupefilter = BloomRFPDupeFilter(client, f"{key}:dupefilter")
        assert not dupefilter.request_seen(Request("https://example.com/1"))
        assert command.call("push", *place(valkey, key), str(path)) == 0
        said = capsys.readouterr().out
        assert f"queued {queued} request" in said
        assert f"{1 - queued} repeat" in said
        assert client.zcard(queue) == queued


def test_push_in_a_project(server: Server, client: redis.Redis, key: str, tmp_path: Path) -> None:
    """In a project the spider selects the queue; a file of another queue is refused."""
    names = {"SCHEDULER_QUEUE_KEY": f"{key}:%(spider)s", "SCHEDULER_DUPEFILTER_KEY": f"{key}:%(spider)s:dupefilter"}
    project = command.make_project(tmp_path, REDIS_URL=server.url, **names)
    path = leave(tmp_path, f"{key}:shop", 1)
    said = command.run("push", "news", str(path), cwd=project)
    assert said.returncode == 2
    assert f"has requests of the queue '{key}:shop', not of '{key}:news'" in said.stderr
    assert command.run("push", "shop", path.name, cwd=project).returncode == 0
    assert client.zcard(f"{key}:shop") == 1


@valkey_first
def test_killed_push(server: Server, client: redis.Redis, key: str, queue: str, tmp_path: Path) -> None:
    """A killed push can be run again: no request is lost or queued twice."""
    numbers = range(3000)
    path = leave(tmp_path, queue, *numbers)
    with forwarding(server.port) as link, command.start("push", *place(link, key), str(path), cwd=tmp_path) as process:
        # Slow enough to be killed.
        link.link = Link(rate=400_000)
        waiting.until(lambda: client.zcard(queue))
        process.send_signal(signal.SIGKILL)
    assert path.exists()
    assert client.zcard(queue) < len(numbers)
    assert command.call("push", *place(server, key), str(path), BLOOMFILTER_LEASE=0.1) == 0
    (dead,) = client.hkeys(QueueKeys(queue).workers)
    held = client.zrange(QueueKeys(queue).leases(as_text(dead)), 0, -1)
    assert {*client.zrange(queue, 0, -1), *held} == {entry(number).member for number in numbers}


@pytest.mark.parametrize(
    ("content", "text"),
    [("", "names no queue"), ('{"format": 1}\n', "names no queue"), ("[]\n", "names no queue"), (None, "No such file")],
)
def test_push_of_another_file(
    content: str | None, text: str, valkey: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that no worker has written is refused by its name."""
    path = tmp_path / "undelivered.jsonl"
    if content is not None:
        path.write_text(content)
    assert command.call("push", *place(valkey, tmp_path.name), str(path)) == 2
    said = capsys.readouterr().err
    assert text in said
    assert str(path) in said


def test_push_of_an_untrusted_file(
    valkey: Server, key: str, queue: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that other users could have written is refused and stays."""
    path = leave(tmp_path, queue, 1)
    path.chmod(0o666)
    assert command.call("push", *place(valkey, key), str(path)) == 2
    said = capsys.readouterr().err
    assert "is writable by other users" in said
    assert "was not deleted" in said


def test_requeue(server: Server, client: redis.Redis, key: str, queue: str, tmp_path: Path) -> None:
    """Dead letters, all or the matching ones, are requeued; a dry run counts them."""
    keys = QueueKeys(queue)
    client.zadd(keys.dead_letters, {entry(number).member: number for number in range(250)})
    options = ["--queue", queue, *place(server, key)]
    found = command.report("requeue", *options, "--match", "example.com/24", "--dry-run", cwd=tmp_path)
    assert (found["dead_letters"], found["matching"], client.zcard(queue)) == (250, 11, 0)
    assert command.call("requeue", *options, "--match", "example.com/24") == 0
    assert (client.zcard(queue), client.zcard(keys.dead_letters)) == (11, 239)
    assert client.zscore(queue, entry(24).member) == 24
    assert command.call("requeue", *options) == 0
    assert (client.zcard(queue), client.zcard(keys.dead_letters)) == (250, 0)
    assert not client.exists(keys.workers)


def test_requeue_that_was_taken_for_dead(
    valkey: Server, key: str, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A requeue that workers take for dead does not report its requests as queued."""
    keys = QueueKeys(queue)

    class Suspected(redis.Redis):
        """A client whose worker is removed before it moves a request."""

        def execute_command(self, *args: Any, **options: Any) -> Any:
            if calls(args, "scrapy_bloom.queue", "registration", "redrive"):
                assert super().execute_command("DEL", keys.workers)  # type: ignore[no-untyped-call]  # as the parent's
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # as the parent's

    with valkey.client() as client:
        client.zadd(keys.dead_letters, {f"{number}": 0 for number in range(3)})
        options = ["--queue", queue, *place(valkey, key)]
        assert command.call("requeue", *options, REDIS_PARAMS={"redis_cls": Suspected}) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert "BLOOMFILTER_LEASE, and counts as a dead worker: run it again" in said.err
        assert (client.zcard(queue), client.zcard(keys.dead_letters)) == (0, 3)


def test_requeue_in_a_project(server: Server, client: redis.Redis, key: str, tmp_path: Path) -> None:
    """In a project the spider selects the queue; outside, the queue is required."""
    project = command.make_project(tmp_path, REDIS_URL=server.url, SCHEDULER_QUEUE_KEY=f"{key}:%(spider)s")
    client.zadd(QueueKeys(f"{key}:shop").dead_letters, {"a": 1})
    assert command.report("requeue", "shop", cwd=project)["matching"] == 1
    assert client.zcard(f"{key}:shop") == 1
    assert command.call("requeue", *place(server, key)) == 2


def test_queue_that_is_closed(
    valkey: Server, key: str, queue: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the last worker of a crawl clears the queue, a push adds no request."""
    path = leave(tmp_path, queue, 1)
    with valkey.client() as client:
        client.hset(QueueKeys(queue).workers, "last", "60 7 3 closing")
        client.zadd(QueueKeys(queue).dead_letters, {"a": 1})
        assert command.call("push", *place(valkey, key), str(path)) == 2
        assert command.call("requeue", "--queue", queue, *place(valkey, key)) == 2
        assert capsys.readouterr().err.count("run it again") == 2
        assert path.exists()
        assert client.zcard(QueueKeys(queue).dead_letters) == 1
