"""Actions on a crawl in several partitions: sums over them, and each request in its own; one is the measure."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy import Request

from scrapy_bloom import BloomFilter, BloomScheduler
from scrapy_bloom.cli import clear
from scrapy_bloom.cli.target import by_partition
from scrapy_bloom.filter.info import read_filter
from scrapy_bloom.queue.inspection import inspect
from scrapy_bloom.queue.keys import QueueKeys, partition_keys
from tests.commands.conftest import Said, Say
from tests.support import command
from tests.support.clusters import cluster_client, running_cluster
from tests.support.dupefilters import keys_of
from tests.support.imports import AFTER, BEFORE, PARAMETERS, KilledError, backup, each_moment, faulty, fill, fingerprint
from tests.support.in_process import crawl_settings, start
from tests.support.servers import Server
from tests.support.waiting import until

URLS = [f"https://example.com/{number}" for number in range(60)]
NEW = "https://example.com/new"

On = Callable[..., Said]
Join = Callable[[], BloomScheduler]
Run = partial[Said]


@pytest.fixture
def client(valkey: Server) -> Iterator[redis.Redis]:
    """A plain client of Valkey: no script differs by the number of partitions."""
    with valkey.client() as client:
        yield client


@pytest.fixture(params=[1, 3])
def count(request: pytest.FixtureRequest) -> int:
    """The number of partitions."""
    found: int = request.param
    return found


@pytest.fixture
def keys(key: str, count: int) -> list[tuple[str, str]]:
    """The keys of queue and filter in each partition."""
    return partition_keys(f"{{{key}}}:queue", f"{{{key}}}:shop", count)


@pytest.fixture
def join(url: str, key: str, count: int) -> Iterator[Join]:
    """Let a worker join the crawl; at last each one leaves, and keeps it."""
    settings = {**crawl_settings(url, key), "BLOOMFILTER_PARTITIONS": count, "SCHEDULER_PERSIST": True}
    schedulers = []

    def join() -> BloomScheduler:
        crawler = start(settings)
        scheduler: BloomScheduler = BloomScheduler.from_crawler(crawler)
        schedulers.append(scheduler)
        scheduler.open(crawler.spider)
        return scheduler

    yield join
    for scheduler in schedulers:
        scheduler.close("shutdown")
        scheduler._disconnect()


@pytest.fixture
def crawl(join: Join) -> BloomScheduler:
    """A worker that has found `URLS`, and leased some."""
    scheduler = join()
    queue(scheduler, *URLS)
    until(lambda: scheduler.has_pending_requests() and scheduler.next_request())
    return scheduler


@pytest.fixture
def on(say: Say, keys: list[tuple[str, str]], count: int) -> On:
    """Run an action on the crawl."""

    def run(action: str, *words: object, **settings: object) -> Said:
        name, at = keys[0]
        return say(action, *words, "--queue", name, at=at, **{"BLOOMFILTER_PARTITIONS": count, **settings})

    return run


def queue(scheduler: BloomScheduler, *urls: str) -> None:
    """Find links, and have them queued."""
    for url in urls:
        scheduler.enqueue_request(Request(url))
    until(lambda: scheduler.has_pending_requests() and not any(line.outbox for line in scheduler._worker.queues))


def held(client: redis.Redis, keys: list[tuple[str, str]]) -> list[int]:
    """The number of requests in each partition that wait or are leased."""
    return [state.waiting + state.leased for state in (inspect(client, name) for name, _ in keys)]


@pytest.mark.usefixtures("crawl")
def test_info(client: redis.Redis, keys: list[tuple[str, str]], count: int, on: On) -> None:
    """Filters and queues are summed, the worker is one, and a table has the partitions."""
    found = on("info", "--json").report
    infos = [read.info for _, key in keys if (read := read_filter(client, key))]
    assert len(infos) == count
    assert min(info.count for info in infos) > 0
    assert (found["key"], found["count"], found["layers"]) == (keys[0][1], len(URLS), 1)
    for name in ("capacity", "memory_bytes", "shards", "bits"):
        assert found[name] == sum(getattr(info, name) for info in infos)
    (state,) = found["queues"]
    (worker,) = state["workers"]
    assert (state["key"], state["waiting"] + worker["holds"]) == (keys[0][0], len(URLS))
    parts = found["partitions"]
    assert [(part["number"], part["key"]) for part in parts] == [*enumerate(key for _, key in keys)]
    assert [part["count"] for part in parts] == [info.count for info in infos]
    assert [part["waiting"] + part["leased"] for part in parts] == held(client, keys)
    text = on("info").out
    rows = [line.split() for line in text.splitlines() if line.endswith(tuple(key for _, key in keys))]
    assert [(row[0], row[-1]) for row in rows] == [(f"{part['number']}", part["key"]) for part in parts if count > 1]


@pytest.mark.usefixtures("crawl")
def test_info_of_a_part(client: redis.Redis, keys: list[tuple[str, str]], count: int, on: On) -> None:
    """A partition without a filter is named."""
    client.delete(keys[-1][1])
    said = on("info", "--json")
    assert said.code == (1 if count == 1 else 0)
    assert [part["exists"] for part in said.report["partitions"]] == [True] * (count - 1) + [False]
    assert ("none\n" in on("info").out) == (count > 1)


@pytest.mark.usefixtures("crawl")
def test_pages(join: Join, on: On) -> None:
    """Each page is found, and forgotten, in its partition."""
    said = on("check", *URLS, NEW, "--json").report
    assert [each["is_seen"] for each in said["requests"]] == [True] * len(URLS) + [False]
    said = on("forget", *URLS[:20], NEW, "--json").report
    assert (said["forgotten"], said["absent"]) == (20, 1)
    assert on("info", "--json").report["forgotten"] == 20
    assert on("check", *URLS[20:]).code == 0
    queue(join(), *URLS)
    assert on("info", "--json").report["forgotten"] == 0
    assert on("check", *URLS).code == 0


@pytest.mark.usefixtures("crawl")
def test_requeue(client: redis.Redis, keys: list[tuple[str, str]], count: int, on: On) -> None:
    """Dead letters and failed requests go to the queue of their partition."""
    for number, (name, _) in enumerate(keys):
        client.zadd(QueueKeys(name).dead_letters, {f"letter {number}": 0})
        client.hset(QueueKeys(name).failed, f"failed {number}", "1 0 x")
    before = held(client, keys)
    said = on("requeue", "--json").report
    assert (said["matching"], said["dead_letters"], said["failed"]) == (count, count, count)
    assert on("requeue", "--json").report["matching"] == 0
    said = on("requeue", "--failed", "--match", "failed 0", "--json").report
    assert (said["matching"], said["failed"]) == (1, count)
    assert held(client, keys) == [number + 1 + (not index) for index, number in enumerate(before)]
    assert all(client.zscore(name, f"letter {number}") == 0 for number, (name, _) in enumerate(keys))


@pytest.fixture
def left(crawl: BloomScheduler) -> None:
    """The crawl without its worker, which is done with one page."""
    crawl.close("shutdown")


@pytest.mark.usefixtures("left")
def test_clear(client: redis.Redis, key: str, count: int, on: On) -> None:
    """All is shown, and all deleted."""
    said = on("clear", "--with-queue", "--json")
    assert (said.code, said.report["deleted"], len(said.report["filters"])) == (1, False, count)
    assert sum(each["count"] for each in said.report["filters"]) == len(URLS)
    (shown,) = said.report["queues"]
    assert (shown["waiting"], shown["goes"]) == (len(URLS) - 1, True)
    assert on("clear", "--with-queue").out.count(": a filter, ") == count
    said = on("clear", "--with-queue", "--yes")
    assert (said.code, said.out.splitlines()[-1]) == (0, "deleted")
    assert keys_of(client, key) == []


@pytest.mark.usefixtures("left")
@pytest.mark.parametrize("count", [3], indirect=True)
def test_interrupted_clear(
    client: redis.Redis, key: str, keys: list[tuple[str, str]], on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some partitions it can be run again, and names the keys that are left."""
    delete = clear._delete

    def fail_in_the_second(target: Any, *arguments: Any) -> bool:
        return target.key != keys[1][1] and delete(target, *arguments)

    with monkeypatch.context() as context:
        context.setattr(clear, "_delete", fail_in_the_second)
        said = on("clear", "--with-queue", "--yes")
    left = ", ".join([*(name for _, name in keys[:2]), *(name for name, _ in keys[:2])])
    assert (said.code, said.out, f"{left}: not deleted" in said.err) == (2, "", True)
    assert [bool(client.exists(name)) for _, name in keys] == [True, True, False]
    assert on("clear", "--with-queue", "--yes").code == 0
    assert keys_of(client, key) == []


