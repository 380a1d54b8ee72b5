"""`scrapy bloom export` and `restore`: no data is lost, and no damaged file is accepted."""

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.filter.info import read_filter
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.text import as_text
from tests.commands.conftest import Say
from tests.support import command
from tests.support.imports import AFTER, BEFORE, LOST, KilledError, each_moment, faulty
from tests.support.live_worker import LiveWorker
from tests.support.moving import SMALL, items, keys_at, killed_at
from tests.support.servers import KINDS, Server, expires_at

# Items for three layers.
ITEMS = items(600)
STRANGERS = items(500, "stranger")
# A layer of one shard of two chunks.
LARGE: dict[str, Any] = {"capacity": 500_000, "cache_size": 0}
DAY = 86_400_000


@pytest.fixture
def client(request: pytest.FixtureRequest, servers: Callable[[str], Server]) -> Iterator[redis.Redis]:
    """A plain client of Valkey, or of each server where the kind makes a difference."""
    with servers(getattr(request, "param", "valkey")).client() as client:
        yield client


on_each_server = pytest.mark.parametrize("client", KINDS, indirect=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path without a file."""
    return tmp_path / "filter.bloom"


def moved(say: Say, action: str, path: Path, *arguments: str, **options: Any) -> dict[str, Any]:
    """Return the report of an action that must succeed."""
    said = say(action, path, "--json", *arguments, **options)
    assert said.code == 0, said.err
    return said.report


@pytest.fixture
def grown(client: redis.Redis, key: str) -> BloomFilter:
    """A filter of three layers, of which the newest takes items, and the next one is being allocated."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add_many(ITEMS)
    assert bloom.info().layers == 3
    return bloom


@pytest.fixture
def exported(grown: BloomFilter, path: Path, say: Say) -> Path:  # noqa: ARG001  # the exported filter
    """The file of a filter of three layers."""
    moved(say, "export", path)
    return path


def id_of(client: redis.Redis, key: str) -> str:
    """Return the id of a filter."""
    return as_text(client.hget(key, "state")).split()[0]


def shards_of(client: redis.Redis, key: str) -> dict[str, bytes]:
    """Return the bytes of each shard of a filter, by layer and number."""
    prefix = f"{{{key}}}:{id_of(client, key)}:"
    names = [name for name in keys_at(client, key) if name.startswith(prefix)]
    return {name.removeprefix(prefix): client.getrange(name, 0, -1) for name in names}  # type: ignore[misc]  # bytes


def memory_of(client: redis.Redis, key: str) -> dict[str, int]:
    prefix = f"{{{key}}}:{id_of(client, key)}:"
    return {name: client.memory_usage(prefix + name, samples=0) or 0 for name in shards_of(client, key)}


def is_whole(client: redis.Redis, key: str) -> bool:
    """Return whether there is a restored filter at a key, which must be whole, and alone."""
    found = read_filter(client, key)
    if found is None:
        return False
    assert all(BloomFilter(client, key, **SMALL).contains_many(ITEMS))
    assert all(name == key or name.startswith(f"{{{key}}}:{found.id}:") for name in keys_at(client, key))
    assert not any(expires_at(client, name) > 0 for name in keys_at(client, key))
    return True


@on_each_server
def test_a_restored_filter_is_the_same(client: redis.Redis, key: str, path: Path, say: Say, grown: BloomFilter) -> None:
    """A restored filter has the same bits, memory, counts and forgotten items, another id, and goes on."""
    state = as_text(client.hget(key, "state")).replace(" 0 0 0 0;", " 0 0 2 0;")
    client.hset(key, mapping={"state": state, "user:somebody": 1})
    assert all(grown.forget_many(ITEMS[:3]))
    before, copy = grown.contains_many(STRANGERS), f"{key}:copy"
    report = moved(say, "export", path)
    assert (report["count"], report["file_bytes"]) == (grown.info().count, path.stat().st_size)
    assert moved(say, "restore", path, at=copy)["count"] == report["count"] >= 590
    one, two = (read_filter(client, each) for each in (key, copy))
    assert one is not None
    assert two is not None
    assert one.id != two.id
    assert (one.secret, one.parameters, one.ttl) == (two.secret, two.parameters, two.ttl)
    assert (one.info.by_layer, one.info.lost_shards, one.info.forgotten) == (two.info.by_layer, 2, 3)
    assert not client.hexists(copy, "user:somebody")
    bits, memory = shards_of(client, key), memory_of(client, key)
    assert shards_of(client, copy) == {name: bits[name] for name in shards_of(client, copy)}
    assert all(used <= memory[name] + 64 for name, used in memory_of(client, copy).items())
    restored = BloomFilter(client, copy, **SMALL)
    assert restored.contains_many(ITEMS) == [False] * 3 + [True] * 597
    assert restored.contains_many(STRANGERS) == before
    assert restored.add_many(ITEMS[:4]) == [True] * 3 + [False]
    assert sum(restored.add_many(STRANGERS)) >= 490
    assert all(restored.contains_many([*ITEMS, *STRANGERS]))
    restored.clear()
    assert not keys_at(client, copy)


def test_large_shards(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """A shard of several chunks has its bits at their places, and the memory of the original."""
    BloomFilter(client, key, **LARGE).add_many(ITEMS)
    moved(say, "export", path)
    moved(say, "restore", path, at=f"{key}:copy")
    assert len(max(shards_of(client, key).values(), key=len)) > 1 << 20
    assert shards_of(client, f"{key}:copy") == shards_of(client, key)
    assert all(used <= memory_of(client, key)[name] + 64 for name, used in memory_of(client, f"{key}:copy").items())


def test_a_filter_without_layers(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """An empty filter keeps its parameters and its secret."""
    BloomFilter(client, key, **SMALL)
    assert moved(say, "export", path)["count"] == 0
    moved(say, "restore", path, at=f"{key}:copy")
    assert client.hget(key, "secret") == client.hget(f"{key}:copy", "secret")
    assert BloomFilter(client, f"{key}:copy", **SMALL).add("a")


# The file.


def test_the_file_is_private_and_not_overwritten(exported: Path, say: Say, grown: BloomFilter) -> None:
    """The file holds the secret: it is private, and overwritten only on request."""
    assert exported.stat().st_mode & 0o777 == 0o600
    before = exported.read_bytes()
    code, _, err = say("export", exported)
    assert (code, "must not exist; give another path, or --overwrite" in err) == (2, True)
    assert exported.read_bytes() == before
    grown.add_many(STRANGERS)
    moved(say, "export", exported, "--overwrite")
    assert exported.read_bytes() != before
    assert [*exported.parent.iterdir()] == [exported]


def test_damaged_files_are_refused(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """A file with a changed byte, or a truncated one, is refused or restores the same filter."""
    BloomFilter(client, key, **SMALL).add("a")
    moved(say, "export", path)
    whole, bits, refused = path.read_bytes(), shards_of(client, key), 0
    for place in range(0, len(whole), 9):
        altered = bytearray(whole)
        altered[place] ^= 1 << place % 8
        path.write_bytes(altered)
        code, _, err = say("restore", path, at=f"{key}:copy")
        refused += code == 2
        assert (str(path) in err) == (code == 2), err
        assert (keys_at(client, f"{key}:copy") == set()) == (code == 2)
        if not code:
            assert shards_of(client, f"{key}:copy") == bits
            BloomFilter(client, f"{key}:copy", **SMALL).clear()
        path.write_bytes(whole[:place])
        code, _, err = say("restore", path, at=f"{key}:copy")
        assert (code, f"{path}: must be a whole file of `scrapy bloom export`" in err) == (2, True)
    assert refused > len(whole) // 9 * 0.7
    assert not keys_at(client, f"{key}:copy")


IMPOSSIBLE: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "no shard": lambda members, _: members.pop("0/1:0"),
    "a short shard": lambda members, _: members.update({"0/1:0": members["0/1:0"][:-1]}),
    "no layers": lambda _, description: description["partitions"][0].pop("state"),
    "newer": lambda _, description: description.update(format=description["format"] + 1),
}


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Change the members and the description of a file, with valid checksums."""
    with zipfile.ZipFile(path) as archive:
        members: dict[str, Any] = {name: archive.read(name) for name in archive.namelist()}
    description = json.loads(members["filter.json"])
    change(members, description)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, "filter.json": json.dumps(description)}.items():
            archive.writestr(name, content)


@pytest.mark.parametrize("change", IMPOSSIBLE)
def test_impossible_files_are_refused(change: str, client: redis.Redis, key: str, exported: Path, say: Say) -> None:
    """Impossible contents are detected before the first write, even with valid checksums."""
    rewrite(exported, IMPOSSIBLE[change])
    code, _, err = say("restore", exported, at=f"{key}:copy")
    assert (code, f"{exported}: must be a whole file of" in err) == (2, True)
    assert ("newer than" in err) == (change == "newer")
    assert not keys_at(client, f"{key}:copy")


# Beside crawls.


@pytest.mark.parametrize("number", [50, 450])
def test_additions_at_any_moment(client: redis.Redis, key: str, path: Path, say: Say, number: int) -> None:
    """At each command a worker forgets an item, and adds some, or so many that the filter grows.

    The count covers all bits of the file, and the requests forgotten up to the end are in the file.
    """

    def work(bloom: BloomFilter) -> None:
        bloom.add_many(STRANGERS[:number])
        bloom.forget(ITEMS[1])

    forgotten = 0
    for moment in each_moment():
        name = f"{key}:{moment.at}"
        bloom = BloomFilter(client, name, **SMALL)
        bloom.add_many(ITEMS)
        assert bloom.forget(ITEMS[0])
        before = bloom.info().count
        report = moved(say, "export", path, "--overwrite", at=name, kind=moment.act(work, bloom))
        moved(say, "restore", path, at=f"{name}:copy")
        copy = BloomFilter(client, f"{name}:copy", **SMALL)
        missing = [item for item, found in zip(ITEMS, copy.contains_many(ITEMS), strict=True) if not found]
        assert missing in (ITEMS[:1], ITEMS[:2])
        forgotten += missing == ITEMS[:2]
        grown = sum(layer.count for layer in bloom.info().by_layer[:3])
        assert copy.info().count == report["count"] in (before, grown, bloom.info().count)
        # Of items that were not added about one is found.
        assert sum(copy.contains_many(STRANGERS)) <= report["count"] - before + 25
    assert forgotten >= 8


def test_a_filter_that_is_replaced_at_any_moment(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """A filter that is cleared or replaced during its export is refused, and no file is left."""

    def replace(bloom: BloomFilter, at: int) -> None:
        bloom.clear()
        if at % 2:
            bloom.add_many(STRANGERS)

    refused = 0
    for moment in each_moment():
        bloom = BloomFilter(client, key, flush=True, **SMALL)
        bloom.add_many(ITEMS)
        code, _, err = say("export", path, kind=moment.act(replace, bloom, moment.at))
        if code == 2:
            refused += 1
            assert "was replaced or cleared" in err or "there is no filter" in err
            assert not [*path.parent.iterdir()]
        else:
            path.unlink()
    assert refused > 5


def test_a_filter_that_lost_a_shard_is_not_exported(
    client: redis.Redis, key: str, path: Path, say: Say, grown: BloomFilter
) -> None:
    """A lost shard is not exported as zeros, whether or not a worker replaces it meanwhile."""
    lost = next(name for name in keys_at(client, key) if name.endswith(":3:0"))

    def evict_and_replace(step: int) -> None:
        if step == 8:
            client.delete(lost)
            grown.add_many(STRANGERS)

    for kind in (faulty(evict_and_replace), None):
        code, _, err = say("export", path, kind=kind)
        assert (code, "has lost a shard" in err) == (2, True)
        assert not [*path.parent.iterdir()]
        client.delete(lost)


def test_requests_that_stay_behind(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """An export counts the requests of the queue that are not fetched yet: waiting, leased, failed and dead letters."""
    keys = QueueKeys(f"{key}:requests")
    worker = LiveWorker(client, keys.queue, key)
    changes: list[tuple[Callable[[], object], int]] = [
        (lambda: worker.push(b"a", b"b"), 2),
        (lambda: worker.take(1), 2),
        (lambda: client.zadd(keys.dead_letters, {"c": 0, "d": 0}), 4),
        (lambda: client.hset(keys.failed, mapping={"e": "0 0 e", "f": "0 0 f"}), 6),
    ]
    assert not say("export", path, "--queue", keys.queue).err
    for change, number in changes:
        change()
        said = say("export", path, "--overwrite", "--queue", keys.queue).err
        assert f"the filter knows {number} unfetched requests of the queue '{keys.queue}'" in said


# A TTL.


def age(client: redis.Redis, key: str, milliseconds: int) -> None:
    """Make the first layer of a filter older."""
    head, first, others = as_text(client.hget(key, "state")).split(";", 2)
    index, place, created, *numbers = first.split(" ")
    first = " ".join([index, place, str(int(created) - milliseconds), *numbers])
    client.hset(key, "state", f"{head};{first};{others}")


@on_each_server
def test_the_remaining_life(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """The shards of a restored filter expire as long after their layer's creation as the original's."""
    BloomFilter(client, key, **SMALL, ttl=1000).add_many(items(10))
    age(client, key, 300_000)
    moved(say, "export", path)
    moved(say, "restore", path, at=f"{key}:copy")
    assert all(BloomFilter(client, f"{key}:copy", **SMALL, ttl=1000).contains_many(items(10)))
    prefixes = [f"{{{each}}}:{id_of(client, each)}:" for each in (key, f"{key}:copy")]
    for name in shards_of(client, f"{key}:copy"):
        one, two = (expires_at(client, prefix + name) for prefix in prefixes)
        assert one > 0
        assert abs(one - two - 300_000) <= 20_000  # Redis 6 tells 10 s only
    assert abs(expires_at(client, key) - expires_at(client, f"{key}:copy")) <= 20_000


def make_two_generations(client: redis.Redis, key: str) -> None:
    """Make a filter with a layer of each of two generations, and forgotten items in both."""
    bloom = BloomFilter(client, key, **SMALL, ttl=1000)
    bloom.add_many(items(10, "old"))
    assert bloom.forget("old 3")
    age(client, key, 300_000)
    bloom.add_many(items(10, "new"))
    assert bloom.forget("new 3")


def test_layers_that_end_before_a_restore(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """An ended layer is left out, and the filter goes on."""
    make_two_generations(client, key)
    assert moved(say, "export", path)["count"] == 20
    end = 1_000_000

    def make_older(_: object, description: dict[str, Any]) -> None:
        client.hset(f"{key}:aged", "state", description["partitions"][0]["state"])
        age(client, f"{key}:aged", end)
        description["partitions"][0]["state"] = as_text(client.hget(f"{key}:aged", "state"))

    rewrite(path, make_older)
    assert moved(say, "restore", path, at=f"{key}:copy")["count"] == 10
    assert [*shards_of(client, f"{key}:copy")] == ["2:0"]
    copy = BloomFilter(client, f"{key}:copy", **SMALL, ttl=1000)
    assert not any(copy.contains_many(items(10, "old")))
    assert copy.contains_many(items(4, "new")) == [True] * 3 + [False]
    assert all(copy.add_many(items(300)))


def test_a_layer_that_ends_during_an_export(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """At each command the older layer ends, and a worker deletes it: it is left out, or in the file as a whole."""

    def end(name: str) -> None:
        age(client, name, 1_000_000)
        client.delete(next(each for each in keys_at(client, name) if each.endswith(":1:0")))

    seen = set()
    for moment in each_moment():
        name = f"{key}:{moment.at}"
        make_two_generations(client, name)
        count = moved(say, "export", path, "--overwrite", at=name, kind=moment.act(end, name))["count"]
        seen.add(count)
        moved(say, "restore", path, at=f"{name}:copy")
        copy = BloomFilter(client, f"{name}:copy", **SMALL, ttl=1000)
        assert copy.contains_many(items(4, "new")) == [True] * 3 + [False]
        assert any(copy.contains_many(items(10, "old"))) == (count == 20)
    assert seen == {10, 20}


# The place of a restore.

OCCUPANTS: dict[str, Callable[[redis.Redis, str], object]] = {
    "filter": lambda client, key: BloomFilter(client, key, capacity=7).add("old"),
    "list": lambda client, key: client.rpush(key, "a"),
    "SET": lambda client, key: client.sadd(key, "a"),
    "hash": lambda client, key: client.hset(key, "a", "b"),
}


@pytest.mark.parametrize("occupant", OCCUPANTS)
def test_a_key_that_is_not_empty(client: redis.Redis, key: str, exported: Path, say: Say, occupant: str) -> None:
    """Data that is at the key, or appears there at any moment, stays; the restore leaves nothing."""
    place, refused = f"{key}:copy", 0
    for moment in each_moment():
        kind = moment.act(lambda: client.exists(place) or OCCUPANTS[occupant](client, place))
        code, _, err = say("restore", exported, at=place, kind=kind)
        if code:
            refused += 1
            assert code == 2
            assert moment.at > 1 or moment.kind.steps < 6
            assert "is not empty: give another key by --key, or delete the filter there" in err or "WRONGTYPE" in err
            found = read_filter(client, place) if occupant == "filter" else None
            assert {name for name in keys_at(client, place) if not found or found.id not in name} == {place}
        else:
            assert is_whole(client, place)
        client.delete(*keys_at(client, place))
    assert refused > 12


@pytest.mark.parametrize("how", [BEFORE, AFTER, LOST])
def test_every_moment(client: redis.Redis, key: str, exported: Path, say: Say, how: str) -> None:
    """At each command the restore is interrupted, or a reply is lost: the filter is whole, or nothing is left."""
    for moment in each_moment():
        place, moment.kind = f"{key}:{moment.at}", faulty(at=moment.at, how=how)
        try:
            moved(say, "restore", exported, at=place, kind=moment.kind)
        except KilledError:
            if not read_filter(client, place):
                assert not keys_at(client, place)
                moved(say, "restore", exported, at=place)
        assert is_whole(client, place)
    assert moment.at > 12


def test_a_process_that_is_killed(client: redis.Redis, key: str, exported: Path, say: Say) -> None:
    """At each command the process is killed: no filter is there before all of it is, and the rest expires in a day."""
    whole = faulty()
    moved(say, "restore", exported, at=f"{key}:copy", kind=whole)
    stays = []
    for at in range(1, whole.steps + 1):
        place = f"{key}:{at}"

        def restore(die: Callable[[], None], place: str = place) -> object:
            return say("restore", exported, at=place, kind=faulty(lambda _: die()))

        killed_at(at, restore)
        assert not read_filter(client, place)
        left = keys_at(client, place)
        stays.append(any(not 0 < client.pttl(name) <= DAY for name in left))
        moved(say, "restore", exported, at=place)
        client.delete(*left, "none")
        assert is_whole(client, place)
    # Except in the last steps: the second PERSIST of four, EXISTS, INFO, HGET and RENAMENX.
    assert [*map(bool, stays)] == [False] * (len(stays) - 7) + [True] * 7


@pytest.mark.parametrize("options", [SMALL, LARGE], ids=["three layers", "chunks"])
def test_a_shard_is_lost_at_any_moment(
    client: redis.Redis, key: str, path: Path, say: Say, options: dict[str, Any]
) -> None:
    """A shard that is evicted before the end is noticed, and nothing is left."""
    BloomFilter(client, key, **options).add_many(ITEMS)
    moved(say, "export", path)

    def evict(place: str) -> None:
        client.delete(*sorted(keys_at(client, place))[-1:], "none")

    refused = 0
    for moment in each_moment():
        place = f"{key}:{moment.at}"
        code, _, err = say("restore", path, at=place, kind=moment.act(evict, place))
        if code:
            refused += 1
            assert "has lost a part of the filter" in err or "no such key" in err
            assert "no such key" in err or not keys_at(client, place)
        elif keys_at(client, place) and not moment.is_past:
            assert shards_of(client, place) == {name: shards_of(client, key)[name] for name in shards_of(client, place)}
    assert refused > 3


@pytest.mark.parametrize("before_the_end", range(5))
def test_a_server_is_restarted(durable: Server, key: str, path: Path, before_the_end: int) -> None:
    """An export waits for the server, and its file is whole. A restarted server may lack a part: restore again."""
    at = ("--redis-url", durable.url, str(path))
    with durable.client() as client:
        BloomFilter(client, key, **SMALL).add_many(ITEMS)

        def restart_at(number: int) -> type[redis.Redis]:
            def restart(step: int) -> None:
                if step == number:
                    durable.kill()
                    durable.start()

            return faulty(restart)

        assert command.call("export", "--key", key, *at, REDIS_PARAMS={"redis_cls": restart_at(8)}) == 0
        whole, copy = faulty(), f"{key}:copy"
        assert command.call("restore", "--key", f"{key}:first", *at, REDIS_PARAMS={"redis_cls": whole}) == 0
        kind = restart_at(whole.steps - before_the_end)
        code = command.call("restore", "--key", copy, *at, REDIS_PARAMS={"redis_cls": kind})
        assert code == (2 if before_the_end > 1 else 0)
        if code:
            assert not keys_at(client, copy)
            assert command.call("restore", "--key", copy, *at) == 0
        assert is_whole(client, copy)


@on_each_server
def test_a_server_that_is_full_at_any_moment(client: redis.Redis, key: str, exported: Path, say: Say) -> None:
    """A full server is an error that says so, and nothing is left."""
    refused = 0
    try:
        for moment in each_moment():
            place = f"{key}:{moment.at}"
            code, _, err = say("restore", exported, at=place, kind=moment.act(client.config_set, "maxmemory", 1))
            client.config_set("maxmemory", 0)
            refused += code == 2
            assert ("raise the server's maxmemory" in err) == (code == 2)
            assert is_whole(client, place) == (code == 0)
            assert code == 0 or not keys_at(client, place)
    finally:
        client.config_set("maxmemory", 0)
    assert refused > 5


def test_an_export_that_is_killed(path: Path, say: Say, grown: BloomFilter) -> None:
    """A killed export leaves at most a private part, and the next one is not disturbed."""
    killed_at(7, lambda die: say("export", path, kind=faulty(lambda _: die())))
    (part,) = path.parent.iterdir()
    assert part.name.startswith("filter.bloom.")
    assert part.name.endswith(".part")
    assert part.stat().st_mode & 0o777 == 0o600
    assert moved(say, "export", path)["count"] == grown.info().count
