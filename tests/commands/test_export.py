"""`scrapy bloom export` and `restore`: no data is lost, and no damaged file is accepted."""

import hashlib
import json
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from scrapy.settings import Settings

from devtools import move
from scrapy_bloom import BloomFilter
from scrapy_bloom._scrapy.connection import connect
from scrapy_bloom.cli import key_contents
from scrapy_bloom.cli.archive import exporting, file_format
from scrapy_bloom.cli.archive.file_format import Archive
from scrapy_bloom.cli.archive.restoring import FilterWriter, restore
from scrapy_bloom.errors import BloomError, ConfigError, MismatchError, RefusedError, WrongTypeError
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.queue_keys import QueueKeys
from scrapy_bloom.storage.operation import Operations, Results
from scrapy_bloom.storage.stores import MemoryStore, RedisStore, RetryingStore
from tests.support import command
from tests.support.moving import SMALL, export, items, keys_at, killed_at, read, require, restore_file
from tests.support.servers import Server, expires_at, running

# Items for three layers.
ITEMS = items(600)
STRANGERS = items(500, "stranger")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A path without a file."""
    return tmp_path / "filter.bloom"


of_three_layers = pytest.mark.usefixtures("grown")


@pytest.fixture
def grown(client: redis.Redis, key: str) -> BloomFilter:
    """A filter of three layers."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add_many(ITEMS)
    assert bloom.info().layers == 3
    return bloom


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}], ids=str)
def test_a_restored_filter_is_the_same(server: Server, key: str, path: Path, options: dict[str, Any]) -> None:
    """A restored filter has the same items and the same shape, and continues where the original was."""
    with server.client(**options) as client, server.client(db=3, **options) as elsewhere:
        bloom = BloomFilter(client, key, **SMALL)
        bloom.add_reference("somebody")
        bloom.add_many(ITEMS)
        before = bloom.contains_many(STRANGERS)
        done = export(client, key, path)
        assert (done.layers, done.file_bytes) == (3, path.stat().st_size)
        restored = restore_file(elsewhere, key, path)
        assert (restored.layers, restored.left_out, restored.granted) == (3, 0, done.granted)
        copy = BloomFilter(elsewhere, key, **SMALL)
        assert all(copy.contains_many(ITEMS))
        assert copy.contains_many(STRANGERS) == before
        assert [layer.bits for layer in copy.info().by_layer] == [layer.bits for layer in bloom.info().by_layer]
        here, there = (json.loads(str(_text(each.hget(key, "filter")))) for each in (client, elsewhere))
        assert here.pop("epoch") != there.pop("epoch")
        assert here == there
        fields = {_text(name): _text(value) for name, value in elsewhere.hgetall(key).items()}
        assert not {name for name in fields if name.startswith(("user:", "unfinished"))}
        counters = [value for name, value in sorted(fields.items()) if name.startswith("credit:")]
        assert [value.startswith("closed ") for value in counters] == [True, True, False]
        assert sum(copy.add_many(STRANGERS)) >= 490
        assert all(copy.contains_many([*ITEMS, *STRANGERS]))
        elsewhere.delete(*keys_at(elsewhere, key))


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@of_three_layers
def test_the_bytes_are_the_same_and_take_no_more_memory(client: redis.Redis, key: str, path: Path) -> None:
    """All bytes but the shards' headers are equal, and a shard takes its size class of memory."""
    export(client, key, path)
    restore_file(client, f"{key}:copy", path)
    for layer in range(3):
        one, two = (f"{name}:{layer}:0" for name in (key, f"{key}:copy"))
        assert client.getrange(one, 8, -1) == client.getrange(two, 8, -1)
        assert client.getrange(one, 0, 0) == client.getrange(two, 0, 0)
        used = [client.memory_usage(each, samples=0) or 0 for each in (one, two)]
        assert used[1] <= used[0] + 64


def test_room_for_what_came_meanwhile(client: redis.Redis, key: str, path: Path) -> None:
    """The exported counter covers concurrent additions: it is read after the bits."""
    bloom = BloomFilter(client, key, **{**SMALL, "capacity": 2000})
    bloom.add_many(ITEMS)
    done = export(client, key, path, advance=lambda _: bloom.add_many(STRANGERS))
    assert done.granted >= len(ITEMS) + 490


