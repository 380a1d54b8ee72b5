"""`scrapy bloom export` and `restore`: no data is lost, and no damaged file is accepted."""

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter
from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.filter.info import read_filter
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.text import as_text
from tests.commands.conftest import Say
from tests.support import command
from tests.support.imports import AFTER, BEFORE, LOST, KilledError, each_moment, faulty
from tests.support.live_worker import LiveWorker
from tests.support.moving import SMALL, items, keys_at, killed_at
from tests.support.servers import KINDS, Server, expires_at, running

# Items for three layers.
ITEMS = items(600)
STRANGERS = items(500, "stranger")


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


of_three_layers = pytest.mark.usefixtures("grown")


def shards_of(client: redis.Redis, key: str) -> dict[str, Any]:
    """Return the bytes of each shard of a filter, by layer and number."""
    found = read_filter(client, key)
    assert found is not None
    prefix = f"{{{key}}}:{found.id}:"
    names = [name for name in keys_at(client, key) if name.startswith(prefix)]
    return {name.removeprefix(prefix): client.getrange(name, 0, -1) for name in names}


def unfinish(client: redis.Redis, key: str) -> None:
    """Make a filter as an import that was stopped leaves it."""
    text = BloomFilter(client, key, **SMALL).parameters.to_json()
    client.hset(key, "parameters", text.replace("{", '{"unfinished": "import", ', 1))


@on_each_server
def test_a_restored_filter_is_the_same(client: redis.Redis, key: str, path: Path, say: Say, grown: BloomFilter) -> None:
    """A restored filter has the same bits, counts and forgotten items, another id, and goes on."""
    client.hset(key, "lost", 2)
    assert all(grown.forget_many(ITEMS[:3]))
    before = grown.contains_many(STRANGERS)
    exported = moved(say, "export", path)
    assert (exported["layers"], exported["forgotten"]) == (3, 3)
    assert exported["file_bytes"] == path.stat().st_size
    assert exported["count"] == grown.info().count >= 590
    restored = moved(say, "restore", path, at=f"{key}:copy")
    assert (restored["layers"], restored["left_out"], restored["forgotten"]) == (3, 0, 3)
    assert (restored["count"], restored["written"]) == (exported["count"], exported["read"])
    one, two = (read_filter(client, each) for each in (key, f"{key}:copy"))
    assert one is not None
    assert two is not None
    assert one.id != two.id
    assert (one.secret, one.parameters) == (two.secret, two.parameters)
    assert (one.info.by_layer, one.info.lost_shards) == (two.info.by_layer, two.info.lost_shards)
    copied = shards_of(client, f"{key}:copy")
    original = shards_of(client, key)
    assert copied == {name: original[name] for name in copied}
    copy = BloomFilter(client, f"{key}:copy", **SMALL)
    assert copy.contains_many(ITEMS) == [False] * 3 + [True] * 597
    assert copy.contains_many(STRANGERS) == before
    assert copy.add_many(ITEMS[:4]) == [True] * 3 + [False]
    assert sum(copy.add_many(STRANGERS)) >= 490
    assert all(copy.contains_many([*ITEMS, *STRANGERS]))


