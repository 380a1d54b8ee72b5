"""`scrapy bloom forget`, and forgotten requests in the other actions."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import Request

from scrapy_bloom import BloomFilter, BloomRFPDupeFilter
from scrapy_bloom.cli import key_contents
from scrapy_bloom.cli.archive import exporting
from scrapy_bloom.cli.archive.file_format import Archive
from scrapy_bloom.errors import MismatchError
from scrapy_bloom.storage.filter_keys import forgotten_key
from scrapy_bloom.storage.forgotten import ScanForgotten
from scrapy_bloom.storage.operation import Operations, Results
from scrapy_bloom.storage.stores import RedisStore
from tests.support import command
from tests.support.examining import examine
from tests.support.imports import OPTIONS, backup, fill, keys_of
from tests.support.moving import SMALL, export, items, keys_at, killed_at, read, require, restore_file
from tests.support.servers import Server

URLS = [f"https://example.com/{number}" for number in range(4)]
NEW = "https://example.com/new"
# Items of three layers.
ITEMS = items(600)

Say = Callable[..., tuple[int, str]]


@pytest.fixture
def pages(client: redis.Redis, key: str) -> BloomRFPDupeFilter:
    """A dupefilter that has seen `URLS`."""
    dupefilter = BloomRFPDupeFilter(client, key)
    assert not any(seen(dupefilter, *URLS))
    return dupefilter


@pytest.fixture
def say(server: Server, key: str, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run an action on the test's key, and return its exit code and its output or error."""

    def run(action: str, *arguments: str) -> tuple[int, str]:
        code = command.call(action, "--key", key, "--redis-url", server.url, *arguments)
        printed = capsys.readouterr()
        return code, printed.out or printed.err

    return run


def seen(pages: BloomRFPDupeFilter, *urls: str) -> list[bool]:
    """Return for each page whether it is seen, as a worker with an empty cache finds it; add the new ones."""
    pages.filter.forget_cached()
    return [pages.request_seen(Request(url)) for url in urls]