def test_the_file_is_private_and_not_overwritten(client: redis.Redis, key: str, path: Path, grown: BloomFilter) -> None:
    """The file holds the secret hash key: it is private, and overwritten only on request."""
    export(client, key, path)
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="must not exist; give another path, or --overwrite"):
        export(client, key, path)
    assert path.read_bytes() == before
    grown.add_many(STRANGERS)
    export(client, key, path, overwrite=True)
    assert path.read_bytes() != before
    assert [*path.parent.iterdir()] == [path]


@of_three_layers
def test_two_exports_to_one_file(client: redis.Redis, key: str, path: Path) -> None:
    """A second export to the same file is refused while the first one writes; its file is whole."""
    refusals = []

    def second(_: int) -> None:
        with pytest.raises(ConfigError, match="another process is writing it") as refusal:
            export(client, key, path)
        refusals.append(refusal)

    export(client, key, path, advance=second)
    assert len(refusals) == 3
    assert len(read(path).filter.layers) == 3


def test_damaged_files_are_refused(valkey: Server, key: str, path: Path) -> None:
    """Every changed byte, truncation and surplus byte is detected."""
    with valkey.client() as client:
        BloomFilter(client, key, **SMALL).add("a")
        export(client, key, path)
    whole = path.read_bytes()
    assert len(read(path).filter.layers) == 1
    for place in range(len(whole)):
        altered = bytearray(whole)
        altered[place] ^= 1 << place % 8
        for damaged in (bytes(altered), whole[:place]):
            path.write_bytes(damaged)
            with pytest.raises(ConfigError, match=r"truncated or altered|must be a file of|has format"):
                read(path)
    path.write_bytes(whole + b"\n")
    with pytest.raises(ConfigError, match="truncated or altered"):
        read(path)


def _rewrite(whole: bytes, change: Callable[[bytes, bytes], bytes | None]) -> bytes:
    """Return the file with other records and a matching checksum."""
    end = whole.index(b"\n") + 1
    result, records = whole[:end], whole[end:-32]
    while records:
        kind, length = struct.unpack(">cI", records[:5])
        content = change(kind, records[5 : 5 + length])
        if content is not None:
            result += struct.pack(">cI", kind, len(content)) + content
        records = records[5 + length :]
    return result + hashlib.sha256(result).digest()


