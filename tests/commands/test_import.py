"""`scrapy bloom import`: move a SET into a filter, and add the lines of a file."""

import json
import os
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

from devtools.site import path_of, serving
from scrapy_bloom import BloomFilter
from scrapy_bloom.cli._requests import read_lines
from scrapy_bloom.errors import ConfigError, WrongTypeError
from scrapy_bloom.filter.info import read_filter
from tests.commands.conftest import Said, Say
from tests.support import command, crawling
from tests.support.imports import (
    AFTER,
    BEFORE,
    LOST,
    OPTIONS,
    PARAMETERS,
    KilledError,
    backup,
    each_moment,
    faulty,
    fill,
    fingerprint,
    keys_of,
)
from tests.support.live_worker import LiveWorker
from tests.support.pages import tree
from tests.support.proxy.link import Link, forwarding
from tests.support.servers import Server
from tests.support.waiting import until

PAGES = 80
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
    """Return whether an open filter has all members."""
    return all(BloomFilter(client, key, **OPTIONS).contains_many(members))


def assert_imported(client: redis.Redis, key: str, members: list[str]) -> None:
    """Assert that a filter has every member, beside the whole SET and no other key."""
    assert has_all(client, key, members)
    assert client.smembers(backup(key)) == {member.encode() for member in members}
    found = read_filter(client, key)
    assert found is not None
    assert found.unfinished is None
    shards = {name for name in keys_of(client, key) - {key, backup(key)} if name.startswith(f"{{{key}}}:{found.id}:")}
    assert keys_of(client, key) == {key, backup(key), *shards}


# A SET.


