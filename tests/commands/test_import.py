"""`scrapy bloom import`: move a SET into a filter, and add the lines of a file."""

import json
import signal
from collections.abc import Callable
from functools import partial
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import Request
from scrapy.utils.request import fingerprint as scrapys

from scrapy_bloom import BloomFilter
from scrapy_bloom.cli.requests import read_lines
from scrapy_bloom.errors import ConfigError
from tests.commands.conftest import Said, Say
from tests.support import command
from tests.support.imports import (
    AFTER,
    BEFORE,
    LOST,
    OPTIONS,
    KilledError,
    backup,
    each_moment,
    faulty,
    fill,
    fingerprint,
    keys_of,
)
from tests.support.proxy.link import Link, forwarding
from tests.support.servers import Server
from tests.support.waiting import until

SCRAPYS = {"REQUEST_FINGERPRINTER_CLASS": "scrapy.utils.request.RequestFingerprinter"}
NEW_PAGES = [f"page {number}" for number in range(50)]

Run = Callable[..., Said]


@pytest.fixture
def run(say: Say) -> Run:
    """Runs the command with a capacity of 1,000 in this process; returns its exit code and output."""
    return partial(say, "import", "--capacity", "1000")


@pytest.fixture
def client(valkey: Server) -> Any:
    """A plain client of the server."""
    with valkey.client() as client:
        yield client


def has_all(client: redis.Redis, key: str, members: list[str]) -> bool:
    """Return whether a filter has all members."""
    return all(BloomFilter(client, key, **OPTIONS).contains_many(members))


def assert_imported(client: redis.Redis, key: str, members: list[str]) -> None:
    """Assert that a filter has every member, beside the whole SET."""
    assert has_all(client, key, members)
    assert client.smembers(backup(key)) == {member.encode() for member in members}


# A SET.