ACTIONS = {
    "info": (),
    "check": (NEW,),
    "forget": (URLS[0],),
    "clear": ("--with-queue", "--yes"),
    "requeue": (),
}


@pytest.mark.usefixtures("crawl")
@pytest.mark.parametrize("action", ACTIONS)
def test_another_number(client: redis.Redis, keys: list[tuple[str, str]], on: On, say: Say, action: str) -> None:
    """Another number than the crawl's is refused, also by the filter's key alone, and nothing is changed."""
    key, count = keys[0][0][1:].partition("}")[0], len(keys)
    before = {each: client.dump(each) for each in keys_of(client, key)}
    code, _, err = on(action, *ACTIONS[action], BLOOMFILTER_PARTITIONS=2)
    assert (code, err.count("BLOOMFILTER_PARTITIONS = 2: the crawl ")) == (2, 1)
    assert f"has {count}; set that number" in err
    words = [word for word in ACTIONS[action] if word != "--with-queue"]
    assert action == "requeue" or say(action, *words, at=keys[0][1], BLOOMFILTER_PARTITIONS=2).code == 2
    assert {each: client.dump(each) for each in keys_of(client, key)} == before


# Findings.


def examine(on: On) -> dict[str, list[tuple[str, str]]]:
    """The level and the text of each finding, by its check."""
    found: dict[str, list[tuple[str, str]]] = {}
    for each in on("doctor", "--json").report["findings"]:
        found.setdefault(each["check"], []).append((each["level"], each["text"]))
    return found