def told(say: Say, action: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the object that an action prints."""
    code, said = say(action, *arguments, "--json")
    return code, json.loads(said)


def states(client: redis.Redis, key: str) -> dict[str, Any]:
    """Return all data of a filter."""
    return {name: client.dump(name) for name in keys_at(client, key)}


@pytest.fixture
def forgetful(client: redis.Redis, key: str) -> BloomFilter:
    """A filter of three layers that has forgotten an item of each."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add_many(ITEMS)
    assert bloom.info().layers == 3
    assert all(bloom.forget_many(ITEMS[::200]))
    return bloom


def new_in(bloom: BloomFilter) -> list[str]:
    """Return the items of `ITEMS` that are new to a filter, and add them."""
    return [item for item, is_new in zip(ITEMS, bloom.add_many(ITEMS), strict=True) if is_new]


def test_forget(pages: BloomRFPDupeFilter, say: Say) -> None:
    """A forgotten page is new once more, and the output says when it is fetched."""
    code, said = say("forget", URLS[0], "https://example.com/1?")
    assert code == 0
    assert f"{URLS[0]}: forgotten\n" in said
    assert "fetched when a fetched page links to it, in this run or a later one" in said
    code, said = say("check", URLS[0])
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
    code, said = say("forget", NEW)
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
    code, said = say("forget", "--from-file", str(path))
    assert code == 1
    assert said.startswith("4 pages forgotten\n1 page not in the filter\n")
    assert seen(pages, *URLS) == [False] * 4
    path.write_text("\n".join(pages.fingerprint_of(Request(url)).decode().upper() for url in URLS[:2]))
    assert told(say, "forget", "--from-file", str(path))[1]["forgotten"] == 2
    assert seen(pages, *URLS) == [False, False, True, True]


def test_an_imported_file(pages: BloomRFPDupeFilter, say: Say, tmp_path: Path) -> None:
    """A forgotten page is seen again after an import of its URL."""
    path = tmp_path / "lines"
    path.write_text("\n".join(URLS))
    assert say("forget", *URLS[:2])[0] == 0
    assert told(say, "import", "--from-file", str(path))[1]["added"] == 2
    assert all(seen(pages, *URLS))


def test_standard_input(pages: BloomRFPDupeFilter, server: Server, key: str, tmp_path: Path) -> None:
    """`-` stands for the standard input."""
    arguments = ["forget", "--key", key, "--redis-url", server.url, "--from-file", "-", "--json"]
    line = [sys.executable, "-m", "scrapy", "bloom", *arguments]
    said = subprocess.run(line, input="\n".join(URLS), capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    assert json.loads(said.stdout)["forgotten"] == len(URLS)
    assert not any(seen(pages, *URLS))


def test_many_lines(client: redis.Redis, key: str, say: Say, tmp_path: Path) -> None:
    """More lines than one batch, with repeats, in a filter of several layers."""
    bloom = BloomFilter(client, key, capacity=2000, error_rate=1e-12, cache_size=0)
    lines = [f"https://example.com/{number}" for number in range(11_000)]
    bloom.add_many(lines)
    path = tmp_path / "lines"
    path.write_text("\n".join([*lines, *lines[:100]]))
    assert told(say, "forget", "--from-file", str(path))[1]["forgotten"] == 11_100
    assert all(bloom.add_many(lines))
    assert not any(bloom.add_many(lines))


BAD_FILES = {
    "": "the file is empty",
    f"{URLS[0]}\nnothing": "line 2 is 'nothing', but the file begins with URLs",
    f"{URLS[0]}\n{'0' * 40}": "line 2 is",
    "example.com": "line 1 is 'example.com'; it must be",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_bad_files(pages: BloomRFPDupeFilter, say: Say, text: str, tmp_path: Path) -> None:
    """All lines are read before anything is forgotten."""
    path = tmp_path / "lines"
    path.write_text(text)
    code, said = say("forget", "--from-file", str(path))
    assert code == 2
    assert BAD_FILES[text] in said
    assert all(seen(pages, *URLS))


@pytest.mark.parametrize("arguments", [[], [NEW, "--from-file", "lines"], ["--from-file", "/none"], ["news", NEW]])
def test_wrong_arguments(pages: BloomRFPDupeFilter, say: Say, arguments: list[str]) -> None:
    """URLs or a file, and no spider outside of a project."""
    assert say("forget", *arguments)[0] == 2
    assert pages.request_seen(Request(URLS[0]))


REFUSED: dict[str, tuple[Callable[[redis.Redis, str], object], str]] = {
    "nothing": (lambda _client, _key: None, "there is no filter at"),
    "a SET": (lambda client, key: fill(client, key, 3), "holds a SET of 3 members"),
    "an unfinished filter": (
        lambda client, key: (BloomFilter(client, key).add(NEW), client.hset(key, "unfinished", "restore")),
        "`scrapy bloom restore` is filling it",
    ),
    "foreign forgotten items": (
        lambda client, key: (BloomFilter(client, key).add(NEW), client.rpush(forgotten_key(key), "a")),
        "where the filter keeps its forgotten items, holds something that is not a filter's",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(client: redis.Redis, key: str, say: Say, name: str) -> None:
    """Without a filter that workers may use, nothing is changed and none is created."""
    put, text = REFUSED[name]
    put(client, key)
    before = states(client, key)
    code, said = say("forget", NEW)
    assert code == 2
    assert text in said
    assert states(client, key) == before


def test_info(forgetful: BloomFilter, client: redis.Redis, key: str, say: Say) -> None:
    """The number and the memory of the forgotten requests, without the sentinel; nothing without any."""
    found = told(say, "info")[1]
    assert (found["forgotten"], found["has_lost_forgotten"]) == (3, False)
    assert found["forgotten_bytes"] == client.memory_usage(forgotten_key(key))
    assert "3 requests to be new once more" in say("info")[1]
    assert len(new_in(forgetful)) == 3
    found = told(say, "info")[1]
    assert (found["forgotten"], found["has_lost_forgotten"]) == (0, False)
    assert "forgotten" not in say("info")[1]


def test_info_without_the_set(forgetful: BloomFilter, client: redis.Redis, key: str, say: Say) -> None:
    """A lost set is reported with its consequence."""
    assert forgetful.is_open
    client.delete(forgotten_key(key))
    assert told(say, "info")[1]["has_lost_forgotten"]
    assert "the filter begins anew" in say("info")[1]
    code, said = say("doctor")
    assert code == 1
    assert "its forgotten requests were evicted or deleted: it begins anew" in said


@pytest.fixture
def restricted(client: Any, server: Server, key: str) -> Iterator[Callable[[str], str]]:
    """Return a function that makes a user without a command, and returns a URL with the user."""
    name = f"user-{key}"

    def without(denied: str) -> str:
        client.execute_command("ACL", "SETUSER", name, "on", ">secret", "~*", "+@all", f"-{denied}")
        return server.url.replace("//", f"//{name.replace(':', '%3A')}:secret@")

    yield without
    client.execute_command("ACL", "DELUSER", name)


@pytest.mark.usefixtures("forgetful")
def test_info_without_permission(key: str, restricted: Callable[[str], str], tmp_path: Path) -> None:
    """Without MEMORY USAGE the memory is estimated."""
    found = command.report("info", "--key", key, "--redis-url", restricted("memory"), cwd=tmp_path)
    assert (found["forgotten"], found["forgotten_bytes"]) == (3, 480)


@pytest.mark.parametrize("denied", ["zadd", "zmscore", "zrem", "zscore"])
def test_permissions(
    pages: BloomRFPDupeFilter,
    key: str,
    restricted: Callable[[str], str],
    denied: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The commands of forgetting are needed by a crawl that forgets, or once something was forgotten."""
    url, place = restricted(denied), ["--key", key]
    assert examine(url, capsys, *place)[1]["permissions"][0] == "ok"
    found = examine(url, capsys, *place, BLOOMFILTER_FORGET_FAILED=True)[1]["permissions"]
    assert (found[0], found[2].rpartition(" ")[2]) == ("loss", f"+{denied}")
    pages.filter.forget(pages.fingerprint_of(Request(URLS[0])))
    found = examine(url, capsys, *place)[1]["permissions"]
    assert (found[0], found[2].rpartition(" ")[2]) == ("loss", f"+{denied}")


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}], ids=str)
def test_a_restored_filter_has_forgotten_the_same(
    server: Server, key: str, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Each is new once more to the copy as well, and nothing else is."""
    path = tmp_path / "file"
    with server.client(**options) as client:
        assert export(client, key, path).forgotten == 3
        assert path.read_bytes().startswith(b"scrapy-bloom export 2\n")
        assert restore_file(client, f"{key}:copy", path).forgotten == 3
        copy, other = (BloomFilter(client, f"{key}:copy", **SMALL) for _ in range(2))
        assert copy.forget(ITEMS[1])
        assert sorted(new_in(other)) == sorted([*ITEMS[::200], ITEMS[1]])
        assert new_in(copy) == []
        assert new_in(BloomFilter(client, key, **SMALL)) == ITEMS[::200]
        for name in (key, f"{key}:copy"):
            store = RedisStore(client)
            assert key_contents.delete_contents(store, key_contents.inspect_key(store, name))
        assert not keys_at(client, key)


def test_a_file_without_forgotten_items(client: redis.Redis, key: str, tmp_path: Path) -> None:
    """Has the first format, which earlier releases restore, and its copy has no set."""
    path = tmp_path / "file"
    BloomFilter(client, key, **SMALL).add("a")
    export(client, key, path)
    assert path.read_bytes().startswith(b"scrapy-bloom export 1\n")
    assert restore_file(client, f"{key}:copy", path).forgotten == 0
    assert not client.exists(forgotten_key(f"{key}:copy"))


def test_forgotten_and_new_again_meanwhile(
    forgetful: BloomFilter, client: redis.Redis, key: str, tmp_path: Path
) -> None:
    """An item that is forgotten during the export is new in the copy, even if the file lacks its bits."""
    path = tmp_path / "file"

    def meddle(_: int) -> None:
        forgetful.add_many([ITEMS[0], "late"])
        forgetful.forget_many([ITEMS[1], "late"])

    export(client, key, path, advance=meddle)
    restore_file(client, f"{key}:copy", path)
    copy = BloomFilter(client, f"{key}:copy", **SMALL)
    assert new_in(copy) == [ITEMS[1], ITEMS[200], ITEMS[400]]
    assert copy.add("late")


class Interrupted(RedisStore):
    """A store where other workers act before the round trip with the number `at`."""

    def __init__(self, client: redis.Redis, at: int, act: Callable[[], object]) -> None:
        super().__init__(client)
        self._at, self._act = at, act
        self.names: list[str] = []

    def execute(self, operations: Operations) -> Results:
        if len(self.names) == self._at:
            self._act()
        self.names.append(type(operations[0]).__name__)
        return super().execute(operations)


def test_each_moment_of_an_export(valkey: Server, key: str, tmp_path: Path) -> None:
    """An item that is forgotten before the set is read is new to the copy, unless it was new to a worker again."""
    with valkey.client() as client:
        at, scanned = 0, None
        while scanned is None or at < scanned + 3:
            bloom = BloomFilter(client, key, **SMALL)
            bloom.add_many(ITEMS)
            bloom.forget_many(ITEMS[::200])

            def act(bloom: BloomFilter = bloom) -> None:
                assert bloom.add_many([ITEMS[0], "late"]) == [True, True]
                assert bloom.forget_many([ITEMS[1], "late"]) == [True, True]

            store, path = Interrupted(client, at, act), tmp_path / f"{at}"
            exporting.export(store, require(RedisStore(client), key), path)
            scanned = store.names.index("ScanForgotten")
            restore_file(client, f"{key}:copy", path)
            copy = BloomFilter(client, f"{key}:copy", **SMALL)
            new = new_in(copy)
            assert {ITEMS[200], ITEMS[400]} <= set(new) <= {*ITEMS[::200], ITEMS[1]}
            assert (ITEMS[1] in new, ITEMS[0] in new) == (at <= scanned, at > scanned)
            assert copy.add("late")
            copy.clear()
            bloom.clear()
            at += 1
        assert scanned > 6


def test_lost_or_first_forgotten_during_an_export(client: redis.Redis, key: str, tmp_path: Path) -> None:
    """A file that may call forgotten items seen is not written."""
    path = tmp_path / "file"
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add_many(ITEMS)
    with pytest.raises(MismatchError, match="were first forgotten meanwhile: run it again"):
        export(client, key, path, advance=lambda _: bloom.forget("item 1"))
    with pytest.raises(MismatchError, match="has lost its forgotten items"):
        export(client, key, path, advance=lambda _: client.delete(forgotten_key(key)))
    with pytest.raises(MismatchError, match="has lost its forgotten items"):
        export(client, key, path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("number", [3, 4, 6])
def test_a_killed_restore(client: redis.Redis, key: str, number: int, tmp_path: Path) -> None:
    """It is refused to workers; the next run finds its remains, and forgets the same."""
    path = tmp_path / "file"
    export(client, key, path)
    copy = f"{key}:copy"
    killed_at(number, lambda advance: restore_file(client, copy, path, advance=advance))
    assert client.hget(copy, "unfinished")
    assert restore_file(client, copy, path).forgotten == 3
    assert client.zcard(forgotten_key(copy)) == 4
    assert new_in(BloomFilter(client, copy, **SMALL)) == ITEMS[::200]


@pytest.mark.usefixtures("forgetful")
def test_a_set_that_is_lost_during_a_restore(client: redis.Redis, key: str, tmp_path: Path) -> None:
    """The comparison notices it, and workers stay away."""
    path, copy = tmp_path / "file", f"{key}:copy"
    export(client, key, path)

    def lose(_: int) -> None:
        client.delete(forgotten_key(copy))

    with pytest.raises(MismatchError, match="differ from the file"):
        restore_file(client, copy, path, advance=lose)
    assert client.hget(copy, "unfinished")


@pytest.mark.usefixtures("forgetful")
def test_a_damaged_item(client: redis.Redis, key: str, tmp_path: Path) -> None:
    """The file's records of forgotten items are covered by its checksum."""
    path = tmp_path / "file"
    export(client, key, path)
    assert [layer for _, layer in read_forgotten(path)] == [0, 1, 2]
    path.write_bytes(path.read_bytes().replace(b"item 200", b"item 201"))
    with pytest.raises(Exception, match="truncated or altered"):
        read(path)


def read_forgotten(path: Path) -> list[tuple[bytes, int]]:
    """Return the forgotten items in a file, in their order."""
    with path.open("rb") as file:
        return sorted(Archive(path, file).forgotten())


def test_clear(forgetful: BloomFilter, client: redis.Redis, key: str, say: Say) -> None:
    """The forgotten requests are shown, and deleted with the filter."""
    assert forgetful.is_open
    code, found = told(say, "clear")
    assert (code, found["filters"][0]["forgotten"]) == (1, 3)
    assert "3 forgotten requests" in say("clear")[1]
    assert client.zcard(forgotten_key(key)) == 4
    assert say("clear", "--yes")[0] == 0
    assert not keys_of(client, key)


@pytest.mark.usefixtures("forgetful")
def test_forgotten_items_alone(client: redis.Redis, key: str, say: Say, tmp_path: Path) -> None:
    """The set of a filter that is gone is found, named and deleted, and no restore overwrites it silently."""
    path = tmp_path / "file"
    export(client, key, path)
    client.delete(*(name for name in keys_at(client, key) if name != forgotten_key(key)))
    code, found = told(say, "clear")
    assert (code, [(each["kind"], each["forgotten"]) for each in found["filters"]]) == (1, [("forgotten items", 3)])
    assert "forgotten requests of a filter that is gone: 3 forgotten requests" in say("clear")[1]
    assert "forgotten requests of a filter that is gone" in say("doctor")[1]
    assert told(say, "clear", "--with-queue", "--queue", f"{key}:queue")[1]["filters"][0]["forgotten"] == 3
    code, said = say("restore", str(path))
    assert code == 2
    assert "holds forgotten requests of a filter that is gone: give another key" in said
    assert say("clear", "--yes")[0] == 0
    assert not keys_of(client, key)


@pytest.mark.usefixtures("forgetful")
def test_forgotten_items_of_a_later_filter_stay(client: redis.Redis, key: str) -> None:
    """A filter that another worker begins during the deletion keeps its forgotten items."""

    class Meddled(RedisStore):
        """A store where another filter forgets an item just before the set is deleted."""

        def execute(self, operations: Operations) -> Results:
            if isinstance(operations[0], ScanForgotten):
                later = BloomFilter(client, key, **SMALL)
                later.add_many(ITEMS[:10])
                assert later.forget(ITEMS[0])
            return super().execute(operations)

    shown = key_contents.inspect_key(RedisStore(client), key)
    assert key_contents.delete_contents(Meddled(client), shown)
    assert client.zcard(forgotten_key(key)) == 2
    assert BloomFilter(client, key, **SMALL).add_many(ITEMS[:10]) == [True] + [False] * 9


@pytest.mark.parametrize("name", ["zset", "string"])
def test_foreign_data(client: redis.Redis, key: str, say: Say, name: str) -> None:
    """Foreign data at the key of the set is named, and stays."""
    BloomFilter(client, key).add(NEW)
    if name == "zset":
        client.zadd(forgotten_key(key), {"somebody": 1})
    else:
        client.set(forgotten_key(key), "a")
    code, said = say("clear", "--yes")
    assert code == 2
    assert "where the filter keeps its forgotten items" in said
    assert client.exists(key, forgotten_key(key)) == 2
    assert ("no request can be forgotten: the key" in say("doctor")[1]) == (name == "string")
    assert say("info")[0] == 0


@pytest.mark.usefixtures("forgetful")
def test_a_set_beside_an_imported_filter(client: redis.Redis, key: str, say: Say) -> None:
    """Forgotten items of a filter that is gone do no harm to a filter that an import creates there."""
    client.delete(*(name for name in keys_at(client, key) if name != forgotten_key(key)))
    client.pexpire(forgotten_key(key), 3_600_000)
    members = fill(client, key, 20)
    assert say("import", "--capacity", "1000", "--error-rate", "1e-6", "--wait", "0")[0] == 0
    bloom = BloomFilter(client, key, **OPTIONS)
    assert all(bloom.contains_many(members))
    assert told(say, "info")[1]["forgotten"] == 0
    assert bloom.forget(members[0])
    # The set lives as long as this filter.
    assert client.pttl(forgotten_key(key)) == -1
    assert bloom.add_many(members) == [True] + [False] * 19
    client.delete(backup(key))
    assert say("clear", "--yes")[0] == 0
    assert not keys_of(client, key)