FORGED = {
    "no piece": lambda kind, content: None if kind == b"P" else content,
    "a short piece": lambda kind, content: content[:20] + zlib.compress(b"a") if kind == b"P" else content,
    "a long piece": lambda kind, content: content[:20] + zlib.compress(bytes(10**7)) if kind == b"P" else content,
    "no zlib": lambda kind, content: content[:20] + b"text" if kind == b"P" else content,
    "another place": lambda kind, content: content[:12] + bytes(8) + content[20:] if kind == b"P" else content,
    "a shard of terabytes": lambda _, content: content.replace(b'\\"shards\\": 1', b'\\"shards\\": 9000'),
    "another epoch": lambda _, content: content.replace(b'"{\\"epoch\\": ', b'"{\\"epoch\\": 1'),
    "no counter": lambda _, content: content.replace(b'"counters"', b'"others"'),
    "a strange counter": lambda kind, content: (
        content.replace(b'{"0": "', b'{"0": "many ') if kind == b"T" else content
    ),
    "an empty record": lambda kind, content: content if kind != b"T" else b"",
    "a text": lambda kind, content: b'"text"' if kind == b"H" else content,
    "no filter": lambda _, content: content.replace(b'\\"capacity\\"', b'\\"room\\"'),
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_impossible_files_are_refused(
    valkey: Server, key: str, path: Path, change: Callable[[bytes, bytes], bytes | None]
) -> None:
    """Impossible contents are detected before the first write, even with a valid checksum."""
    with valkey.client() as client:
        BloomFilter(client, key, **SMALL).add("a")
        export(client, key, path)
        whole = path.read_bytes()
        assert _rewrite(whole, lambda _, content: content) == whole
        path.write_bytes(_rewrite(whole, change))
        with pytest.raises(ConfigError, match="describes no filter, though its checksum is valid"):
            restore_file(client, f"{key}:copy", path)
        assert not keys_at(client, f"{key}:copy")


def test_what_was_in_before_is_in_the_file(valkey: Server, tmp_path: Path, key: str) -> None:
    """Concurrent additions and growth during the export lose no earlier item."""

    def act(*arguments: str) -> None:
        assert command.call(*arguments) == 0

    place = valkey.address
    measured = move.run(place, tmp_path, key=key, number=20_000, processes=2, capacity=15_000, act=act)
    assert measured["missing"] == 0
    assert measured["added meanwhile"] > 0


def test_a_filter_that_is_replaced_is_not_exported(
    client: redis.Redis, key: str, path: Path, grown: BloomFilter
) -> None:
    """A filter that is cleared or replaced during its export is refused, and no file is left."""

    def replace(_: int) -> None:
        grown.clear()
        grown.add_many(ITEMS)

    with pytest.raises(MismatchError, match="was replaced or cleared while it was read"):
        export(client, key, path, advance=replace)
    with pytest.raises(MismatchError, match="was replaced or cleared while it was read"):
        export(client, key, path, advance=lambda _: grown.clear())
    assert not [*path.parent.iterdir()]


@of_three_layers
@pytest.mark.parametrize("lost", [0, 2])
def test_a_filter_that_lost_a_shard_is_not_exported(client: redis.Redis, key: str, path: Path, lost: int) -> None:
    """A lost shard is not exported as zeros, not even after a late write has recreated its key."""
    last = 8 * client.strlen(f"{key}:{lost}:0") - 1
    client.delete(f"{key}:{lost}:0")
    with pytest.raises(MismatchError, match="has lost its shard"):
        export(client, key, path)
    client.setbit(f"{key}:{lost}:0", last, 1)
    with pytest.raises(MismatchError, match="has lost its shard"):
        export(client, key, path)
    assert not [*path.parent.iterdir()]


def test_a_filter_without_layers(client: redis.Redis, key: str, path: Path) -> None:
    """An empty filter keeps its parameters and hash key; an unfinished layer is left out."""
    BloomFilter(client, key, **SMALL)
    export(client, key, path)
    restore_file(client, f"{key}:copy", path)
    assert BloomFilter(client, f"{key}:copy", **SMALL).add("a")
    layer = client.hget(f"{key}:copy", "layer:0") or b""
    epochs = [json.loads(client.hget(each, "filter") or "")["epoch"] for each in (f"{key}:copy", key)]
    client.hset(key, "layer:0", layer.decode().replace(str(epochs[0]), str(epochs[1])))  # type: ignore[union-attr]
    assert export(client, key, path, overwrite=True).layers == 0


class Clock:
    """A clock that a test sets."""

    time = 1000.0

    def __call__(self) -> float:
        return self.time


def test_a_layer_that_ends_meanwhile_is_left_out(path: Path) -> None:
    """Layers that expire during the export, or before the restore, are left out."""
    clock = Clock()
    store = MemoryStore(clock)
    bloom = BaseBloomFilter(store, "filter", FilterParameters(100, 1e-3, ttl=100.0), cache_size=0, monotonic=clock)
    for generation in range(5):
        clock.time = 1000.0 + 21 * generation
        bloom.add_many(items(10, f"generation {generation}"))
    found = require(store, "filter")
    assert len(found.layers) == 5

    def end(_: int) -> None:
        clock.time = 1150.0
        bloom.contains_many(["a"])  # deletes expired layers

    assert exporting.export(store, found, path, advance=end).layers == 4
    with path.open("rb") as file:
        kept = file_format.read(Archive(path, file))
        restoring = FilterWriter(store, "copy", kept, clock.time)
        assert (len(restoring.layers), restoring.outcome.left_out) == (3, 1)
        restoring.write()
        restoring.compare()
        restoring.finish()
    copy = BaseBloomFilter(store, "copy", bloom.parameters, cache_size=0, monotonic=clock)
    for generation in range(2, 5):
        assert all(copy.contains_many(items(10, f"generation {generation}")))


@of_three_layers
def test_an_unfinished_filter_is_not_exported(client: redis.Redis, key: str, path: Path) -> None:
    """An unfinished filter is refused: its contents are incomplete."""
    client.hset(key, "unfinished", "import")
    with pytest.raises(WrongTypeError, match="`scrapy bloom import` is filling it"):
        export(client, key, path)


@of_three_layers
def test_a_restore_does_not_finish_that_of_another(client: redis.Redis, key: str, path: Path) -> None:
    """A delayed restore does not finish a filter that another restore has begun."""
    export(client, key, path)
    store = RedisStore(client)
    with path.open("rb") as file:
        found = file_format.read(Archive(path, file))
        first, second = (FilterWriter(store, f"{key}:copy", found, 0.0) for _ in range(2))
        first.write()
        assert key_contents.delete_contents(store, key_contents.inspect_key(store, f"{key}:copy"))
        second.write()
    with pytest.raises(MismatchError, match="was cleared or replaced"):
        first.finish()
    assert client.hget(f"{key}:copy", "unfinished") is not None
    second.finish()
    second.finish()
    assert client.hget(f"{key}:copy", "unfinished") is None


def test_a_restored_filter_with_a_ttl_expires(client: redis.Redis, key: str, path: Path) -> None:
    """The keys of a restored filter expire at the same time as the original's."""
    BloomFilter(client, key, **SMALL, ttl=1000).add_many(items(30))
    export(client, key, path)
    restore_file(client, f"{key}:copy", path)
    for suffix in ("", ":0:0"):
        assert expires_at(client, f"{key}:copy{suffix}") == expires_at(client, f"{key}{suffix}") > 0


def _leave_second_shard(client: redis.Redis, key: str) -> None:
    """Leave a restore whose hash and first shards another process has deleted."""
    bloom = BloomFilter(client, key, **SMALL)
    bloom.add_many(ITEMS)
    client.delete(key, f"{key}:0:0")


# The contents of the key, the error and its text, and whether they may be overwritten.
OCCUPANTS: dict[str, tuple[Callable[[redis.Redis, str], object], type[BloomError], str, bool]] = {
    "a filter": (
        lambda client, key: BloomFilter(client, key, capacity=7).add("old"),
        ConfigError,
        "holds a filter: give another key by --key, or --overwrite",
        True,
    ),
    "shards alone": (
        lambda client, key: (BloomFilter(client, key, capacity=7).add("old"), client.delete(key)),
        ConfigError,
        "holds shards of a filter whose hash is gone: give",
        True,
    ),
    "a later shard alone": (
        _leave_second_shard,
        ConfigError,
        "holds shards of a filter whose hash is gone: give",
        True,
    ),
    "a damaged filter": (
        lambda client, key: (BloomFilter(client, key, capacity=7).add("old"), client.hset(key, "filter", "{")),
        ConfigError,
        "holds a filter that cannot be read: give",
        True,
    ),
    "a hash that may be another's": (
        lambda client, key: client.hset(key, "user:1", "a"),
        WrongTypeError,
        "holds a hash that may not be",
        False,
    ),
    "a list": (lambda client, key: client.rpush(key, "a"), WrongTypeError, "holds a list", False),
    "a SET": (lambda client, key: client.sadd(key, "a"), ConfigError, "holds a SET: give", False),
    "a hash": (lambda client, key: client.hset(key, "a", "b"), WrongTypeError, "holds a hash", False),
    "a string for bits": (
        lambda client, key: client.set(f"{key}:1:0", "text of others"),
        WrongTypeError,
        "holds something that is not a filter's",
        False,
    ),
}


@of_three_layers
@pytest.mark.parametrize("occupant", OCCUPANTS)
def test_nothing_is_overwritten_unless_that_is_asked_for(
    client: redis.Redis,
    key: str,
    path: Path,
    occupant: str,
) -> None:
    """A filter is overwritten only on request, and foreign data never."""
    occupy, error, text, gives_way = OCCUPANTS[occupant]
    export(client, key, path)
    place = f"{key}:copy"
    occupy(client, place)
    before = {each: client.dump(each) for each in keys_at(client, place)}
    with pytest.raises(error, match=text):
        restore_file(client, place, path)
    assert {each: client.dump(each) for each in keys_at(client, place)} == before
    if gives_way:
        restore_file(client, place, path, overwrite=True)
        assert all(BloomFilter(client, place, **SMALL).contains_many(ITEMS))
    else:
        with pytest.raises(WrongTypeError):
            restore_file(client, place, path, overwrite=True)
        assert {each: client.dump(each) for each in keys_at(client, place)} == before


@of_three_layers
def test_what_was_not_looked_at_is_not_overwritten(client: redis.Redis, key: str, path: Path) -> None:
    """A filter that appears after the inspection is not overwritten."""
    export(client, key, path)
    place = f"{key}:copy"
    BloomFilter(client, place, **SMALL)

    class Meddled(RedisStore):
        """A store where another filter appears during the inspection of the shards."""

        def execute(self, operations: Operations) -> Results:
            if len(operations) > 1:
                client.delete(place)
                BloomFilter(client, place, **SMALL)
            return super().execute(operations)

    with pytest.raises(ConfigError, match="other data by now, which stays"):
        restore(Meddled(client), client, place, read(path), overwrite=True)
    assert keys_at(client, place) == {place}


@of_three_layers
@pytest.mark.parametrize("overwrite", [False, True])
def test_two_restores_of_one_file(client: redis.Redis, key: str, path: Path, overwrite: bool) -> None:
    """A filter that one restore has finished is not deleted by a second one: workers use it."""
    export(client, key, path)
    place = f"{key}:copy"

    class Finished(RedisStore):
        """A store whose first restore ends during the second one's inspection."""

        is_finished = False

        def execute(self, operations: Operations) -> Results:
            if len(operations) > 1 and not self.is_finished:
                self.is_finished = True
                first.finish()
            return super().execute(operations)

    with path.open("rb") as file:
        found = file_format.read(Archive(path, file))
        first = FilterWriter(RedisStore(client), place, found, 0.0)
        first.write()
        with pytest.raises(ConfigError, match="other data by now, which stays"):
            restore(Finished(client), client, place, found, overwrite=overwrite)
    assert all(BloomFilter(client, place, **SMALL).contains_many(ITEMS))


@of_three_layers
def test_no_room(client: redis.Redis, key: str, path: Path) -> None:
    """A server without room is refused first, and nothing is deleted."""
    export(client, key, path)
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 100)
    try:
        with pytest.raises(RefusedError, match="has no room for the filter"):
            restore_file(client, f"{key}:copy", path)
    finally:
        client.config_set("maxmemory", 0)
    assert not keys_at(client, f"{key}:copy")