@of_three_layers
@on_each_server
def test_a_shard_takes_no_more_memory(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """A restored shard is allocated like the original."""
    moved(say, "export", path)
    moved(say, "restore", path, at=f"{key}:copy")
    for name in shards_of(client, f"{key}:copy"):
        ids = [(each, client.hget(each, "id").decode()) for each in (key, f"{key}:copy")]  # type: ignore[union-attr]
        used = [client.memory_usage(f"{{{each}}}:{found}:{name}", samples=0) or 0 for each, found in ids]
        assert used[1] <= used[0] + 64


def test_a_filter_without_layers(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """An empty filter keeps its parameters and its secret."""
    BloomFilter(client, key, **SMALL)
    assert moved(say, "export", path)["layers"] == 0
    moved(say, "restore", path, at=f"{key}:copy")
    assert client.hget(key, "secret") == client.hget(f"{key}:copy", "secret")
    assert BloomFilter(client, f"{key}:copy", **SMALL).add("a")


# The file.


def test_the_file_is_private_and_not_overwritten(path: Path, say: Say, grown: BloomFilter) -> None:
    """The file holds the secret: it is private, and overwritten only on request."""
    moved(say, "export", path)
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    code, _, err = say("export", path)
    assert (code, "must not exist; give another path, or --overwrite" in err) == (2, True)
    assert path.read_bytes() == before
    grown.add_many(STRANGERS)
    moved(say, "export", path, "--overwrite")
    assert path.read_bytes() != before
    # Of two exports to the same file the first to end gives it its contents.
    path.unlink()
    second = faulty(lambda step: step == 10 and moved(say, "export", path))
    code, _, err = say("export", path, kind=second)
    assert (code, "must not exist" in err) == (2, True)
    assert [*path.parent.iterdir()] == [path]
    moved(say, "restore", path, "--overwrite")


def test_damaged_files_are_refused(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """A file with a changed byte, or a truncated one, is refused or restores the same filter."""
    BloomFilter(client, key, **SMALL).add("a")
    moved(say, "export", path)
    whole, copy = path.read_bytes(), f"{key}:copy"
    moved(say, "restore", path, at=copy)
    bits, refused = shards_of(client, copy), 0
    for place in range(0, len(whole), 9):
        altered = bytearray(whole)
        altered[place] ^= 1 << place % 8
        path.write_bytes(altered)
        code, _, err = say("restore", path, "--overwrite", at=copy)
        if code == 2:
            refused += 1
            assert "truncated or altered" in err or "has format" in err, err
        else:
            assert shards_of(client, copy) == bits
            assert BloomFilter(client, copy, **SMALL).contains_many(["a", "b"]) == [True, False]
        path.write_bytes(whole[:place])
        assert say("restore", path, at=f"{key}:other")[0] == 2
    assert refused > len(whole) // 9 * 0.7
    assert not keys_at(client, f"{key}:other")


IMPOSSIBLE: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "no shard": lambda members, _: members.pop("1:0"),
    "a short shard": lambda members, _: members.update({"1:0": members["1:0"][:-1]}),
    "no layers": lambda _, description: description.pop("layers"),
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


def test_impossible_files_are_refused(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """Impossible contents are detected before the first write, even with valid checksums."""
    BloomFilter(client, key, **SMALL).add("a")
    for change, alter in IMPOSSIBLE.items():
        moved(say, "export", path, "--overwrite")
        rewrite(path, alter)
        code, _, err = say("restore", path, at=f"{key}:copy")
        assert (code, ("upgrade scrapy-bloom" if change == "newer" else "truncated or altered") in err) == (2, True)
        assert not keys_at(client, f"{key}:copy")


# Beside crawls.


@pytest.mark.parametrize("number", [50, 500])
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
        exported = moved(say, "export", path, "--overwrite", at=name, kind=moment.act(work, bloom))
        moved(say, "restore", path, at=f"{name}:copy")
        copy = BloomFilter(client, f"{name}:copy", **SMALL)
        missing = [item for item, found in zip(ITEMS, copy.contains_many(ITEMS), strict=True) if not found]
        assert missing in (ITEMS[:1], ITEMS[:2])
        forgotten += missing == ITEMS[:2]
        assert copy.info().count == exported["count"] >= before
        # Of items that were not added about one is found.
        assert sum(copy.contains_many(STRANGERS)) <= exported["count"] - before + 25
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


@of_three_layers
def test_a_filter_that_lost_a_shard_is_not_exported(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """A lost shard is not exported as zeros, whether or not a worker replaces it meanwhile."""
    lost = next(name for name in keys_at(client, key) if name.endswith(":3:0"))
    bloom = BloomFilter(client, key, **SMALL)

    def evict_and_replace(step: int) -> None:
        if step == 8:
            client.delete(lost)
            bloom.add_many(STRANGERS)

    for kind in (faulty(evict_and_replace), None):
        code, _, err = say("export", path, kind=kind)
        assert (code, "has lost a shard" in err) == (2, True)
        assert not [*path.parent.iterdir()]
        client.delete(lost)


def test_an_unfinished_filter_is_not_exported(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """An unfinished filter is refused: its contents are incomplete."""
    unfinish(client, key)
    code, _, err = say("export", path)
    assert (code, "`scrapy bloom import` is filling it" in err) == (2, True)


def test_requests_that_stay_behind(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """An export counts the filter's requests that are not fetched yet: waiting, leased, failed and dead letters."""
    keys = QueueKeys(f"{key}:requests")
    worker = LiveWorker(client, keys.queue, key)
    assert "unfetched" not in say("export", path)[2]
    changes: list[tuple[Callable[[], object], int]] = [
        (lambda: worker.push(b"a", b"b"), 2),
        (lambda: worker.take(1), 2),
        (lambda: client.zadd(keys.dead_letters, {"c": 0, "d": 0}), 4),
        (lambda: client.hset(keys.failed, mapping={"e": "0 0 e", "f": "0 0 f"}), 6),
    ]
    for change, number in changes:
        change()
        said = say("export", path, "--overwrite", "--queue", keys.queue)[2]
        assert f"the filter knows {number} unfetched requests of the queue '{keys.queue}'" in said


# A TTL.


@on_each_server
def test_the_remaining_life(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """The keys of a restored filter expire as late after their layer's creation as the original's."""
    BloomFilter(client, key, **SMALL, ttl=1000).add_many(items(10))
    client.hset(key, "layers", age(layers_of(client, key), 300_000))
    moved(say, "export", path)
    moved(say, "restore", path, at=f"{key}:copy")
    assert all(BloomFilter(client, f"{key}:copy", **SMALL, ttl=1000).contains_many(items(10)))
    ids = [(each, client.hget(each, "id").decode()) for each in (key, f"{key}:copy")]  # type: ignore[union-attr]
    for name in ("", *shards_of(client, f"{key}:copy")):
        one, two = (expires_at(client, f"{{{each}}}:{found}:{name}" if name else each) for each, found in ids)
        assert one > 0
        assert abs(one - two - 300_000) <= 20_000  # Redis 6 tells 10 s only


def age(layers: str, milliseconds: int) -> str:
    """Return the field `layers` with an older first layer."""
    index, place, created, *others = layers.split(" ")
    return " ".join([index, place, str(int(created) - milliseconds), *others])


def layers_of(client: redis.Redis, key: str) -> str:
    return as_text(client.hget(key, "layers"))


def make_two_generations(client: redis.Redis, key: str) -> None:
    """Make a filter with a layer of each of two generations, and forgotten items in both."""
    bloom = BloomFilter(client, key, **SMALL, ttl=1000)
    bloom.add_many(items(10, "old"))
    assert bloom.forget("old 3")
    client.hset(key, "layers", age(layers_of(client, key), 300_000))
    bloom.add_many(items(10, "new"))
    assert bloom.forget("new 3")


def test_layers_that_end_before_a_restore(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """Layers whose life has ended are left out, and their forgotten items with them."""
    make_two_generations(client, key)
    assert moved(say, "export", path)["layers"] == 2
    rewrite(path, lambda _, each: each.update(layers=age(each["layers"], 1_000_000)))
    restored = moved(say, "restore", path, at=f"{key}:copy")
    assert (restored["layers"], restored["left_out"], restored["forgotten"], restored["count"]) == (1, 1, 1, 10)
    copy = BloomFilter(client, f"{key}:copy", **SMALL, ttl=1000)
    assert not any(copy.contains_many(items(10, "old")))
    assert copy.contains_many(items(4, "new")) == [True] * 3 + [False]


def test_a_layer_that_ends_during_an_export(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """At each command the older layer ends, and a worker deletes it: it is left out, or in the file as a whole."""

    def end(name: str) -> None:
        client.hset(name, "layers", age(layers_of(client, name), 1_000_000))
        client.delete(next(each for each in keys_at(client, name) if each.endswith(":1:0")))

    seen = set()
    for moment in each_moment():
        name = f"{key}:{moment.at}"
        make_two_generations(client, name)
        exported = moved(say, "export", path, "--overwrite", at=name, kind=moment.act(end, name))
        seen.add(exported["layers"])
        moved(say, "restore", path, at=f"{name}:copy")
        copy = BloomFilter(client, f"{name}:copy", **SMALL, ttl=1000)
        assert copy.contains_many(items(4, "new")) == [True] * 3 + [False]
        assert any(copy.contains_many(items(10, "old"))) == (exported["layers"] == 2)
    assert seen == {1, 2}


# The place of a restore.

# Data at the key of a restore: `--overwrite` replaces the first, and never the second.
OURS: dict[str, Callable[[redis.Redis, str], object]] = {
    "filter": lambda client, key: BloomFilter(client, key, capacity=7).add("old"),
    "incomplete filter": unfinish,
}
FOREIGN: dict[str, Callable[[redis.Redis, str], object]] = {
    "list": lambda client, key: client.rpush(key, "a"),
    "SET": lambda client, key: client.sadd(key, "a"),
    "hash": lambda client, key: client.hset(key, "a", "b"),
}


@of_three_layers
@pytest.mark.parametrize("occupant", [*OURS, *FOREIGN])
def test_nothing_is_overwritten_unless_that_is_asked_for(
    client: redis.Redis, key: str, path: Path, say: Say, occupant: str
) -> None:
    """A filter is overwritten only on request, and foreign data never."""
    moved(say, "export", path)
    place = f"{key}:copy"
    (OURS | FOREIGN)[occupant](client, place)
    before = {each: client.dump(each) for each in keys_at(client, place)}
    text = f"holds a {occupant}" if occupant in FOREIGN else "holds a filter: give another key by --key, or --overwrite"
    for options in ((), ("--overwrite",)) if occupant in FOREIGN else ((),):
        code, _, err = say("restore", path, *options, at=place)
        assert (code, text in err) == (2, True), err
        assert {each: client.dump(each) for each in keys_at(client, place)} == before
    if occupant in OURS:
        moved(say, "restore", path, "--overwrite", at=place)
        assert all(BloomFilter(client, place, **SMALL).contains_many(ITEMS))
        assert not {*before} & (keys_at(client, place) - {place})


@of_three_layers
@pytest.mark.parametrize("how", [BEFORE, AFTER, LOST])
def test_every_moment(client: redis.Redis, key: str, path: Path, say: Say, how: str) -> None:
    """At each command the restore is killed, or a reply is lost: no filter is opened that is not complete."""
    moved(say, "export", path)
    for moment in each_moment():
        place, moment.kind = f"{key}:{moment.at}", faulty(at=moment.at, how=how)
        try:
            moved(say, "restore", path, at=place, kind=moment.kind)
        except KilledError:
            found = read_filter(client, place)
            if found is None or found.unfinished is not None:
                assert found is not None or not keys_at(client, place)
                moved(say, "restore", path, at=place)
        assert all(BloomFilter(client, place, **SMALL).contains_many(ITEMS))
        found = read_filter(client, place)
        assert found is not None
        assert all(name == place or name.startswith(f"{{{place}}}:{found.id}:") for name in keys_at(client, place))
    assert moment.at > 12


@of_three_layers
@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)], ids=["", "overwrite"])
def test_others_at_any_moment(client: redis.Redis, key: str, path: Path, say: Say, overwrite: tuple[str, ...]) -> None:
    """Another filter appears, or another restore ends, at any command: there is one whole filter at the end."""

    def meddle(place: str, at: int) -> None:
        if at % 2:
            client.delete(place)
            BloomFilter(client, place, **SMALL).add_many(STRANGERS)
        else:
            moved(say, "restore", path, "--overwrite", at=place)

    moved(say, "export", path)
    refused = 0
    for moment in each_moment():
        place = f"{key}:{moment.at}"
        if overwrite:
            BloomFilter(client, place, **SMALL).add("old")
        kind = moment.act(meddle, place, moment.at)
        refused += say("restore", path, *overwrite, at=place, kind=kind)[0] == 2
        bloom = BloomFilter(client, place, **SMALL)
        assert all(bloom.contains_many(ITEMS)) != all(bloom.contains_many(STRANGERS))
    assert refused > 5


@of_three_layers
def test_a_shard_is_lost_or_altered_at_any_moment(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """A shard that others delete or change before the end is noticed."""

    def meddle(place: str, at: int) -> None:
        shards = sorted(keys_at(client, place) - {place})
        if shards and at % 2:
            client.delete(shards[-1])
        elif shards:
            client.setbit(shards[-1], 100, 1 - client.getbit(shards[-1], 100))

    moved(say, "export", path)
    refused = 0
    for moment in each_moment():
        place = f"{key}:{moment.at}"
        code, _, err = say("restore", path, at=place, kind=moment.act(meddle, place, moment.at))
        if code == 2:
            refused += 1
            assert "run it again" in err or "run this again" in err
            with pytest.raises(WrongTypeError, match="is not complete"):
                BloomFilter(client, place, **SMALL)
    assert refused > 3


@of_three_layers
@on_each_server
def test_no_room(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """A server without room is refused first, and nothing is deleted."""
    moved(say, "export", path)
    # Less than the used memory, which shrinks when the server frees the buffers of closed connections.
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) * 9 // 10)
    try:
        code, _, err = say("restore", path, at=f"{key}:copy")
    finally:
        client.config_set("maxmemory", 0)
    assert (code, "has no room for the filter" in err) == (2, True)
    assert not keys_at(client, f"{key}:copy")


def test_room_of_what_is_overwritten(key: str, path: Path) -> None:
    """The memory of the overwritten filter counts as free."""
    with running("valkey") as own, own.client() as client:
        at = ("--redis-url", own.url)
        BloomFilter(client, key, capacity=1_000_000).add_many(ITEMS)
        assert command.call("export", "--key", key, *at, str(path)) == 0
        bloom = BloomFilter(client, key, capacity=1_000_000, flush=True)
        bloom.add("old")
        client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + bloom.info().memory_bytes * 9 // 10)
        assert command.call("restore", "--key", f"{key}:copy", *at, str(path)) == 2
        assert command.call("restore", "--key", key, *at, str(path), "--overwrite") == 0
        assert all(BloomFilter(client, key, capacity=1_000_000).contains_many(ITEMS))


@of_three_layers
def test_an_export_that_is_killed(path: Path, say: Say) -> None:
    """A killed export leaves at most a private part, and the next one is not disturbed."""
    killed_at(7, lambda die: say("export", path, kind=faulty(lambda _: die())))
    (part,) = path.parent.iterdir()
    assert part.name.startswith("filter.bloom.")
    assert part.name.endswith(".part")
    assert part.stat().st_mode & 0o777 == 0o600
    moved(say, "export", path)
    moved(say, "restore", path, "--overwrite")


def test_a_server_goes_away_meanwhile(durable: Server, key: str, path: Path) -> None:
    """An export waits for an unreachable server, as a crawl does, and its file is whole."""
    with durable.client() as client:
        BloomFilter(client, key, **SMALL).add_many(ITEMS)

        def restart(step: int) -> None:
            if step == 8:
                durable.kill()
                durable.start()

        settings = {"REDIS_PARAMS": {"redis_cls": faulty(restart)}}
        place = ("--redis-url", durable.url, str(path))
        assert command.call("export", "--key", key, *place, **settings) == 0
        assert command.call("restore", "--key", f"{key}:copy", *place) == 0
        assert all(BloomFilter(client, f"{key}:copy", **SMALL).contains_many(ITEMS))


# Projects.


def test_in_a_project(valkey: Server, key: str, tmp_path: Path) -> None:
    """A spider's filter moves to another key; unsuitable settings are reported."""
    cwd = command.make_project(
        tmp_path / "project",
        REDIS_URL=valkey.url,
        SCHEDULER_DUPEFILTER_KEY=key + ":%(spider)s",
        BLOOMFILTER_CAPACITY=200,
    )
    path = tmp_path / "shop.bloom"
    with valkey.client() as client:
        BloomFilter(client, f"{key}:shop", capacity=200, fingerprint="scrapy-redis").add_many(items(100))
        told = command.report("export", "shop", str(path), cwd=cwd)
        assert (told["key"], told["layers"], told["file"]) == (f"{key}:shop", 1, str(path))
        said = command.run("restore", "news", str(path), "-s", "BLOOMFILTER_CAPACITY=300", cwd=cwd)
        assert said.returncode == 0
        assert f"restored 1 layer of 1.0 KB at '{key}:news'" in said.stdout
        assert "workers with these settings will be refused" in said.stderr
        assert "capacity = 300 here, 200 in the stored filter" in said.stderr
        copy = BloomFilter(client, f"{key}:news", capacity=200, fingerprint="scrapy-redis")
        assert all(copy.contains_many(items(100)))
        assert command.report("restore", "news", str(path), "--overwrite", cwd=cwd)["warnings"] == []


def test_outside_a_project(client: redis.Redis, key: str, path: Path, say: Say) -> None:
    """Refusals are one line, with exit code 2."""
    BloomFilter(client, key, **SMALL).add("a")
    assert say("export", path)[1].startswith(f"wrote {path} (")
    for action, file, at in (("restore", path.with_name("none"), key), ("export", path, f"{key}:none")):
        code, _, err = say(action, file, "--overwrite", at=at)
        assert (code, err.startswith("scrapy bloom: "), err.count("\n")) == (2, True, 1)