def test_outside_a_project(server: Server, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All members are in a filter of the given parameters; a second run reports the same, and deletes the SET."""
    at = ("import", "--key", key, "--redis-url", server.url, "--capacity", "5000", "--error-rate", "1e-4")
    with server.client() as client:
        members = fill(client, key, 3000)
        assert command.call(*at, "--json") == 0
        out, err = capsys.readouterr()
        assert not err
        said = json.loads(out)
        assert min(said.pop("seconds"), said.pop("members_a_second")) > 0
        known = said.pop("already_known")
        assert known < 10
        report = {"key": key, "source": backup(key), "members": 3000, "added": 3000 - known, "deleted_source": False}
        assert said == report
        bloom = BloomFilter(client, key, capacity=5000, error_rate=1e-4, fingerprint="scrapy-redis")
        assert all(bloom.contains_many(members))
        assert client.scard(backup(key)) == 3000

        assert command.call(*at) == 0
        out = capsys.readouterr().out
        assert "has every member of the SET: 3,000" in out
        assert f"The SET is at '{backup(key)}' until you run this again with --delete-source." in out
        assert command.call(*at, "--delete-source") == 0
        assert "The SET was deleted." in capsys.readouterr().out
        assert not client.exists(backup(key))
        assert all(bloom.contains_many(members))
        assert command.call(*at) == 0
        assert "The SET was deleted." in capsys.readouterr().out


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 3}], ids=str)
def test_any_reply(client: redis.Redis, key: str, run: Run, options: dict[str, Any]) -> None:
    """Members are imported as their stored bytes, with every protocol and type of reply."""
    members = fill(client, key, 20)
    assert run(REDIS_PARAMS=options)[0] == 0
    assert has_all(client, key, members)


def test_more_members_than_the_capacity(client: redis.Redis, key: str, run: Run) -> None:
    """The filter grows with the first member beyond the capacity, and a warning gives the capacity to set."""
    fill(client, key, 1000)
    assert "1,000 members" not in run()[2]
    client.delete(key)
    members = fill(client, key, 1001)
    client.delete(backup(key))
    _, _, err = run()
    assert "BLOOMFILTER_CAPACITY = 1_000, but the SET at" in err
    assert "has 1,001 members: the filter grows" in err
    assert "set a capacity above 1_001" in err
    bloom = BloomFilter(client, key, **OPTIONS)
    assert bloom.info().layers == 2
    assert all(bloom.contains_many(members))


class Hiding(faulty()):  # type: ignore[misc]  # a class made by a function
    """A client of a server that never returns one of the SET's members."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        reply = super().execute_command(*args, **options)
        if args[0] == "SSCAN":
            reply = reply[0], [member for member in reply[1] if member != fingerprint(7).encode()]
        return reply


def test_a_server_that_does_not_show_all(client: redis.Redis, key: str, run: Run) -> None:
    """Members are counted: if a scan misses one, the import fails, and the SET stays; --delete-source deletes it."""
    members = fill(client, key, 20)
    code, _, err = run("--delete-source", kind=Hiding)
    assert code == 2
    assert f"the server returned 19 of 20 members of the SET at '{backup(key)}': run this again" in err
    with pytest.raises(WrongTypeError, match="is not complete"):
        BloomFilter(client, key, **OPTIONS)
    assert client.scard(backup(key)) == 20
    code, out, _ = run("--delete-source", "--json")
    assert (code, json.loads(out)["deleted_source"], client.exists(backup(key))) == (0, True, 0)
    assert has_all(client, key, members)


# Kills, losses and others at any moment.


@pytest.mark.parametrize("how", [BEFORE, AFTER, LOST])
def test_every_moment(client: redis.Redis, key: str, run: Run, how: str) -> None:
    """At each command the import is killed, or a reply is lost, while an old worker adds to the SET.

    No member that the SET took is lost, and no incomplete filter can be opened.
    """
    for moment in each_moment():
        name = f"{key}:{moment.at}"
        accepted, refusals = fill(client, name, 1200), list[str]()

        def add(_: int, name: str = name, accepted: list[str] = accepted, refusals: list[str] = refusals) -> None:
            member = fingerprint(len(accepted))
            try:
                client.sadd(name, member)
            except redis.ResponseError as error:
                refusals.append(str(error))
            else:
                accepted.append(member)

        moment.kind = faulty(add, moment.at, how)
        try:
            assert run(at=name, kind=moment.kind)[0] == 0
        except KilledError:
            try:
                assert has_all(client, name, accepted)
            except WrongTypeError:  # a SET, or not complete
                assert run(at=name)[0] == 0
        assert all("WRONGTYPE" in text for text in refusals)
        if client.exists(backup(name)):
            assert_imported(client, name, accepted)
        client.unlink(*keys_of(client, name))
    assert moment.at > 12


def test_a_killed_import_begins_again(client: redis.Redis, key: str, tmp_path: Path, run: Run) -> None:
    """A second run may have other parameters, and the first one's shards are gone; no file is imported before."""
    (tmp_path / "urls").write_text("https://example.com/\n")
    members = fill(client, key, 1200)
    fill(client, f"{key}:first", 3)
    assert run(at=f"{key}:first")[0] == 0  # makes the scripts known
    with pytest.raises(KilledError):
        run(kind=faulty(at=12))
    begun = read_filter(client, key)
    assert begun is not None
    assert begun.info.count > 0
    code, _, err = run("--from-file", str(tmp_path / "urls"))
    assert (code, "is not complete" in err) == (2, True)
    with pytest.raises(WrongTypeError, match="not complete: `scrapy bloom import` is filling it, or was stopped; run"):
        BloomFilter(client, key, **OPTIONS)
    assert run("--capacity", "5000")[0] == 0
    assert not [name for name in keys_of(client, key) if begun.id in name]
    assert all(BloomFilter(client, key, **{**OPTIONS, "capacity": 5000}).contains_many(members))


def test_two_at_once(client: redis.Redis, key: str, run: Run) -> None:
    """A second import begins at each command of the first, which is refused if that has replaced its filter."""
    told = 0
    for moment in each_moment():
        name = f"{key}:{moment.at}"
        members = fill(client, name, 1200)
        second: list[Any] = []
        code, _, err = run(at=name, kind=moment.act(lambda at, codes: codes.append(run(at=at)[0]), name, second))
        assert second in ([], [0])
        # Beside the warning of the capacity.
        complaints = [line for line in err.splitlines() if "BLOOMFILTER_CAPACITY" not in line]
        assert (code, bool(complaints)) in ((0, False), (2, True))
        told += code == 2
        assert_imported(client, name, members)
    assert told > 5


def test_another_import_is_completed_at_any_moment(client: redis.Redis, key: str, run: Run) -> None:
    """An import does not delete the filter that another one completes, with its SET, after this one has looked."""

    def complete(name: str, begun: Any) -> None:
        if client.hget(name, "id") == begun:
            client.hset(name, "parameters", PARAMETERS.to_json())
            client.delete(backup(name))

    stayed = 0
    for moment in each_moment():
        name = f"{key}:{moment.at}"
        members = fill(client, name, 1200)
        with pytest.raises(KilledError):
            run(at=name, kind=faulty(at=12, how=AFTER))
        begun = client.hget(name, "id")
        code = run(at=name, kind=moment.act(complete, name, begun))[0]
        if not client.exists(backup(name)):
            stayed += 1
            assert (code, client.hget(name, "id")) == (2, begun)
        else:
            assert_imported(client, name, members)
    assert stayed > 3


def test_a_new_crawl_at_any_moment(client: redis.Redis, key: str, run: Run) -> None:
    """The SET or the filter is deleted, and a worker begins anew at its key: the import leaves its filter alone."""

    def begin_anew(name: str) -> None:
        client.delete(name)
        BloomFilter(client, name, **OPTIONS).add_many(NEW_PAGES)

    abandoned = 0
    for moment in each_moment():
        name = f"{key}:{moment.at}"
        members = fill(client, name, 1200)
        code, _, err = run(at=name, kind=moment.act(begin_anew, name))
        if moment.is_past:
            break
        if code == 2:
            abandoned += 1
            assert any(text in err for text in ("run this again", "holds a filter already", "WRONGTYPE")), err
        bloom = BloomFilter(client, name, **OPTIONS)
        assert all(bloom.contains_many(NEW_PAGES))
        assert bloom.info().count == len(NEW_PAGES)
        assert not any(bloom.contains_many(members))
    assert abandoned > 8


def test_a_lost_shard_at_any_moment(client: redis.Redis, key: str, run: Run) -> None:
    """An import that lost a shard is refused, and no member is lost."""

    def evict(name: str) -> None:
        shards = [each for each in keys_of(client, name) if each.endswith(":0")]
        assert all(client.delete(shard) for shard in shards)

    lost = 0
    for moment in each_moment():
        name = f"{key}:{moment.at}"
        members = fill(client, name, 1200)
        code, _, err = run(at=name, kind=moment.act(evict, name))
        if code == 2:
            lost += 1
            assert "evicted" in err
            with pytest.raises(WrongTypeError, match="is not complete"):
                BloomFilter(client, name, **OPTIONS)
            assert run(at=name)[0] == 0
        assert_imported(client, name, members)
    assert lost > 3


@pytest.mark.parametrize("before_the_end", [0, 1, 3])
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
        with pytest.raises(WrongTypeError, match="is not complete"):
            BloomFilter(client, key, **OPTIONS)
        assert command.call("import", "--key", key, *place) == 0
        assert_imported(client, key, members)


def test_a_stranger_at_any_moment(client: redis.Redis, key: str, run: Run) -> None:
    """A foreign key that appears where the SET would go stays, and so does the SET."""
    refused = 0
    for moment in each_moment():
        name = f"{key}:{moment.at}"
        members = fill(client, name, 1200)
        code, _, err = run(at=name, kind=moment.act(client.setnx, backup(name), "mine"))
        if code == 2:
            refused += 1
            assert "holds a string: rename or delete that" in err or "holds other data by now" in err
            assert client.get(backup(name)) == b"mine"
            assert all(client.smismember(name, members))
        else:
            assert_imported(client, name, members)
    assert refused > 3


def test_ctrl_c(valkey: Server, client: redis.Redis, key: str, tmp_path: Path) -> None:
    """An interrupted import prints one line, and a second run completes it."""
    with forwarding(valkey.port) as link:
        members = fill(client, key, 20_000)
        # Slow enough to be interrupted.
        link.link = Link(rate=200_000)
        at = ("import", "--key", key, "--capacity", "20000")
        process = command.start(*at, "--redis-url", link.url, cwd=tmp_path)
        until(lambda: client.exists(backup(key)))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert (process.returncode, out) == (130, "")
        assert err == "scrapy bloom: stopped: run the same command again; nothing is lost\n"
        assert command.call(*at, "--redis-url", valkey.url) == 0
        assert all(BloomFilter(client, key, **{**OPTIONS, "capacity": 20_000}).contains_many(members))


# Refusals.


def test_refusals(client: redis.Redis, key: str, run: Run) -> None:
    """An unsuitable key is refused with advice, and no key is changed."""

    def refused(text: str) -> None:
        before = keys_of(client, key)
        code, _, err = run()
        assert (code, text in err) == (2, True), err
        assert keys_of(client, key) == before

    refused("there is no SET at")
    fill(client, backup(key), 3)
    fill(client, key, 3)
    refused("to which an import moves the SET, holds a set")
    client.delete(backup(key), key)
    client.sadd(key, "https://example.com/")
    refused("has the member 'https://example.com/', which is not a fingerprint")
    client.delete(key)
    client.lpush(key, "a")
    refused("holds a list that is not a filter")
    client.delete(key)
    BloomFilter(client, key, **OPTIONS)
    refused("holds a filter already")
    mark = json.loads(client.hget(key, "parameters") or "")
    client.hset(key, "parameters", json.dumps({**mark, "unfinished": "restore"}))
    refused("`scrapy bloom restore` is filling")
    client.hset(key, "parameters", json.dumps({**mark, "unfinished": "import"}))
    refused("there is no SET at")


def test_other_parameters(client: redis.Redis, key: str, run: Run) -> None:
    """Other parameters than those of the import are refused, with a way that changes them only if the SET is there."""
    members = fill(client, key, 20)
    assert run("--error-rate", "1e-4")[0] == 0
    for option, value, there in (("capacity", 5000, 1000), ("error-rate", 1e-6, 0.0001)):
        code, _, err = run(*(() if option == "error-rate" else ("--error-rate", "1e-4", "--capacity", "5000")))
        assert code == 2
        assert f"{option.replace('-', '_')} = {value!r}, not {there!r}: the filter at '{key}' has every member" in err
        assert f"run `scrapy bloom clear --yes --key {key}`, and this again" in err
    BloomFilter(client, key, **{**OPTIONS, "error_rate": 1e-4}).clear()
    assert run("--delete-source")[0] == 0
    assert has_all(client, key, members)
    code, _, err = run("--capacity", "5000")
    assert (code, "the SET is deleted, so they cannot be changed" in err) == (2, True)


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
        assert "remove DUPEFILTER_CLASS from the project's settings, and run this again" in said.stderr
    assert client.smembers(key) == {member.encode() for member in members}
    assert command.run("import", "shop", cwd=own).returncode == 0


def test_another_filter_is_there_since(client: redis.Redis, key: str, run: Run) -> None:
    """A SET is not reported as imported if another filter is there; without any it is imported again."""
    members = fill(client, key, 20)
    assert run()[0] == 0
    BloomFilter(client, key, **OPTIONS).clear()
    BloomFilter(client, key, **OPTIONS).add("a")
    code, _, err = run()
    assert (code, "holds a filter already" in err) == (2, True)
    BloomFilter(client, key, **OPTIONS).clear()
    assert run()[0] == 0
    assert has_all(client, key, members)


def test_beside_workers(client: redis.Redis, key: str, run: Run) -> None:
    """An import is refused while workers are registered, and not for a dead one."""
    fill(client, key, 20)
    queue = f"{key}:requests"
    worker = LiveWorker(client, queue, f"{key}:other", lease=60)
    code, _, err = run("--queue", queue)
    assert code == 2
    assert f"1 worker of the queue '{queue}' may be running" in err
    assert "a killed one counts for 60 s" in err
    assert client.type(key) == b"set"
    worker.leave()
    LiveWorker(client, queue, f"{key}:other", lease=0.001)
    until(lambda: run("--queue", queue)[0] == 0)


def test_options_that_are_refused(run: Run) -> None:
    """Options that do not apply, and fingerprints that no SET has, are refused."""
    assert "capacity (BLOOMFILTER_CAPACITY) = 'many': must" in run("--capacity", "many")[2]
    assert "--delete-source is for a SET" in run("--from-file", "x", "--delete-source")[2]
    assert "Remove REQUEST_FINGERPRINTER_CLASS" in run(**SCRAPYS)[2]
    code, _, err = run("--from-file", "nowhere")
    assert (code, err) == (2, "scrapy bloom: nowhere: No such file or directory\n")


@pytest.mark.crawl
def test_between_two_crawls(valkey: Server, key: str, tmp_path: Path, run: Run, client: redis.Redis) -> None:
    """A crawl of scrapy-redis is stopped, its SET imported, and continued: no page is fetched twice, or missed."""
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
    with serving(tree(PAGES)) as site:
        fill(client, spider, 10_000)
        with crawling.crawling("one", f"{site.url}/", tmp_path, **stock) as one:
            until(lambda: len(site.fetched) > 10)
            one.process.send_signal(signal.SIGINT)
            one.wait()
        assert 10 < len(site.paths) < PAGES
        assert run("--queue", f"{spider}:requests", "--capacity", "1000000", at=spider)[0] == 0
        crawling.crawl("two", f"{site.url}/", tmp_path, **{**stock, **ours})
        assert sorted(site.paths) == sorted(map(path_of, range(PAGES)))


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


def test_a_fingerprint_without_its_line_end(caplog: pytest.LogCaptureFixture) -> None:
    """A last line without its end is complete if all digits are there."""
    content = lines(b"a" * 20, b"b" * 20).rstrip()
    assert [line.end for line in read_lines("seen", BufferedReader(BytesIO(content)))] == [41, 81]
    assert not caplog.text


def test_files(client: redis.Redis, key: str, tmp_path: Path, run: Run) -> None:
    """Files of fingerprints, in capitals too, and URLs are imported, again without harm."""
    seen, urls = tmp_path / "requests.seen", tmp_path / "urls"
    request = Request("https://example.com/?b=1&a=2")
    seen.write_text("".join(f"{scrapys(Request(f'https://example.com/{number}')).hex()}\n" for number in range(2500)))
    urls.write_text(f"{request.url}\n\nhttps://example.com/7\n{request.url}\n{scrapys(request).hex().upper()}\n")
    code, _, err = run("--from-file", seen)
    assert code == 2
    assert "Set REQUEST_FINGERPRINTER_CLASS = 'scrapy.utils.request.RequestFingerprinter'" in err
    assert not client.exists(key)
    said = json.loads(run("--from-file", seen, "--json", **SCRAPYS)[1])
    assert (said["members"], said["added"], said["source"]) == (2500, 2500, str(seen))
    for new, known in ((1, 3), (0, 4)):
        code, out, _ = run("--from-file", urls, **SCRAPYS)
        assert code == 0
        assert f"Added 4 lines of {urls} to the filter at '{key}': {new} new, {known} known before" in out
    bloom = BloomFilter(client, key, **{**OPTIONS, "fingerprint": SCRAPYS["REQUEST_FINGERPRINTER_CLASS"]})
    assert scrapys(Request("https://example.com/?a=2&b=1")).hex() in bloom
    assert scrapys(Request("https://example.com/2499")).hex() in bloom


def test_a_pipe(client: redis.Redis, key: str, run: Run) -> None:
    """The lines of a pipe are read once."""
    reader, writer = os.pipe()
    os.write(writer, fingerprint(1).encode() + b"\n")
    os.close(writer)
    with os.fdopen(reader):
        assert run("--from-file", f"/dev/fd/{reader}")[0] == 0
    assert has_all(client, key, [fingerprint(1)])


def test_a_wrong_line(client: redis.Redis, key: str, tmp_path: Path, run: Run) -> None:
    """A wrong line is refused with its number; the corrected file is imported again."""
    file = tmp_path / "urls"
    file.write_text("https://example.com/\n" * 1500 + "http://[::1/\n")
    code, _, err = run("--from-file", file)
    assert code == 2
    assert "line 1501 is 'http://[::1/', but must be" in err
    file.write_text("https://example.com/\n" * 1500)
    assert run("--from-file", file)[0] == 0
    client.delete(key)
    file.write_text("wrong\n")
    assert (run("--from-file", file)[0], client.exists(key)) == (2, 0)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        pytest.param(b"", "the file is empty", id="empty"),
        pytest.param(b"\n\n", "the file is empty", id="blank"),
        pytest.param(b"\n\nexample.com\n", "line 3 is 'example.com', but must be", id="other"),
        pytest.param(b"https://example.com/\n/about\n", "line 2 is '/about'", id="path"),
        pytest.param(b"https://example.com/\nhttps://[::1\n", "line 2 is", id="broken"),
        pytest.param(b"http://example.com:abc/\n", "line 1 is", id="port"),
        pytest.param(b"https://example.com/\nhttps://example.com/\xff\n", "line 2 is", id="no text"),
        pytest.param(b"a" * (1 << 21), "line 1 is 'aaa", id="endless"),
        pytest.param(b"\x89PNG\r\n\x1a\n", r"line 1 is no printable UTF-8 text \(4 bytes\)", id="image"),
        pytest.param(bytes(100), "the length of its record 1 is 0 bytes: each must be a fingerprint", id="binary"),
        pytest.param(binary(b"\xff" * 16), "the length of its record 1 is 16 bytes", id="other length"),
        pytest.param(
            binary(b"\xfe" * 20) * 2 + b"\0\x14\xfe" + binary(b"\xff" * 20) * 2,
            "keep the first 66 bytes of the file",
            id="resumed",
        ),
        pytest.param(lines(b"a" * 20) + binary(b"\xff" * 20), "line 2 is no printable UTF-8 text", id="both"),
        pytest.param(b"https://example.com/\nabc", "line 2 is 'abc'", id="short"),
    ],
)
def test_lines_that_are_refused(text: bytes, match: str) -> None:
    """A line that is neither a fingerprint nor a URL is refused with its number, in printable text."""
    with pytest.raises(ConfigError, match=match) as caught:
        list(read_lines("lines", BufferedReader(BytesIO(text))))
    assert str(caught.value).replace("…", "").isascii()
    assert str(caught.value).isprintable()