def test_outside_a_project(server: Server, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All members are in a filter of the given parameters; a second run adds none, and may delete the SET."""
    at = ("import", "--key", key, "--redis-url", server.url, "--capacity", "5000", "--error-rate", "1e-4")
    with server.client() as client:
        members = fill(client, key, 3000)
        assert command.call(*at, "--json") == 0
        out, err = capsys.readouterr()
        assert not err
        said = json.loads(out)
        known = said.pop("already_known")
        assert known < 10
        report = {"key": key, "source": backup(key), "members": 3000, "added": 3000 - known, "deleted_source": False}
        assert said == report
        bloom = BloomFilter(client, key, capacity=5000, error_rate=1e-4, fingerprint="scrapy-redis")
        assert bloom.info().count == 3000 - known
        assert all(bloom.contains_many(members))
        assert client.scard(backup(key)) == 3000
        assert not [name for name in keys_of(client, key) if ":call:" in name]

        assert command.call(*at) == 0
        out = capsys.readouterr().out
        assert out.startswith(
            f"Added 3,000 members of {backup(key)} to the filter at {key!r}: 0 new, 3,000 known before."
        )
        assert "The SET stays until you delete it." in out
        assert command.call(*at, "--delete-source") == 0
        assert "The SET was deleted." in capsys.readouterr().out
        assert not client.exists(backup(key))
        assert all(bloom.contains_many(members))
        assert command.call(*at) == 2
        assert f"there is no SET at {key!r}, nor at '{backup(key)}'" in capsys.readouterr().err


@pytest.mark.parametrize("members", [1000, 1001])
def test_more_members_than_the_capacity(client: redis.Redis, key: str, run: Run, members: int) -> None:
    """The filter grows with the first member beyond the capacity, and a warning gives the capacity to set."""
    found = fill(client, key, members)
    err = run()[2]
    text = f"BLOOMFILTER_CAPACITY = 1_000, but the SET at '{key}' has 1,001 members: the filter grows"
    assert (text in err) == ("set a capacity above 1_001" in err) == (members == 1001)
    bloom = BloomFilter(client, key, **OPTIONS)
    assert bloom.info().layers == members - 999
    assert all(bloom.contains_many(found))


class Hiding(faulty()):  # type: ignore[misc]  # a class made by a function
    """A client of a server that never returns one of the SET's members."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        reply = super().execute_command(*args, **options)
        if args[0] == "SSCAN":
            reply = reply[0], [member for member in reply[1] if member != fingerprint(7).encode()]
        return reply


def test_a_server_that_does_not_show_all(client: redis.Redis, key: str, run: Run) -> None:
    """Members are counted: if a scan misses one, the import fails, and the SET stays; the next one may delete it."""
    members = fill(client, key, 20)
    code, _, err = run("--delete-source", kind=Hiding)
    assert code == 2
    assert f"returned 19 of 20 members of the SET at '{backup(key)}': run this again" in err
    assert client.scard(backup(key)) == 20
    code, out, _ = run("--delete-source", "--json")
    said = json.loads(out)
    assert (code, said["deleted_source"], said["added"], client.exists(backup(key))) == (0, True, 1, 0)
    assert has_all(client, key, members)


# Kills, losses and others at any moment.


@pytest.mark.parametrize("how", [BEFORE, AFTER, LOST])
def test_every_moment(client: redis.Redis, key: str, run: Run, how: str) -> None:
    """At each command the import is killed, or a reply is lost: a second run completes it."""
    for moment in each_moment():
        name = f"{key}:{moment.at}"
        members, moment.kind = fill(client, name, 1200), faulty(at=moment.at, how=how)
        try:
            assert run(at=name, kind=moment.kind)[0] == 0
        except KilledError:
            assert run(at=name)[0] == 0
        assert_imported(client, name, members)
        client.unlink(*keys_of(client, name))
    assert moment.at > 12


def test_an_old_worker_at_any_moment(client: redis.Redis, key: str, run: Run) -> None:
    """A worker of scrapy-redis adds to the SET: its page is imported, refused, or in a second SET, which is named."""
    states = set()
    for moment in each_moment():
        name, taken = f"{key}:{moment.at}", list[str]()
        members = fill(client, name, 1200)

        def add(name: str = name, taken: list[str] = taken) -> None:
            try:
                client.sadd(name, fingerprint(1200))
                taken.append(fingerprint(1200))
            except redis.ResponseError:  # WRONGTYPE
                pass

        code = run(at=name, kind=moment.act(add))[0]
        if client.type(name) == b"set" and client.exists(backup(name)):
            code, _, err = run(at=name)
            assert (code, f"{backup(name)!r}, to which an import moves the SET at {name!r}, is not empty" in err) == (
                2,
                True,
            )
            client.sunionstore(backup(name), [backup(name), name])
            client.delete(name)
            code = 3
        states.add((code, bool(taken)))
        if code:
            assert run(at=name)[0] == 0
        assert_imported(client, name, [*members, *taken])
    assert states == {(0, True), (0, False), (3, True)}


def begin_anew(client: redis.Redis, key: str, _: Run) -> None:
    if client.type(key) == b"hash":
        client.delete(key)
        BloomFilter(client, key, **OPTIONS).add_many(NEW_PAGES)


def evict(client: redis.Redis, key: str, _: Run) -> None:
    for name in keys_of(client, key):
        if name.endswith(":0"):
            client.delete(name)


def replace_set(client: redis.Redis, key: str, _: Run) -> None:
    client.set(backup(key), "mine")


def import_too(_: redis.Redis, key: str, run: Run) -> None:
    run(at=key)


# Acts of others at any moment, and the least number of moments at which they end the import with an error.
OTHERS: dict[str, tuple[Callable[[redis.Redis, str, Run], object], int]] = {
    "a new crawl": (begin_anew, 4),
    "an eviction": (evict, 4),
    "another key": (replace_set, 4),
    "a deletion": (lambda client, key, _: client.delete(key, backup(key)), 4),
    "an import": (import_too, 0),
}


@pytest.mark.parametrize("other", OTHERS)
def test_others_at_any_moment(client: redis.Redis, key: str, run: Run, other: str) -> None:
    """If an import is told as done, every member was added; otherwise the error says what to do."""
    (act, least), whole, refused = OTHERS[other], faulty(), 0
    for name in (f"{key}:first", f"{key}:second"):  # the first one makes the scripts known
        fill(client, name, 1200)
        whole = faulty()
        assert run(at=name, kind=whole)[0] == 0
    for moment in each_moment():
        name = f"{key}:{moment.at}"
        members = fill(client, name, 1200)
        code, _, err = run(at=name, kind=moment.act(act, client, name, run))
        if moment.at > whole.steps - 3:  # after the last addition: the members were in
            break
        if code:
            refused += 1
            advice = ("run this again", "rename or delete it", "WRONGTYPE", "there is no SET", "no such key")
            assert any(text in err for text in advice), err
            if client.type(backup(name)) == b"set":
                assert run(at=name)[0] == 0
        if not code or client.type(backup(name)) == b"set":
            assert has_all(client, name, members)
        assert other != "another key" or client.get(backup(name)) == b"mine"
    assert refused >= least


@pytest.mark.parametrize("before_the_end", [0, 2, 4, 6])
def test_a_server_is_restarted(durable: Server, key: str, before_the_end: int) -> None:
    """A restarted server does not know the cursor of the scan, and may lack bits: the import is refused."""
    with durable.client() as client:
        members = fill(client, key, 1200)
        place = ("--redis-url", durable.url, "--capacity", "1000")
        for first in (f"first:{key}", f"second:{key}"):  # the first one makes the scripts known
            fill(client, first, 1200)
            kind = faulty()
            assert command.call("import", "--key", first, *place, REDIS_PARAMS={"redis_cls": kind}) == 0

        def restart(step: int) -> None:
            if step == kind.steps - before_the_end:
                durable.kill()
                durable.start()

        restarting = faulty(restart)
        assert command.call("import", "--key", key, *place, REDIS_PARAMS={"redis_cls": restarting}) == 2
        assert command.call("import", "--key", key, *place) == 0
        assert_imported(client, key, members)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_signals(number: signal.Signals, valkey: Server, client: redis.Redis, key: str, tmp_path: Path) -> None:
    """After Ctrl-C, which prints one line, or a kill a second run completes the import."""
    with forwarding(valkey.port) as link:
        members = fill(client, key, 20_000)
        # Slow enough to be interrupted.
        link.link = Link(rate=200_000)
        at = ("import", "--key", key, "--capacity", "20000")
        process = command.start(*at, "--redis-url", link.url, cwd=tmp_path)
        until(lambda: client.type(key) == b"hash" and client.hget(key, "count") != b"0")
        process.send_signal(number)
        out, err = process.communicate()
        said = "scrapy bloom: stopped: run the same command again; nothing is lost\n"
        expected = (130, "", said) if number == signal.SIGINT else (-signal.SIGKILL, "", "")
        assert (process.returncode, out, err) == expected
        assert command.call(*at, "--redis-url", valkey.url) == 0
        bloom = BloomFilter(client, key, **{**OPTIONS, "capacity": 20_000})
        assert all(bloom.contains_many(members))
        assert bloom.info().count <= 20_000


# Refusals.

Put = Callable[[redis.Redis, str], object]
REFUSED: dict[str, tuple[Put, str]] = {
    "nothing": (lambda *_: None, "there is no SET at"),
    "two SETs": (lambda client, key: (fill(client, backup(key), 3), fill(client, key, 3)), "join both SETs there by"),
    "other members": (
        lambda client, key: client.sadd(key, "https://example.com/"),
        "has the member 'https://example.com/', which is not a fingerprint",
    ),
    "a list": (lambda client, key: client.lpush(key, "a"), "holds a list that is not a filter"),
    "a filter": (lambda client, key: BloomFilter(client, key, **OPTIONS), "there is no SET at"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(client: redis.Redis, key: str, run: Run, name: str) -> None:
    """An unsuitable key is refused with advice, and no key is changed."""
    put, text = REFUSED[name]
    put(client, key)
    before = {each: client.dump(each) for each in keys_of(client, key)}
    code, _, err = run()
    assert (code, text in err) == (2, True), err
    assert {each: client.dump(each) for each in keys_of(client, key)} == before


def test_a_crawl_with_another_dupefilter(client: redis.Redis, key: str, url: str, tmp_path: Path) -> None:
    """A SET or a file is not imported or restored for another package's dupefilter, which would never open it."""
    members = fill(client, key, 3)
    (tmp_path / "urls").write_text("https://example.com/\n")
    settings, stock = {"REDIS_URL": url, "SCHEDULER_DUPEFILTER_KEY": key}, "scrapy_redis.dupefilter.RFPDupeFilter"
    own = command.make_project(tmp_path / "own", **settings)
    other = command.make_project(tmp_path / "other", **settings, DUPEFILTER_CLASS=stock)
    file = str(tmp_path / "urls")
    for action, *words in (("import",), ("import", "--from-file", file), ("restore", file)):
        said = command.run(action, "shop", *words, cwd=other)
        assert said.returncode == 2
        assert f"DUPEFILTER_CLASS = {stock!r}: a crawl with this" in said.stderr
        assert "remove DUPEFILTER_CLASS from the project and the spider, and have" in said.stderr
    assert client.smembers(key) == {member.encode() for member in members}
    assert command.run("import", "shop", cwd=own).returncode == 0


def test_options_that_are_refused(run: Run) -> None:
    """Options that do not apply, and fingerprints that no SET has, are refused."""
    assert "--delete-source is for a SET" in run("--from-file", "x", "--delete-source")[2]
    assert "remove REQUEST_FINGERPRINTER_CLASS" in run(**SCRAPYS)[2]
    code, _, err = run("--from-file", "nowhere")
    assert (code, err) == (2, "scrapy bloom: nowhere: No such file or directory\n")


# A file.


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
    cut: tuple[Callable[..., bytes], int], client: redis.Redis, key: str, tmp_path: Path, run: Run
) -> None:
    """Both formats of `requests.seen` are read; an incomplete fingerprint at the end is ignored with a warning."""
    form, missing = cut
    fingerprints = [scrapys(Request(f"https://example.com/{number}")) for number in range(1500)]
    content = form(*fingerprints)
    file = tmp_path / "requests.seen"
    file.write_bytes(content[: len(content) - missing])
    code, _, err = run("--from-file", file, **SCRAPYS)
    assert code == 0
    bloom = BloomFilter(client, key, **{**OPTIONS, "fingerprint": SCRAPYS["REQUEST_FINGERPRINTER_CLASS"]})
    assert bloom.contains_many([each.hex() for each in fingerprints]) == [True] * 1499 + [not missing]
    assert err.count("the last fingerprint is incomplete") == bool(missing)


def test_files(client: redis.Redis, key: str, tmp_path: Path, run: Run) -> None:
    """Files of fingerprints, in capitals too, and URLs are imported, again without harm."""
    seen, urls = tmp_path / "requests.seen", tmp_path / "urls"
    request = Request("https://example.com/?b=1&a=2")
    seen.write_text("".join(f"{scrapys(Request(f'https://example.com/{number}')).hex()}\n" for number in range(2500)))
    urls.write_text("wrong\n")
    assert (run("--from-file", urls)[0], client.exists(key)) == (2, 0)
    urls.write_text(f"{request.url}\n\nhttps://example.com/7\n{request.url}\n{scrapys(request).hex().upper()}\n")
    code, _, err = run("--from-file", seen)
    assert code == 2
    assert "set REQUEST_FINGERPRINTER_CLASS = 'scrapy.utils.request.RequestFingerprinter'" in err
    said = json.loads(run("--from-file", seen, "--json", **SCRAPYS)[1])
    assert (said["members"], said["added"], said["source"]) == (2500, 2500, str(seen))
    for new, known in ((1, 3), (0, 4)):
        code, out, _ = run("--from-file", urls, **SCRAPYS)
        assert code == 0
        assert f"Added 4 lines of {urls} to the filter at '{key}': {new} new, {known} known before" in out
    bloom = BloomFilter(client, key, **{**OPTIONS, "fingerprint": SCRAPYS["REQUEST_FINGERPRINTER_CLASS"]})
    assert scrapys(Request("https://example.com/?a=2&b=1")).hex() in bloom
    assert scrapys(Request("https://example.com/2499")).hex() in bloom


@pytest.mark.parametrize(
    ("text", "match"),
    [
        pytest.param(b"", "the file is empty", id="empty"),
        pytest.param(b"\n\n", "the file is empty", id="blank"),
        pytest.param(b"\n\nexample.com\n", "line 3 is b'example.com', but must be", id="other"),
        pytest.param(b"https://example.com/\n/about\n", "line 2 is b'/about'", id="path"),
        pytest.param(b"https://example.com/\nhttps://[::1\n", "line 2 is", id="broken"),
        pytest.param(b"http://example.com:abc/\n", "line 1 is", id="port"),
        pytest.param(b"https://example.com/\nhttps://example.com/\xff\n", "line 2 is", id="no text"),
        pytest.param(b"a" * (1 << 21), "line 1 is b'aaa", id="endless"),
        pytest.param(b"\x89PNG\r\n\x1a\n", r"line 1 is b'.x89PNG', but", id="image"),
        pytest.param(bytes(100), "record 1 has 0 bytes, but must have 20", id="binary"),
        pytest.param(binary(b"\xff" * 16), "record 1 has 16 bytes", id="other length"),
        pytest.param(
            binary(b"\xfe" * 20) * 2 + b"\0\x14\xfe" + binary(b"\xff" * 20) * 2,
            "keep the first 66 bytes of the file",
            id="resumed",
        ),
        pytest.param(lines(b"a" * 20) + binary(b"\xff" * 20), "line 2 is b'.x00", id="both"),
        pytest.param(b"https://example.com/\nabc", "line 2 is b'abc'", id="short"),
    ],
)
def test_lines_that_are_refused(text: bytes, match: str) -> None:
    """A line that is neither a fingerprint nor a URL is refused with its number, in printable text."""
    with pytest.raises(ConfigError, match=match) as caught:
        list(read_lines("lines", BufferedReader(BytesIO(text))))
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()