@pytest.mark.usefixtures("left")
def test_findings(client: redis.Redis, keys: list[tuple[str, str]], count: int, on: On) -> None:
    """A finding of a partition has its number, and a check without a finding shows the first one."""
    before = examine(on)
    for check in ("filter", "queue", "dead letters"):
        assert [level for level, _ in before[check]] == ["ok"]
    assert before["queue"][0][1].startswith("partition 0: " if count > 1 else keys[0][0])
    name, of_filter = keys[-1]
    client.zadd(QueueKeys(name).dead_letters, {"letter": 0})
    client.delete(of_filter)
    where = f"partition {count - 1}: " if count > 1 else ""
    found = examine(on)
    for check, text in (("dead letters", "1 request that workers"), ("filter", "there is none, but ")):
        (told,) = [text for level, text in found[check] if level == "loss"]
        assert told.startswith(f"{where}{text}")


@pytest.mark.parametrize("count", [3], indirect=True)
def test_a_partition_that_is_away(keys: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]) -> None:
    """The node of a partition is down: an action ends with its number, and the doctor examines the others."""
    with running_cluster(3, "--cluster-require-full-coverage", "no") as cluster:
        (name, at), (_, away) = keys[0], keys[-1]
        url = f"redis+cluster://127.0.0.1:{cluster.owner_of(at).port}"
        with cluster_client(cluster[0]) as client:
            assert len(opened(client, keys)) == len(keys)
        cluster.owner_of(away).kill()
        place = ("--queue", name, "--key", at, "--redis-url", url)
        for action in ("info", "clear", "check https://example.com"):
            assert command.call(*action.split(), *place, BLOOMFILTER_PARTITIONS=3) == 3
            assert "Redis is unreachable (partition 2: " in capsys.readouterr().err
        assert command.call("doctor", *place, "--json", BLOOMFILTER_PARTITIONS=3) == 1
        findings = json.loads(capsys.readouterr().out)["findings"]
        (lost,) = [each["text"] for each in findings if each["check"] == "filter"]
        assert lost.startswith("partition 2: not checked: ")
        assert {"permissions", "queue", "memory"} <= {each["check"] for each in findings}


