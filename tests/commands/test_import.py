"""`scrapy bloom import`: import a SET or a file into a filter while crawlers run."""

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot
from scrapy import Request
from scrapy.utils.request import fingerprint as scrapys

from devtools.proxy.link import Link, forwarding
from devtools.site import path_of, serving
from devtools.waiting import until
from scrapy_bloom import BloomFilter, BloomRFPDupeFilter
from scrapy_bloom.cli.importing.file_import import FINGERPRINTS, kind_of
from scrapy_bloom.cli.importing.import_errors import GoneError
from scrapy_bloom.cli.importing.import_state import is_mark
from scrapy_bloom.cli.importing.set_import import SetImport
from scrapy_bloom.cli.importing.staging import UnfinishedFilter
from scrapy_bloom.errors import ConfigError, MismatchError, WrongTypeError
from tests.support import command, crawling
from tests.support.imports import (
    OPTIONS,
    PARAMETERS,
    FaultyClient,
    KilledError,
    Silent,
    backup,
    fill,
    fingerprint,
    keys_of,
    set_import,
    staging,
)
from tests.support.pages import tree
from tests.support.scripts import calls
from tests.support.servers import Server

PAGES = 80


class Gate:
    """Serves pages up to a number that can be raised."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._asked = 0
        self._raised = threading.Condition()

    def __call__(self, _: str) -> None:
        with self._raised:
            self._asked += 1
            number = self._asked
            self._raised.wait_for(lambda: number <= self.most)

    def raise_to(self, most: int) -> None:
        """Raise the number of pages served to `most` in all."""
        with self._raised:
            self.most = most
            self._raised.notify_all()


class ClusterLike(redis.Redis):
    """A client that computes the cluster slot of a key, as a cluster's client does."""

    def keyslot(self, key: str) -> int:
        return int(key_slot(key.encode()))


