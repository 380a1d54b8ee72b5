"""Every action of `scrapy bloom` that reads or writes data, over each kind of server."""

from collections.abc import Callable
from pathlib import Path

import pytest

from scrapy_bloom._format import as_text
from scrapy_bloom.queue.queue_keys import QueueKeys
from tests.support import command
from tests.support.imports import backup, fill, keys_of
from tests.support.kinds import Place
from tests.support.selection import long_unless
from tests.support.undelivered import entry, leave

KINDS = ["redis", "redis+cluster", "redis+sentinel"]


@pytest.mark.parametrize("kind", long_unless(lambda kind: kind != "redis+sentinel", KINDS))
def test_actions(kind: str, places: Callable[[str], Place], key: str, tmp_path: Path) -> None:
    """A SET becomes a filter, which is moved and deleted; requests are queued again, and forgotten."""
    place = places(kind)
    at, queue, copy = ("--redis-url", place.url), f"{key}:queue", f"{key}:copy"
    client = place.client()
    try:
        fill(client, key, 2500)
        found = command.report("import", "--key", key, "--wait", "0", *at, cwd=tmp_path)
        assert (found["checked"], found["is_finished"], found["source"]) == (2500, True, backup(key))
        found = command.report("info", "--key", key, *at, cwd=tmp_path)
        assert (found["lost_shards"], abs(found["estimated_count"] - 2500) < 500) == (0, True)
        (tmp_path / "lines").write_text("\n".join(map(as_text, client.srandmember(backup(key), 3))))
        found = command.report("forget", "--key", key, "--from-file", "lines", *at, cwd=tmp_path)
        assert (found["forgotten"], found["absent"]) == (3, 0)
        assert command.report("info", "--key", key, *at, cwd=tmp_path)["forgotten"] == 3
        found = command.report("export", "--key", key, "file", *at, cwd=tmp_path)
        assert (found["layers"], found["forgotten"]) == (1, 3)
        restored = command.report("restore", "--key", copy, "file", *at, cwd=tmp_path)
        assert (restored["granted"], restored["forgotten"]) == (found["granted"], 3)

        path = leave(tmp_path, queue, 1, 2)
        found = command.report("push", "--key", copy, *at, str(path), cwd=tmp_path)
        assert [each["queued"] for each in found["files"]] == [2]
        (letter,) = client.zrange(queue, 0, 0)
        client.zrem(queue, letter)
        client.zadd(QueueKeys(queue).dead_letters, {letter: 0})
        assert command.report("requeue", "--queue", queue, "--key", copy, *at, cwd=tmp_path)["matching"] == 1
        assert set(client.zrange(queue, 0, -1)) == {entry(number).member for number in (1, 2)}
        found = command.report("check", "--key", copy, *at, "https://example.com/1", cwd=tmp_path)
        assert (found["requests"][0]["is_seen"], found["requests"][0]["places"][0]["is_lost"]) == (True, False)
        found = command.report("forget", "--key", copy, *at, "https://example.com/1", cwd=tmp_path)
        assert found["forgotten"] == 1
        found = command.report("check", "--key", copy, *at, "https://example.com/1", cwd=tmp_path)
        assert found["requests"][0]["is_forgotten"]

        options = ("--key", copy, "--queue", queue, "--with-queue", "--yes")
        assert command.report("clear", *options, *at, cwd=tmp_path)["deleted"]
        assert command.report("clear", "--key", key, "--yes", *at, cwd=tmp_path)["deleted"]
        assert keys_of(client, key) == {as_text(backup(key))}
        client.delete(backup(key))
    finally:
        client.close()
