"""`scrapy bloom forget`, and forgotten requests in the other actions."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import Request

from scrapy_bloom import BloomRFPDupeFilter
from scrapy_bloom.filter import bloom_filter
from scrapy_bloom.transport.failures import FILTER_COMMANDS
from scrapy_bloom.transport.scripts import FILTER, Script
from tests.commands.conftest import Say
from tests.support import command
from tests.support.servers import Server

URLS = [f"https://example.com/{number}" for number in range(4)]
NEW = "https://example.com/new"
# Items of three layers.
SMALL: dict[str, Any] = {"capacity": 100, "error_rate": 1e-3, "cache_size": 0}
ITEMS = [f"item {number}" for number in range(600)]


@pytest.fixture
def pages(client: redis.Redis, key: str) -> BloomRFPDupeFilter:
    """A dupefilter that has seen `URLS`."""
    dupefilter = BloomRFPDupeFilter(client, key)
    assert not any(seen(dupefilter, *URLS))
    return dupefilter


def seen(pages: BloomRFPDupeFilter, *urls: str) -> list[bool]:
    """Return for each page whether it is seen, as a worker with an empty cache finds it; add the new ones."""
    pages.filter.revalidate()
    return [pages.request_seen(Request(url)) for url in urls]


def told(say: Say, action: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the object that an action prints."""
    said = say(action, *arguments, "--json")
    return said.code, said.report


def states(client: redis.Redis, key: str) -> dict[Any, Any]:
    """Return all data of a filter, but for the names of its callers."""
    found: dict[Any, Any] = {name: client.dump(name) for name in client.keys(f"*{key}*")}
    if client.type(key) == b"hash":
        found[key.encode()] = {**client.hgetall(key), b"callers": b""}
    return found


def test_forget(pages: BloomRFPDupeFilter, say: Say) -> None:
    """A forgotten page is new again, and the output says when it is fetched."""
    code, said, _ = say("forget", URLS[0], "https://example.com/1?")
    assert code == 0
    assert f"{URLS[0]}: forgotten\n" in said
    assert "fetched when a fetched page links to it, in this run or a later one" in said
    code, said, _ = say("check", URLS[0])
    assert code == 1
    assert "forgotten: it would be new" in said
    checked = told(say, "check", *URLS)[1]["requests"]
    assert [(each["is_seen"], each["is_forgotten"]) for each in checked] == [(False, True)] * 2 + [(True, False)] * 2
    assert seen(pages, *URLS) == [False, False, True, True]
    assert seen(pages, *URLS) == [True] * 4
    assert told(say, "check", *URLS)[0] == 0


def test_not_in(pages: BloomRFPDupeFilter, client: redis.Redis, say: Say, key: str) -> None:
    """A page that was not in is named, and nothing is stored for it."""
    before = states(client, key)
    code, said, _ = say("forget", NEW)
    assert (code, said) == (1, f"{NEW}: not in the filter\n")
    assert states(client, key) == before
    code, found = told(say, "forget", NEW, URLS[0])
    assert (code, found["forgotten"], found["absent"]) == (1, 1, 1)
    assert [each["state"] for each in found["requests"]] == ["absent", "forgotten"]
    assert seen(pages, NEW, NEW, *URLS[:2]) == [False, True, False, True]


def test_a_file(pages: BloomRFPDupeFilter, say: Say, tmp_path: Path) -> None:
    """A line per URL or per fingerprint; the output has the totals."""
    path = tmp_path / "lines"
    path.write_text("\n".join([*URLS, "", NEW]))
    code, said, _ = say("forget", "--from-file", str(path))
    assert code == 1
    assert said.startswith("4 pages forgotten\n1 page not in the filter\n")
    assert seen(pages, *URLS) == [False] * 4
    path.write_text("\n".join(pages.fingerprint_of(Request(url)).decode().upper() for url in URLS[:2]))
    assert told(say, "forget", "--from-file", str(path))[1]["forgotten"] == 2
    assert seen(pages, *URLS) == [False, False, True, True]


def test_an_imported_file(pages: BloomRFPDupeFilter, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten page is seen again after an import of its URL. `-` stands for the standard input."""
    path = tmp_path / "lines"
    path.write_text("\n".join(URLS))
    with path.open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert told(say, "forget", "--from-file", "-")[1]["forgotten"] == len(URLS)
    assert told(say, "import", "--from-file", str(path))[1]["added"] == len(URLS)
    assert all(seen(pages, *URLS))


def test_a_bad_file(pages: BloomRFPDupeFilter, say: Say, tmp_path: Path) -> None:
    """All lines are read before anything is forgotten."""
    path = tmp_path / "lines"
    path.write_text(f"{URLS[0]}\nnothing")
    code, _, said = say("forget", "--from-file", str(path))
    assert code == 2
    assert "line 2 is b'nothing', but must be a fingerprint of 40 hexadecimal digits, or a URL" in said
    assert all(seen(pages, *URLS))


@pytest.mark.parametrize("arguments", [[], [NEW, "--from-file", "lines"], ["--from-file", "/none"], ["news", NEW]])
def test_wrong_arguments(pages: BloomRFPDupeFilter, say: Say, arguments: list[str]) -> None:
    """URLs or a file, and no spider outside of a project."""
    assert say("forget", *arguments).code == 2
    assert pages.request_seen(Request(URLS[0]))


REFUSED: dict[str, tuple[Callable[[redis.Redis, str], object], str]] = {
    "nothing": (lambda _client, _key: None, "there is no filter at"),
    "a SET": (lambda client, key: client.sadd(key, *(f"{number:040}" for number in range(3))), "a SET of 3 members"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(client: redis.Redis, key: str, say: Say, name: str) -> None:
    """Without a filter that workers may use, nothing is changed and none is created."""
    put, text = REFUSED[name]
    put(client, key)
    before = states(client, key)
    code, _, said = say("forget", NEW)
    assert code == 2
    assert text in said
    assert states(client, key) == before


def test_permissions(pages: BloomRFPDupeFilter, client: Any, server: Server, key: str) -> None:
    """The rights of a crawl that uses the filter are enough to inspect it, and to forget."""
    name = f"user-{key}"
    allowed = [f"+{each}" for each in FILTER_COMMANDS]
    client.execute_command("ACL", "SETUSER", name, "on", ">secret", f"~{key}", f"~{{{key}}}:*", *allowed)
    place = ("--key", key, "--redis-url", server.url.replace("//", f"//{name.replace(':', '%3A')}:secret@"))
    assert command.call("forget", *place, URLS[0]) == 0
    assert command.call("check", *place, URLS[0]) == 1
    assert command.call("info", *place) == 0
    assert seen(pages, URLS[0]) == [False]
    client.execute_command("ACL", "DELUSER", name)


@pytest.mark.parametrize("script", ["open", "forget"])
@pytest.mark.usefixtures("pages")
def test_deleted_meanwhile(
    client: redis.Redis, key: str, say: Say, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """A filter that was deleted is not created again."""

    class Late(Script):
        def call(self, *arguments: Any) -> Any:
            client.delete(key)
            return super().call(*arguments)

    late = Late(script, *FILTER) if script == "open" else Late(script, *FILTER, "steps", "call")
    monkeypatch.setattr(bloom_filter, f"_{script.upper()}", late)
    code, _, said = say("forget", URLS[0])
    assert (code, f"there is no filter at {key!r}: it was deleted" in said, client.exists(key)) == (2, True, 0)