def call(capsys: pytest.CaptureFixture[str], *arguments: str, **settings: object) -> tuple[int, str, str]:
    """Run the command in this process; return its exit code and output."""
    code = command.call("import", *arguments, **settings)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_outside_a_project(server: Server, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All members are in a filter of the given parameters; a second run deletes the SET."""
    at = ("--key", key, "--redis-url", server.url, "--capacity", "5000", "--error-rate", "1e-4", "--wait", "0")
    with server.client() as client:
        members = fill(client, key, 3000)
        code, out, err = call(capsys, *at, "--json")
        assert (code, err) == (0, "")
        said = json.loads(out)
        assert said.pop("seconds") > 0
        assert said.pop("members_a_second") > 0
        assert said == {
            "key": key,
            "source": backup(key),
            "members": 3000,
            "added": 3000,
            "already_known": 0,
            "caught_up": 0,
            "checked": 3000,
            "added_meanwhile": 0,
            "deleted_source": False,
            "is_finished": True,
        }
        bloom = BloomFilter(client, key, capacity=5000, error_rate=1e-4, fingerprint="scrapy-redis")
        assert all(bloom.contains_many(members))
        assert client.scard(backup(key)) == 3000

        code, out, _ = call(capsys, *at)
        assert code == 0
        assert "has every member of the SET: 3,000 checked again" in out
        assert "--delete-source" in out
        code, out, _ = call(capsys, *at, "--delete-source", "--json")
        assert code == 0
        assert json.loads(out)["checked"] == 3000
        assert json.loads(out)["deleted_source"] is True
        assert not client.exists(backup(key))
        code, _, err = call(capsys, *at)
        assert code == 2
        assert "holds a filter already" in err


def test_a_set_whose_members_are_not_all_known_is_kept(valkey: Server, key: str) -> None:
    """Before the SET of a finished import is deleted, every member is looked up once more."""
    with valkey.client() as client:
        fill(client, key, 20)
        set_import(client, key).run()
        client.sadd(backup(key), fingerprint(777))
        with pytest.raises(Exception, match="lacks at least 1 member of the SET"):
            set_import(client, key).run(delete_source=True)
        assert client.scard(backup(key)) == 21


def test_another_filter_is_there_since(
    valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A SET is not reported as imported if another filter has replaced the imported one."""
    (tmp_path / "urls").write_text("https://example.com/\n")
    place = ["--key", key, "--redis-url", valkey.url]
    with valkey.client() as client:
        fill(client, key, 20)
        assert command.call("import", *place, "--wait", "0") == 0
        assert command.call("import", *place) == 0
        assert command.call("clear", *place, "--yes") == 0
        assert command.call("import", *place, "--from-file", str(tmp_path / "urls")) == 0
        capsys.readouterr()
        assert command.call("import", *place) == 2
        assert "lacks at least 20 members of the SET" in capsys.readouterr().err
        assert client.scard(backup(key)) == 20


def test_a_pipe_is_refused(valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe is refused: the import reads its file twice."""
    os.mkfifo(tmp_path / "pipe")
    assert command.call("import", "--key", key, "--redis-url", valkey.url, "--from-file", str(tmp_path / "pipe")) == 2
    assert "must be a regular file" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://example.com:abc/", "http://[::1/"])
def test_a_url_of_which_no_request_can_be_made(
    url: str, valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An invalid URL is refused with its line number before the first addition."""
    (tmp_path / "urls").write_text("https://example.com/\n" * 1500 + url + "\n")
    assert command.call("import", "--key", key, "--redis-url", valkey.url, "--from-file", str(tmp_path / "urls")) == 2
    assert "line 1501 is" in capsys.readouterr().err
    with valkey.client() as client:
        assert not client.exists(key)


@pytest.mark.parametrize(
    "options", [{"decode_responses": True}, {"protocol": 3}, {"protocol": 3, "decode_responses": True}]
)
def test_any_client(valkey: Server, key: str, options: dict[str, Any]) -> None:
    """Members are imported as their stored bytes, with every protocol and reply type."""
    with valkey.client() as client, valkey.client(**options) as other:
        members = fill(client, key, 20)
        set_import(other, key).run()
        assert all(BloomFilter(client, key, **OPTIONS).contains_many(members))


def test_more_members_than_the_capacity(valkey: Server, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """The filter grows, and the log gives its memory and the capacity to set."""
    with valkey.client() as client:
        members = fill(client, key, 2500)
        report = set_import(client, key, batch=500).run()
        assert (report.members, report.checked) == (2500, 2500)
        (said,) = [each.getMessage() for each in caplog.records if "has 2,500 members" in each.getMessage()]
        assert "needs 2 layers" in said
        assert "a capacity above 2_500" in said
        bloom = BloomFilter(client, key, **OPTIONS)
        assert bloom.info().layers == 2
        assert all(bloom.contains_many(members))


@pytest.mark.parametrize(("members", "warns"), [(1000, False), (1001, True)])
def test_capacity_that_is_exceeded_by_one(
    members: int, warns: bool, valkey: Server, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A SET of exactly the capacity does not grow the filter; one more member does."""
    with valkey.client() as client:
        fill(client, key, members)
        set_import(client, key, batch=500).run(copy_only=True)
    assert [f"has {members:,} members" in each.getMessage() for each in caplog.records] == [True] * warns


class Hiding(redis.Redis):
    """A client of a server that never returns one of the SET's members."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        reply = super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # as the parent's
        if calls(args, "scrapy_bloom.cli.importing", "scan_source"):
            reply[3] = [member for member in reply[3] if member != fingerprint(7).encode()]
        return reply


def test_a_server_that_does_not_show_all(valkey: Server, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Members are counted: if a scan misses one, the import fails and the SET stays."""
    at = ("--key", key, "--redis-url", valkey.url, "--capacity", "1000", "--wait", "0", "--delete-source")
    hiding = {"REDIS_PARAMS": {"redis_cls": Hiding}}
    with valkey.client() as client:
        fill(client, key, 20)
        code, _, err = call(capsys, *at, **hiding)
        assert code == 2
        assert f"the server returned 19 of 20 members of the SET at '{backup(key)}': run it again" in err
        with pytest.raises(WrongTypeError, match="is not complete"):
            BloomFilter(client, key, **OPTIONS)
        assert call(capsys, *at[:-1])[0] == 0
        assert call(capsys, *at, **hiding)[0] == 2
        assert client.scard(backup(key)) == 20


def test_the_mark_of_an_import(valkey: Server, key: str) -> None:
    """Until the swap the SET has one more member, with the documented prefix, and no other."""
    with valkey.client() as client:
        members = fill(client, key, 20)
        set_import(client, key).run(copy_only=True)
        (mark,) = client.smembers(key) - {member.encode() for member in members}
        assert mark.startswith(b"scrapy-bloom import ")
        assert is_mark(mark)
        report = set_import(client, key).run()
        assert (report.members, report.caught_up) == (20, 0)
        assert client.smembers(backup(key)) == {member.encode() for member in members}


def test_numbers_of_a_report(valkey: Server, key: str) -> None:
    """The report tells members known from a killed run from members added after the copy."""
    with valkey.client() as client:
        fill(client, key, 4)
        set_import(client, key).run(copy_only=True)
        known, late = ([fingerprint(number) for number in numbers] for numbers in (range(4, 7), range(7, 9)))
        UnfinishedFilter(client, staging(key), PARAMETERS, retry_timeout=5.0).add_many(known)
        client.sadd(key, *known, *late)
        report = set_import(client, key).run()
        assert (report.members, report.checked, report.added) == (9, 9, 4)
        assert (report.already_known, report.caught_up) == (3, 2)


def test_a_restarted_server_begins_the_scan_again(durable: Server, key: str) -> None:
    """After a server restart, which invalidates the cursor, no member is left out."""
    with FaultyClient(port=durable.port) as faulty, durable.client() as client:
        members = fill(client, key, 200)
        set_import(client, key).run(copy_only=True)
        faulty.arm(lambda: None, 60)
        with pytest.raises(KilledError):
            set_import(faulty, key).run()
        state = json.loads(client.hget(key, "import") or "")
        assert 0 < state["checked"] < 200
        durable.kill()
        durable.start()
        report = set_import(client, key).run()
        assert (report.members, report.checked) == (200, 200)
        assert all(BloomFilter(client, key, **OPTIONS).contains_many(members))


def test_numbers_after_a_restarted_server(durable: Server, key: str) -> None:
    """Members read before the restart are not counted twice."""
    with FaultyClient(port=durable.port) as faulty, durable.client() as client:
        fill(client, key, 200)
        faulty.arm(lambda: None, 60)
        with pytest.raises(KilledError):
            set_import(faulty, key).run()
        state = json.loads(client.hget(staging(key), "import") or "")
        assert 0 < state["copied"] < 200
        durable.kill()
        durable.start()
        report = set_import(client, key).run(copy_only=True)
        assert report.members == 200


def test_ctrl_c(valkey: Server, key: str, tmp_path: Path) -> None:
    """An interrupted import prints one line: run it again to continue."""
    with valkey.client() as client, forwarding(valkey.port) as link:
        fill(client, key, 20_000)
        # Slow enough to be interrupted.
        link.link = Link(rate=200_000)
        process = command.start("import", "--key", key, "--redis-url", link.url, cwd=tmp_path)
        until(lambda: client.exists(staging(key)))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert (process.returncode, out) == (130, "")
        assert err == "scrapy bloom: stopped: run the same command again to resume\n"


def test_old_workers_that_add(valkey: Server, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """While old workers add, the SET stays, unless an option overrides it."""
    added = count(1000)

    class Adding(redis.Redis):
        """A client beside which a worker with the old settings adds to the SET before each script."""

        def execute_command(self, *args: Any, **options: Any) -> Any:
            if args[0] in ("EVAL", "EVALSHA"):
                with contextlib.suppress(redis.ResponseError):
                    super().execute_command("SADD", key, fingerprint(next(added)))  # type: ignore[no-untyped-call]
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # as the parent's

    at, beside = ("--key", key, "--redis-url", valkey.url), {"REDIS_PARAMS": {"redis_cls": Adding}}
    with valkey.client() as client:
        fill(client, key, 300)
        code, out, err = call(capsys, *at, "--wait", "0", "--delete-source", **beside)
        assert (code, err) == (1, "")
        assert re.search(r"^The SET has grown by \d+ since the start: workers with the old settings", out, re.MULTILINE)
        assert "Stop the workers, and run this again: it copies the rest" in out
        code, out, _ = call(capsys, *at, "--wait", "0", "--json", **beside)
        said = json.loads(out)
        assert (code, said["source"], said["is_finished"], said["deleted_source"]) == (1, key, False, False)
        assert said["added_meanwhile"] > 0
        assert client.type(key) == b"set"
        code, out, _ = call(capsys, *at, "--while-crawling", "--json", **beside)
        said = json.loads(out)
        assert (code, said["source"], said["is_finished"]) == (0, backup(key), True)
        assert said["caught_up"] > 0


def test_wait(valkey: Server, key: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that adds only after the copy is noticed if the import waits for it."""
    with valkey.client() as client:
        fill(client, key, 20)
        waits = []

        def add(seconds: float) -> None:
            waits.append(seconds)
            client.sadd(key, fingerprint(777))

        monkeypatch.setattr(time, "sleep", add)
        assert call(capsys, "--key", key, "--redis-url", valkey.url, "--wait", "7.5")[0] == 1
        assert client.type(key) == b"set"
        assert call(capsys, "--key", key, "--redis-url", valkey.url)[0] == 0
        assert waits == [7.5, 5.0]


def test_a_set_that_was_begun_anew(valkey: Server, key: str) -> None:
    """Members copied from a deleted SET do not count as members of its successor."""
    with valkey.client() as client, FaultyClient(port=valkey.port) as faulty:
        old = fill(client, key, 100)
        faulty.arm(lambda: None, 40)
        with pytest.raises(KilledError):
            set_import(faulty, key).run()
        client.delete(key)
        new = fill(client, key, 100, first=1000)
        assert set_import(client, key).run().members == 100
        bloom = BloomFilter(client, key, **OPTIONS)
        assert all(bloom.contains_many(new))
        assert not any(bloom.contains_many(old))


def test_a_set_that_is_deleted_meanwhile(valkey: Server, key: str) -> None:
    """A crawl that ends deletes its SET; no filter is left that would call its pages seen."""
    with valkey.client() as client, FaultyClient(port=valkey.port) as faulty:
        fill(client, key, 100)
        faulty.arm(lambda: faulty.steps == 40 and client.delete(key))
        with pytest.raises(GoneError, match="was deleted while it was copied"):
            set_import(faulty, key).run()
        assert not keys_of(client, key)


def test_refusals(valkey: Server, key: str) -> None:
    """An unsuitable key is refused with advice, and no key is changed."""
    with valkey.client() as client:

        def refused(match: str, kind: type[Exception] = WrongTypeError, **options: Any) -> None:
            before = keys_of(client, key)
            with pytest.raises(kind, match=match):
                set_import(client, key, **options).run()
            assert keys_of(client, key) == before

        refused("there is no SET at")
        fill(client, backup(key), 3)
        refused("RENAME it to")
        fill(client, key, 3)
        refused("to which the swap moves the SET, holds a set")
        client.delete(backup(key), key)
        client.sadd(key, "https://example.com/")
        refused("has the member 'https://example.com/', which is not a fingerprint")
        client.delete(key)
        client.lpush(key, "a")
        refused("holds a list that is not a filter")
        client.delete(key)
        BloomFilter(client, key, **OPTIONS)
        refused("holds a filter already")
        client.hset(key, "unfinished", "restore")
        refused("`scrapy bloom restore` is filling")
        client.hset(key, "unfinished", "import")
        refused("its SET is gone")


def test_an_import_goes_on_with_its_own_parameters(valkey: Server, key: str) -> None:
    """An import continues only with its own parameters; workers refuse its incomplete filter."""
    with valkey.client() as client, FaultyClient(port=valkey.port) as faulty:
        fill(client, key, 20)
        set_import(client, key).run(copy_only=True)
        with pytest.raises(MismatchError, match="was begun with other parameters: capacity = 77 here, 1000 in the"):
            SetImport(client, key, replace(PARAMETERS, capacity=77), Silent(), retry_timeout=5.0).run()
        faulty.arm(lambda: None, 12)
        with pytest.raises(KilledError):
            set_import(faulty, key).run()
        assert client.type(key) == b"hash"
        with pytest.raises(WrongTypeError, match="`scrapy bloom import` is filling it"):
            BloomFilter(client, key, **OPTIONS)
        set_import(client, key).run()
        BloomFilter(client, key, **OPTIONS)


def test_what_stands_where_the_shards_go(valkey: Server, key: str) -> None:
    """A foreign string at a shard's key stops the copy; a leftover of an earlier filter is replaced."""
    with valkey.client() as client:
        members = fill(client, key, 20)
        client.set(f"{key}:0:0", "a stranger's")
        with pytest.raises(WrongTypeError, match="holds something that is not a filter's"):
            set_import(client, key).run()
        assert client.type(key) == b"set"
        BloomFilter(client, f"{key}:old", **OPTIONS).add("a")
        client.rename(f"{key}:old:0:0", f"{key}:0:0")
        set_import(client, key).run()
        assert all(BloomFilter(client, key, **OPTIONS).contains_many(members))


def test_an_unpaired_brace(valkey: Server, key: str) -> None:
    """In a cluster, the SET cannot be moved to a key of another slot: the error gives the reason."""
    with ClusterLike(port=valkey.port) as client, pytest.raises(ConfigError, match="the unpaired brace puts"):
        set_import(client, f"{key}}}:dupefilter")


def test_keys_that_differ_in_braces(valkey: Server, key: str) -> None:
    """An import is refused while another one uses its staging key."""
    with valkey.client() as client:
        fill(client, key, 20)
        fill(client, f"{{{key}}}", 20)
        set_import(client, key).run(copy_only=True)
        with pytest.raises(WrongTypeError, match=f"holds the import of '{key}'"):
            set_import(client, f"{{{key}}}").run()
        assert set_import(client, key).run().members == 20


def binary(*fingerprints: bytes) -> bytes:
    """Return `requests.seen` as Scrapy 2.19 writes it."""
    return b"".join(len(each).to_bytes(2, "big") + each for each in fingerprints)


def lines(*fingerprints: bytes) -> bytes:
    """Return `requests.seen` as Scrapy 2.13 writes it."""
    return b"".join(each.hex().encode() + b"\n" for each in fingerprints)


# The bytes missing at the end; a line without its end is whole.
CUTS = [*((binary, missing) for missing in (0, 1, 19, 20, 21)), *((lines, missing) for missing in (0, 2, 20, 40))]


@pytest.mark.parametrize("cut", CUTS, ids=[f"{form.__name__}-{missing}" for form, missing in CUTS])
def test_seen_requests_of_scrapy(
    cut: tuple[Callable[..., bytes], int],
    valkey: Server,
    key: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Both formats of `requests.seen` are read; an incomplete fingerprint at the end is ignored with a warning."""
    form, missing = cut
    fingerprints = [scrapys(Request(f"https://example.com/{number}")) for number in range(1500)]
    content = form(*fingerprints)
    file = tmp_path / "requests.seen"
    file.write_bytes(content[: len(content) - missing])
    scheme = "scrapy.utils.request.RequestFingerprinter"
    at = ("--key", key, "--redis-url", valkey.url, "--from-file", str(file))
    assert command.call("import", *at, REQUEST_FINGERPRINTER_CLASS=scheme) == 0
    with valkey.client() as client:
        bloom = BloomFilter(client, key, **{**OPTIONS, "capacity": 1_000_000, "fingerprint": scheme})
        found = bloom.contains_many([each.hex() for each in fingerprints])
    assert found == [True] * 1499 + [not missing]
    assert capsys.readouterr().err.count("the last fingerprint is incomplete") == bool(missing)


def test_a_fingerprint_without_its_line_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A last line without its end is complete if all digits are there."""
    path = tmp_path / "requests.seen"
    path.write_bytes(lines(b"a" * 20, b"b" * 20).rstrip())
    assert kind_of(path) == FINGERPRINTS
    assert not caplog.text


def test_files(valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of fingerprints or URLs are imported; a mixed file is refused."""
    at = ("--key", key, "--redis-url", valkey.url)
    chosen = {"REQUEST_FINGERPRINTER_CLASS": "scrapy.utils.request.RequestFingerprinter"}
    seen, urls, wrong = tmp_path / "requests.seen", tmp_path / "urls", tmp_path / "wrong"
    request = Request("https://example.com/?b=1&a=2")
    seen.write_text("".join(f"{scrapys(Request(f'https://example.com/{number}')).hex()}\n" for number in range(2500)))
    urls.write_text(f"{request.url}\n\nhttps://example.com/7\n{request.url}\n")
    wrong.write_text(f"https://example.com/1\n{fingerprint(1)}\n")
    with valkey.client() as client:
        code, _, err = call(capsys, *at, "--from-file", str(seen))
        assert code == 2
        assert "Set REQUEST_FINGERPRINTER_CLASS = 'scrapy.utils.request.RequestFingerprinter'" in err
        code, _, err = call(capsys, *at, "--from-file", str(wrong), **chosen)
        assert code == 2
        assert "line 2 is" in err
        assert not client.exists(key)
        code, out, _ = call(capsys, *at, "--from-file", str(seen), "--json", **chosen)
        assert code == 0
        assert (json.loads(out)["members"], json.loads(out)["added"]) == (2500, 2500)
        code, out, _ = call(capsys, *at, "--from-file", str(urls), **chosen)
        assert code == 0
        assert "1 new, 2 known before" in out
        fills = {**OPTIONS, "capacity": 1_000_000, "fingerprint": chosen["REQUEST_FINGERPRINTER_CLASS"]}
        bloom = BloomFilter(client, key, **fills)
        assert scrapys(Request("https://example.com/?a=2&b=1")).hex() in bloom
        assert scrapys(Request("https://example.com/2499")).hex() in bloom


def test_fingerprints_in_capitals(valkey: Server, key: str, tmp_path: Path) -> None:
    """Fingerprints in capitals, as other programs write them, find their requests."""
    file = tmp_path / "fingerprints"
    with valkey.client() as client:
        dupefilter = BloomRFPDupeFilter(client, key)
        requests = [Request(f"https://example.com/{number}") for number in range(20)]
        lines = [dupefilter.request_fingerprint(request).upper() for request in requests]
        assert not any(line.islower() for line in lines)
        file.write_text("\n".join(lines))
        assert command.call("import", "--key", key, "--redis-url", valkey.url, "--from-file", str(file)) == 0
        assert all(map(dupefilter.request_seen, requests))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"", "the file is empty"),
        (b"\n\nexample.com\n", "line 3 is 'example.com'; it must be"),
        (b"https://example.com/\n/about\n", "line 2 is '/about'"),
        (b"https://example.com/\nhttps://[::1\n", "line 2 is"),
        (b"https://example.com/\nhttps://example.com/\xff\n", "line 2 is"),
        (b"https://example.com/" + b"a" * (1 << 21), "must be of the same kind"),
        (b"\x89PNG\r\n\x1a\n", r"line 1 is no printable UTF-8 text \(4 bytes\)"),
        (bytes(100), "the length of its record 1 is 0 bytes: each must be a fingerprint of 20 bytes"),
        (binary(b"\xff" * 16), r"the length of its record 1 is 16 bytes.*Nothing was changed$"),
        (binary(b"\xfe" * 20) * 2 + b"\0\x14\xfe" + binary(b"\xff" * 20) * 2, "keep the first 66 bytes of the file"),
        (lines(b"a" * 20) + binary(b"\xff" * 20), "line 2 is no printable UTF-8 text"),
        (b"https://example.com/\nabc", "line 2 is 'abc'"),
    ],
    ids=[
        "empty",
        "other",
        "mixed",
        "broken",
        "no text",
        "endless",
        "image",
        "binary",
        "other length",
        "resumed",
        "both",
        "short",
    ],
)
def test_lines_that_are_refused(tmp_path: Path, text: bytes, match: str) -> None:
    """A file of neither fingerprints nor URLs is refused with the number of its first wrong line, in printable text."""
    path = tmp_path / "lines"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=match) as caught:
        kind_of(path)
    assert str(caught.value).replace("…", "").isascii()
    assert str(caught.value).isprintable()


def test_options_that_are_refused(valkey: Server, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Options that do not apply, and fingerprints that no SET has, are refused."""
    at = ("--key", key, "--redis-url", valkey.url)
    assert "--capacity = 'many': must" in call(capsys, *at, "--capacity", "many")[2]
    assert "are for a SET" in call(capsys, *at, "--from-file", "x", "--delete-source")[2]
    assert "are for a SET" in call(capsys, *at, "--from-file", "x", "--wait", "1")[2]
    assert "--copy-only" in call(capsys, *at, "--copy-only", "--delete-source")[2]
    for seconds in ("-1", "nan", "1e9"):
        code, _, err = call(capsys, *at, "--wait", seconds)
        assert code == 2
        assert err.startswith(f"scrapy bloom: --wait = {float(seconds):g}: must be 0 to 86,400 seconds")
    chosen = {"REQUEST_FINGERPRINTER_CLASS": "scrapy.utils.request.RequestFingerprinter"}
    assert "Remove REQUEST_FINGERPRINTER_CLASS" in call(capsys, *at, **chosen)[2]
    code, _, err = call(capsys, *at, "--from-file", "nowhere")
    assert (code, err) == (2, "scrapy bloom: --from-file nowhere: there is no such file\n")


@pytest.mark.crawl
def test_crawlers_run_meanwhile(valkey: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two crawls add to the SET while the import is killed and rerun; no page is fetched twice."""
    spider = f"{key}:links"
    stock = {
        "SCHEDULER": crawling.REDIS_SCHEDULER,
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER_PERSIST": True,
        "SCHEDULER_DUPEFILTER_KEY": spider,
        "SCHEDULER_QUEUE_KEY": f"{spider}:requests",
        "REDIS_URL": valkey.url,
        "CONCURRENT_REQUESTS": 4,
    }
    ours = {"SCHEDULER": "scrapy_bloom.BloomScheduler", "DUPEFILTER_CLASS": crawling.BLOOM}
    at = ("import", "--key", spider, "--redis-url", valkey.url)
    with serving(tree(PAGES)) as site, valkey.client() as client:
        fill(client, spider, 10_000)
        site.before = gate = Gate(10)
        with (
            crawling.crawling("one", f"{site.url}/", tmp_path, **stock) as one,
            crawling.crawling("two", f"{site.url}/", tmp_path, **stock) as two,
        ):
            until(lambda: len(site.fetched) > 10)
            before = client.scard(spider)
            killed = command.start(*at, "--copy-only", cwd=tmp_path)
            until(lambda: client.exists(staging(spider)))
            gate.raise_to(16)
            killed.kill()
            killed.communicate()
            assert client.type(spider) == b"set"
            report = json.loads(call(capsys, *at[1:], "--copy-only", "--json")[1])
            assert report["members"] > before
            for worker in (one, two):
                worker.process.send_signal(signal.SIGINT)
            gate.raise_to(PAGES)
            for worker in (one, two):
                worker.wait()
        members = len([each for each in client.smembers(spider) if not is_mark(each)])
        assert report["members"] < members < 10_000 + PAGES
        report = json.loads(call(capsys, *at[1:], "--json")[1])
        assert report["members"] == report["checked"] == members
        assert report["caught_up"] > 0
        crawling.crawl("three", f"{site.url}/", tmp_path, **{**stock, **ours})
        assert sorted(site.paths) == sorted(map(path_of, range(PAGES)))