def test_room_of_what_is_overwritten(key: str, path: Path) -> None:
    """The memory of the overwritten filter counts as free."""
    with running("valkey") as own, own.client() as client:
        BloomFilter(client, key, capacity=1_000_000).add_many(ITEMS)
        export(client, key, path)
        bloom = BloomFilter(client, key, capacity=1_000_000, flush=True)
        bloom.add("old")
        client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + bloom.info().memory_bytes * 9 // 10)
        with pytest.raises(RefusedError, match="has no room for the filter"):
            restore_file(client, f"{key}:copy", path)
        restore_file(client, key, path, overwrite=True)
        assert all(BloomFilter(client, key, capacity=1_000_000).contains_many(ITEMS))


def test_a_restore_that_is_killed(server: Server, key: str, path: Path) -> None:
    """A killed restore leaves a refused filter; a second run completes it."""
    with server.client() as client:
        BloomFilter(client, key, **SMALL).add_many(ITEMS)
        export(client, key, path)
        other = path.with_name("other")
        BloomFilter(client, f"{key}:other", **SMALL).add("a")
        export(client, f"{key}:other", other)
        place = f"{key}:copy"
        for part in (1, 3, 4, 6):
            killed_at(part, lambda advance: restore_file(server.client(), place, path, advance=advance))
            with pytest.raises(WrongTypeError, match="is not complete: `scrapy bloom restore`"):
                BloomFilter(client, place, **SMALL)
            with pytest.raises(ConfigError, match="or --overwrite"):
                restore_file(client, place, other)
        restore_file(client, place, path)
        assert all(BloomFilter(client, place, **SMALL).contains_many(ITEMS))


