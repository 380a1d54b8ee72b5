"""Unwritable output: the work is completed, and the exit code is honest."""

import json
import os
import select
import subprocess
import sys
import termios
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.crawl_process import LIMIT
from scrapy_bloom import BloomFilter
from scrapy_bloom.queue.keys import QueueKeys
from tests.support import command
from tests.support.imports import OPTIONS, fill
from tests.support.moving import SMALL, items, keys_at
from tests.support.servers import Server
from tests.support.streams import BROKEN, CLOSED, FULL, written_to

# As shells have it for SIGPIPE.
NO_READER = 141
Check = Callable[[], bool]


def clear(client: redis.Redis, key: str, _: Path) -> tuple[list[str], Check]:
    BloomFilter(client, key, **SMALL).add_many(items(300))
    return ["--yes"], lambda: not keys_at(client, key)


def import_(client: redis.Redis, key: str, _: Path) -> tuple[list[str], Check]:
    members = fill(client, key, 3000)
    return ["--capacity", "1000"], lambda: all(BloomFilter(client, key, **OPTIONS).contains_many(members))


def export_(client: redis.Redis, key: str, directory: Path) -> tuple[list[str], Check]:
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add_many(items(300))
    client.zadd(f"{key}:requests", {"waits": 0})
    return [str(directory / "file")], (directory / "file").exists


def restore(client: redis.Redis, key: str, directory: Path) -> tuple[list[str], Check]:
    BloomFilter(client, f"{key}:other", **SMALL).add_many(items(300))
    at = ("--key", f"{key}:other", "--redis-url", _url(client))
    assert command.call("export", str(directory / "file"), *at) == 0
    return [str(directory / "file")], lambda: all(BloomFilter(client, key, **SMALL).contains_many(items(300)))


def requeue(client: redis.Redis, key: str, _: Path) -> tuple[list[str], Check]:
    client.zadd(QueueKeys(f"{key}:requests").dead_letters, {f"{number}": 0 for number in range(250)})
    return ["--queue", f"{key}:requests"], lambda: client.zcard(f"{key}:requests") == 250


def _url(client: redis.Redis) -> str:
    kwargs: dict[str, Any] = client.connection_pool.connection_kwargs
    return f"redis://{kwargs['host']}:{kwargs['port']}"


# The writing actions: their arguments, and a check of their work.
WRITERS: dict[str, Callable[[redis.Redis, str, Path], tuple[list[str], Check]]] = {
    "clear": clear,
    "import": import_,
    "export": export_,
    "restore": restore,
    "requeue": requeue,
}


@pytest.mark.parametrize("kind", [BROKEN, FULL, CLOSED])
@pytest.mark.parametrize("action", WRITERS)
def test_the_work_is_done(action: str, kind: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """Failing progress and reports do not stop the work, and 0 means success."""
    with valkey.client() as client:
        arguments, is_done = WRITERS[action](client, key, tmp_path)
        with written_to(stdout=kind, stderr=kind):
            code = command.call(action, *arguments, "--key", key, "--redis-url", valkey.url)
        assert code == {BROKEN: NO_READER, FULL: 2, CLOSED: 0}[kind]
        assert is_done()


def test_terminal_that_is_closed(valkey: Server, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An import whose terminal is closed goes on without its progress bar."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(ours, (24, 80))
    scans = count(1)

    class Closing(redis.Redis):
        """A client whose user closes the terminal while the members are copied."""

        def execute_command(self, *args: Any, **options: Any) -> Any:
            if args[0] == "SSCAN" and next(scans) == 3:
                assert select.select([ours], [], [], LIMIT)[0]
                os.close(ours)
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # as the parent's

    options = ["--key", key, "--redis-url", valkey.url, "--json"]
    with valkey.client() as client, os.fdopen(theirs, "w", 1) as terminal, pytest.MonkeyPatch.context() as patch:
        fill(client, key, 20_000)
        patch.setattr(sys, "stderr", terminal)
        assert command.call("import", *options, REDIS_PARAMS={"redis_cls": Closing}) == 0
    assert json.loads(capsys.readouterr().out)["members"] == 20_000
    assert next(scans) > 3


def ended(*arguments: str, cwd: Path, **streams: Any) -> int:
    """Run the command as a process; Python's failing flush would make its exit code 120."""
    process = subprocess.run(
        [sys.executable, "-m", "scrapy", "bloom", *arguments], cwd=cwd, check=False, **{"stderr": -3, **streams}
    )
    return process.returncode


@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.long)])
def test_answers(unbuffered: str, valkey: Server, key: str, tmp_path: Path) -> None:
    """With an unreadable output the answer "no", or an error, is returned, never "yes"."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    place = ["--key", key, "--redis-url", valkey.url]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as broken, Path("/dev/full").open("w") as full:

        def codes(*arguments: str) -> list[int]:
            return [
                ended(*arguments, cwd=tmp_path, env=environment, stdout=stdout, stderr=stdout)
                for stdout in (broken, full)
            ]

        assert codes("info", *place) == [NO_READER if unbuffered else 1, 2]
        assert codes("plan") == [NO_READER if unbuffered else 0, 2]


def test_what_could_not_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk is named."""
    with written_to(stdout=FULL):
        assert command.call("plan") == 2
    assert "No space left on device" in capsys.readouterr().err
