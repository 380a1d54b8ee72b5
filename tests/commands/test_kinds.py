"""Every action of `scrapy bloom` that reads or writes data, over each kind of server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scrapy_bloom._format import as_text
from scrapy_bloom.queue.keys import QueueKeys
from tests.support import command
from tests.support.imports import fill
from tests.support.kinds import Place
from tests.support.selection import long_unless

KINDS = ["redis", "redis+cluster", "redis+sentinel"]


@pytest.mark.parametrize("kind", long_unless(lambda kind: kind != "redis+sentinel", KINDS))
def test_actions(kind: str, places: Callable[[str], Place], key: str, tmp_path: Path) -> None:
    """A SET becomes a filter, which is moved and deleted; requests are queued again, and forgotten."""
    place = places(kind)
    slot = f"{{{key}}}"  # queue and filter are in one
    at, name, queue, copy = ("--redis-url", place.url), f"{slot}:seen", f"{slot}:queue", f"{slot}:copy"
    client = place.client()

    def report(action: str, *arguments: str) -> dict[str, Any]:
        return command.report(action, *arguments, *at, cwd=tmp_path)

    try:
        fill(client, name, 2500)
        found = report("import", "--key", name)
        assert (found["members"], found["source"]) == (2500, f"{name}:set")
        found = report("info", "--key", name)
        assert (found["lost_shards"], found["count"]) == (0, 2500)
        (tmp_path / "lines").write_text("\n".join(map(as_text, client.srandmember(f"{name}:set", 3))))
        found = report("forget", "--key", name, "--from-file", "lines")
        assert (found["forgotten"], found["absent"]) == (3, 0)
        assert report("info", "--key", name)["forgotten"] == 3
        found = report("export", "--key", name, "file")
        assert (found["layers"], found["forgotten"], found["count"]) == (1, 3, 2500)
        restored = report("restore", "--key", copy, "file")
        assert (restored["count"], restored["forgotten"]) == (2500, 3)

        (tmp_path / "lines").write_text("https://example.com/1\n")
        assert report("import", "--key", copy, "--from-file", "lines")["added"] == 1
        client.zadd(QueueKeys(queue).dead_letters, {"a": 0, "b": 0})
        assert report("requeue", "--queue", queue, "--key", copy)["matching"] == 2
        assert set(client.zrange(queue, 0, -1)) == {b"a", b"b"}
        found = report("check", "--key", copy, "https://example.com/1")
        assert (found["requests"][0]["is_seen"], found["requests"][0]["places"][0]["is_lost"]) == (True, False)
        assert report("forget", "--key", copy, "https://example.com/1")["forgotten"] == 1
        assert report("check", "--key", copy, "https://example.com/1")["requests"][0]["is_forgotten"]

        assert report("clear", "--key", copy, "--queue", queue, "--with-queue", "--yes")["deleted"]
        assert report("clear", "--key", name, "--yes")["deleted"]
        left = {each for each in map(as_text, client.scan_iter(f"*{key}*")) if ":call:" not in each}
        assert left == {f"{name}:set"}
        client.delete(f"{name}:set")
    finally:
        client.close()
