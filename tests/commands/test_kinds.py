"""Every action of `scrapy bloom` that reads or writes data, on a cluster and behind Sentinels."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scrapy_bloom import BloomFilter
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.text import as_text
from tests.support import command
from tests.support.imports import fill
from tests.support.kinds import Place
from tests.support.selection import long_unless

Places = Callable[[str], Place]
# Each action has its own tests on a single server.
KINDS = ["redis+cluster", "redis+sentinel"]


@pytest.mark.parametrize("kind", long_unless(lambda kind: kind != "redis+sentinel", KINDS))
def test_actions(kind: str, places: Places, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A SET becomes a filter, which is moved and deleted; requests are queued again, and forgotten.

    The clients of a cluster decode replies, as a user's settings may have it.
    """
    place = places(kind)
    slot = f"{{{key}}}"  # queue and filter are in one
    name, queue, copy = f"{slot}:seen", f"{slot}:queue", f"{slot}:copy"
    lines, file = str(tmp_path / "lines"), str(tmp_path / "file")
    client = place.client()

    def report(action: str, *arguments: str) -> dict[str, Any]:
        params = {"REDIS_PARAMS": {"decode_responses": kind == "redis+cluster"}}
        command.call(action, *arguments, "--redis-url", place.url, "--json", **params)
        printed = capsys.readouterr()
        assert not printed.err
        found: dict[str, Any] = json.loads(printed.out)
        return found

    try:
        fill(client, name, 2500)
        found = report("import", "--key", name)
        assert (found["members"], found["source"]) == (2500, f"{name}:set")
        found = report("info", "--key", name)
        assert (found["lost_shards"], found["count"]) == (0, 2500)
        Path(lines).write_text("\n".join(map(as_text, client.srandmember(f"{name}:set", 3))))
        found = report("forget", "--key", name, "--from-file", lines)
        assert (found["forgotten"], found["absent"]) == (3, 0)
        assert report("info", "--key", name)["forgotten"] == 3
        found = report("export", "--key", name, file)
        assert found["count"] == 2500
        assert report("restore", "--key", copy, file)["count"] == 2500
        assert report("info", "--key", copy)["forgotten"] == 3

        Path(lines).write_text("https://example.com/1\n")
        assert report("import", "--key", copy, "--from-file", lines)["added"] == 1
        client.zadd(QueueKeys(queue).dead_letters, {"a": 0, "b": 0})
        assert report("requeue", "--queue", queue, "--key", copy)["matching"] == 2
        assert set(client.zrange(queue, 0, -1)) == {b"a", b"b"}
        found = report("check", "--key", copy, "https://example.com/1")
        assert (found["requests"][0]["is_seen"], found["requests"][0]["places"][0]["is_lost"]) == (True, False)
        assert report("forget", "--key", copy, "https://example.com/1")["forgotten"] == 1
        assert report("check", "--key", copy, "https://example.com/1")["requests"][0]["is_forgotten"]

        assert report("clear", "--key", copy, "--queue", queue, "--with-queue", "--yes")["deleted"]
        assert report("clear", "--key", name, "--yes")["deleted"]
        left = set(map(as_text, client.scan_iter(f"*{key}*")))
        assert left == {f"{name}:set"}
        client.delete(f"{name}:set")
    finally:
        client.close()


def test_two_slots(places: Places, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A queue and a filter in different slots are not deleted together: the key to set is named."""
    place = places("redis+cluster")
    with place.client() as client:
        client.zadd(key, {"request": 0})
        BloomFilter(client, f"{key}:elsewhere", capacity=100)
        at = ("--key", f"{key}:elsewhere", "--queue", key, "--redis-url", place.url)
        assert command.call("clear", *at, "--with-queue", "--yes") == 2
        assert f"set SCHEDULER_DUPEFILTER_KEY = '{{{key}}}:dupefilter'" in capsys.readouterr().err
        assert (client.exists(f"{key}:elsewhere"), client.zcard(key)) == (1, 1)