def test_an_export_that_is_killed(server: Server, key: str, path: Path) -> None:
    """A killed export leaves at most a private partial file, which the next export takes over."""
    with server.client() as client:
        BloomFilter(client, key, **SMALL).add_many(ITEMS)
        killed_at(2, lambda advance: export(server.client(), key, path, advance=advance))
        (part,) = path.parent.iterdir()
        assert part.name == "filter.bloom.part"
        assert part.stat().st_mode & 0o777 == 0o600
        export(client, key, path)
        assert list(path.parent.iterdir()) == [path]
        assert len(read(path).filter.layers) == 3


@of_three_layers
def test_somebody_writes_during_a_restore(client: redis.Redis, key: str, path: Path) -> None:
    """Foreign bits, a cleared filter and a replaced filter are detected."""
    export(client, key, path)
    place = f"{key}:copy"
    flip = iter([lambda: client.setbit(f"{place}:2:0", 100, 1 - client.getbit(f"{place}:2:0", 100))])
    calls = iter(range(3))

    def write_late(_: int) -> None:
        if next(calls, None) == 2:  # all is written by then
            next(flip)()

    with pytest.raises(MismatchError, match="differ from the file"):
        restore_file(client, place, path, advance=write_late)
    with pytest.raises(WrongTypeError, match="is not complete"):
        BloomFilter(client, place, **SMALL)

    def clear(_: int) -> None:
        client.delete(*keys_at(client, place))

    with pytest.raises(MismatchError, match=r"the restored filter at .* was cleared or replaced"):
        restore_file(client, place, path, advance=clear)
    assert not keys_at(client, place)