# Moves.


def opened(client: redis.Redis, keys: list[tuple[str, str]]) -> list[BloomFilter]:
    """The filters of all partitions, as workers open them."""
    share = PARAMETERS.of_partition(len(keys))
    return [BloomFilter.with_parameters(client, name, share, cache_size=0, retry_timeout=0) for _, name in keys]


def has_all(client: redis.Redis, keys: list[tuple[str, str]], members: list[str]) -> bool:
    """Return whether each partition has its members."""
    parts = by_partition([member.encode() for member in members], len(keys))
    return all(all(bloom.contains_many(part)) for bloom, part in zip(opened(client, keys), parts, strict=True))


@pytest.mark.parametrize("count", [3], indirect=True)
@pytest.mark.parametrize("how", [BEFORE, AFTER])
def test_import_at_every_moment(client: redis.Redis, key: str, count: int, run: Run, how: str) -> None:
    """After a killed import the next one completes every partition."""
    run = partial(run, "import", "--capacity", 1000)
    for moment in each_moment():
        name = f"{key}:at:{moment.at}"  # the partitions of the key have its numbers
        keys, members = partition_keys(name, name, count), fill(client, name, 200)
        moment.kind = faulty(at=moment.at, how=how)
        try:
            assert run(at=name, kind=moment.kind).code == 0
        except KilledError:
            assert run(at=name).code == 0
        assert has_all(client, keys, members)
        assert run("--delete-source", at=name).code == 0
        assert not client.exists(backup(name))
        client.unlink(*keys_of(client, f"{name}*"))
    assert moment.at > 6 + 3 * count


@pytest.fixture
def run(say: Say, count: int) -> Run:
    """Run an action on the filters alone."""
    return partial(say, BLOOMFILTER_PARTITIONS=count)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """A file of fingerprints and URLs."""
    path = tmp_path / "lines"
    path.write_text("\n".join([*(fingerprint(number) for number in range(700)), *URLS]))
    return path


@pytest.mark.parametrize("count", [3], indirect=True)
@pytest.mark.parametrize("how", [BEFORE, AFTER])
def test_restore_at_every_moment(client: redis.Redis, key: str, run: Run, lines: Path, how: str) -> None:
    """After a killed restore the first partition is there with all others, or another restore makes them all."""
    members, count = [fingerprint(number) for number in range(700)], run.keywords["BLOOMFILTER_PARTITIONS"]
    assert run("import", "--capacity", 1000, "--from-file", lines).code == 0
    path = lines.with_name("file")
    exported = run("export", path, "--json").report
    assert exported["count"] >= len(members)
    for moment in each_moment():
        name = f"{key}:at:{moment.at}"  # the partitions of the key have its numbers
        keys = partition_keys(name, name, count)
        moment.kind = faulty(at=moment.at, how=how)
        try:
            assert run("restore", path, "--json", at=name, kind=moment.kind).report["count"] == exported["count"]
        except KilledError:
            if not client.exists(name):
                assert run("clear", "--yes", at=name).code == 0
                assert run("restore", path, at=name).code == 0
        assert has_all(client, keys, members)
        client.unlink(*keys_of(client, f"{name}*"))
    assert moment.at > 6 + 3 * count


def test_restore_with_another_number(key: str, count: int, say: Say, lines: Path, tmp_path: Path) -> None:
    """A file of another number of partitions is refused, and nothing is written."""
    assert say("import", "--from-file", lines, BLOOMFILTER_PARTITIONS=count).code == 0
    path = tmp_path / "file"
    assert say("export", path, BLOOMFILTER_PARTITIONS=count).code == 0
    code, _, err = say("restore", path, at=f"{key}:copy", BLOOMFILTER_PARTITIONS=2)
    text = (
        f"BLOOMFILTER_PARTITIONS = 2: the filter in {path} has {count}; set that number, or import the SET or the URLs"
    )
    assert (code, text in err) == (2, True)
    assert say("info", at=f"{key}:copy").code == 1