@pytest.mark.parametrize("what", ["waiting", "leased", "dead letters"])
def test_requests_that_stay_behind(
    what: str, valkey: Server, key: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An export counts the filter's requests that are not fetched yet."""
    keys = QueueKeys(f"{key}:requests")
    places = {"waiting": keys.queue, "leased": keys.leases("worker-1"), "dead letters": keys.dead_letters}
    arguments = ("export", str(path), "--key", key, "--redis-url", valkey.url, "--overwrite")
    with valkey.client() as client:
        BloomFilter(client, key, **SMALL).add_reference(keys.queue)
        client.hset(keys.workers, "worker-1", "60 7 3")
        assert command.call(*arguments) == 0
        assert "unfetched" not in capsys.readouterr().err
        client.zadd(places[what], {"a": 0, "b": 0})
        assert command.call(*arguments) == 0
    assert f"the filter knows 2 unfetched requests of the queue '{key}:requests'" in capsys.readouterr().err


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
        assert f"restored 1 layer of 824 bytes at '{key}:news'" in said.stdout
        assert said.stderr.splitlines() == [
            "scrapy bloom: BLOOMFILTER_CAPACITY = 300 here, 200 in the file: workers with these settings will be "
            "refused"
        ]
        copy = BloomFilter(client, f"{key}:news", capacity=200, fingerprint="scrapy-redis")
        assert all(copy.contains_many(items(100)))


def test_outside_a_project(valkey: Server, key: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Outside a project the key and the URL are given; refusals are one line, with exit code 2."""
    with valkey.client() as client:
        BloomFilter(client, key, **SMALL).add_many(ITEMS)
    where = ["--redis-url", valkey.url]
    assert command.call("export", "--key", key, *where, str(path)) == 0
    assert command.call("export", "--key", key, *where, str(path)) == 2
    capsys.readouterr()
    assert command.call("restore", "--key", f"{key}:copy", *where, str(path), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["layers"], told["warnings"]) == (3, [])
    assert command.call("restore", "--key", f"{key}:copy", *where, str(path)) == 2
    path.write_bytes(path.read_bytes()[:-1])
    assert command.call("restore", "--key", f"{key}:third", *where, str(path)) == 2
    assert command.call("restore", "--key", f"{key}:third", *where, str(path.with_name("none"))) == 2
    assert command.call("export", "--key", f"{key}:none", *where, str(path), "--overwrite") == 2
    assert [line.startswith("scrapy bloom: ") for line in capsys.readouterr().err.splitlines()] == [True] * 4


def test_a_server_goes_away_meanwhile(durable: Server, key: str, path: Path) -> None:
    """An export waits for an unreachable server, as a crawl does, and its file is whole."""
    with durable.client() as client:
        BloomFilter(client, key, **SMALL).add_many(ITEMS)
    parts = iter([1])

    def restart(_: int) -> None:
        if next(parts, None):
            durable.kill()
            threading.Timer(0.2, durable.start).start()

    client = connect(Settings({"REDIS_URL": durable.url}))
    store = RetryingStore(RedisStore(client), 30.0)
    exporting.export(store, require(store, key), path, advance=restart)
    assert len(read(path).filter.layers) == 3
