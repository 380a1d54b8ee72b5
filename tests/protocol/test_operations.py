"""Each operation has the same reply and bytes over Redis and in memory."""

from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrapy_bloom.storage import bits, counters, filter_hash, forgotten, shard_header, shards
from scrapy_bloom.storage.operation import Operations
from scrapy_bloom.storage.stores import MemoryStore, RedisStore
from tests.support.servers import expires_at

# A shard ends with a size class.
SIZE = 64
BITS = (SIZE - 8) * 8
EPOCHS = (1, 2**40 - 1)
# Unix times in milliseconds: long past, and far ahead.
TIMES = (1000, 10**13, 2 * 10**13)


class InspectWithoutMemory(forgotten.InspectForgotten):
    """An operation whose result leaves out the memory, which this process cannot tell."""

    def parse_reply(self, raw: Any) -> forgotten.ForgottenSet:
        return super().parse_reply(raw)._replace(memory_bytes=0)


names = st.sampled_from(["0:0", "0:1"])
expiries = st.none() | st.sampled_from(TIMES)
epochs = st.sampled_from(EPOCHS)
versions = st.sampled_from([0, 5, 1024, 1030, 16_384, 32_767])
items = st.sampled_from([b"", b"a", b"\xff\0"])
held = st.lists(st.tuples(items, st.integers(0, 3)), max_size=3, unique_by=lambda each: each[0]).map(tuple)
positions = st.lists(st.integers(0, BITS - 1), min_size=1, max_size=4)
operations = st.one_of(
    st.builds(
        shards.CreateShard,
        names,
        st.sampled_from([SIZE, SIZE + 16]),
        st.sampled_from(EPOCHS),
        st.booleans(),
        expiries,
        st.booleans(),
        st.sampled_from([None, 0, *EPOCHS]),
    ),
    st.builds(shards.PrepareShard, names, st.sampled_from([SIZE, SIZE + 16]), st.just(SIZE)),
    st.builds(shards.InspectShard, names),
    st.builds(shards.DeleteShard, names, st.sampled_from([None, 0, *EPOCHS]), st.booleans(), st.none() | versions),
    st.builds(bits.CheckBits, names, positions, st.booleans()),
    st.builds(bits.LookUpBits, names, positions),
    st.builds(shards.SealShard, names),
    st.builds(shards.ReadPiece, names, st.sampled_from([0, 8, 40]), st.sampled_from([7, SIZE - 1, SIZE + 9])),
    st.builds(
        shards.WritePiece, names, st.sampled_from(EPOCHS), st.sampled_from([8, 40, SIZE]), st.binary(max_size=20)
    ),
    st.builds(bits.CountBits, names, st.just(8), st.sampled_from([SIZE - 1, SIZE // 2])),
    st.builds(filter_hash.Unlink, st.sampled_from(["0:0", "0:1", "meta"])),
    st.builds(
        filter_hash.SetFieldIfAbsent,
        st.just("meta"),
        st.sampled_from(["filter", "layer:0"]),
        st.sampled_from(["{}", "1"]),
        expiries,
    ),
    st.builds(filter_hash.DeleteField, st.just("meta"), st.sampled_from(["filter", "layer:0"])),
    st.builds(filter_hash.Load, st.just("meta")),
    st.builds(
        filter_hash.DeleteHash,
        st.sampled_from(["meta", "0:0"]),
        st.sampled_from(["{}", "1", ""]),
        st.sampled_from(["", "restore"]),
        st.sampled_from([(), ("filter",), ("filter", "credit")]),
        st.booleans(),
    ),
    st.builds(filter_hash.DeleteUnusedHash, st.sampled_from(["meta", "0:0"]), st.sampled_from(["{}", "1"])),
    st.builds(filter_hash.RemoveReference, st.just("meta"), st.sampled_from(["user:a", "user:b"])),
    st.builds(
        filter_hash.SetFieldIfAbsent, st.just("meta"), st.sampled_from(["user:a", "user:b"]), st.just("1"), expiries
    ),
    st.builds(filter_hash.DeleteSet, st.sampled_from(["meta", "0:0"]), st.just((b"a",)), st.booleans()),
    st.builds(
        filter_hash.RestoreFields,
        st.just("meta"),
        st.just("filter"),
        st.sampled_from(
            [(("filter", "{}"),), (("filter", "1"), ("credit", "7")), (("filter", "1"), ("unfinished", "restore"))]
        ),
        expiries,
    ),
    st.builds(
        filter_hash.SetFieldIfAbsent,
        st.just("meta"),
        st.just("credit"),
        st.sampled_from(["0", "90", "closed 5"]),
        expiries,
    ),
    st.builds(
        counters.GrantCredit,
        st.just("meta"),
        st.just("credit"),
        st.integers(0, 40),
        st.integers(0, 9),
        st.sampled_from([counters.UNLIMITED, 0, 100, 10_000]),
    ),
    st.builds(
        filter_hash.SetFieldFenced,
        st.just("meta"),
        st.just("layer:0"),
        st.just("x"),
        st.sampled_from(["{}", "1"]),
        expiries,
    ),
    st.builds(counters.ChargeCounter, st.just("meta"), st.just("credit"), st.integers(1, 9)),
    st.builds(counters.CloseCounter, st.just("meta"), st.just("credit")),
    st.builds(counters.ReturnCredit, st.just("meta"), st.just("credit"), st.integers(1, 9)),
    st.builds(forgotten.ForgetItems, st.just("forgotten"), epochs, held, st.none() | versions, expiries),
    st.builds(
        forgotten.ClaimForgotten,
        st.just("forgotten"),
        epochs,
        st.lists(
            st.builds(forgotten.Claim, items, st.integers(0, 3), versions.map(lambda version: version | 1 << 15)),
            min_size=1,
            max_size=3,
        ).map(tuple),
    ),
    st.builds(forgotten.LookUpForgotten, st.just("forgotten"), epochs, st.lists(items, max_size=3).map(tuple)),
    st.builds(
        forgotten.DropForgotten, st.just("forgotten"), epochs, st.lists(items, max_size=2, unique=True).map(tuple)
    ),
    st.builds(forgotten.DeleteForgotten, st.just("forgotten")),
    st.builds(forgotten.MarkForgotten, names, epochs, versions),
    st.builds(forgotten.ScanForgotten, st.just("forgotten"), st.just(0)),
    st.builds(InspectWithoutMemory, st.just("forgotten"), epochs),
)
# Foreign values at a shard's key, and remains of late writes.
STRINGS = [b"", b"text of somebody else's", bytes(12), b"\1", b"\1\0\0\0\0\0\0\1", b"\2", b"\0\0\1"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(sequence=st.lists(operations, max_size=12), before=st.none() | st.sampled_from(STRINGS))
def test_memory_is_the_twin_of_redis(client: redis.Redis, key: str, sequence: Operations, before: bytes | None) -> None:
    """Any sequence of operations gives the same replies, strings and expiries in both stores."""
    names = {name: f"{key}:{name}" for name in ("meta", "0:0", "0:1", "forgotten")}
    client.delete(*names.values())
    over_redis, memory = RedisStore(client), MemoryStore()
    if before is not None:
        client.set(names["0:0"], before)
        memory.strings[names["0:0"]] = bytearray(before)
    moved = [op._replace(key=names[op.key]) for op in sequence]  # type: ignore[attr-defined]
    said = over_redis.execute(moved), memory.execute(moved)
    for here, there in zip(*said, strict=True):
        if isinstance(here, filter_hash.Snapshot):
            assert here._replace(now=0) == there._replace(now=0)
        else:
            assert here == there
    for name in (names["0:0"], names["0:1"]):
        stored = client.get(name)
        assert stored is None or isinstance(stored, bytes)
        assert (stored or b"").rstrip(b"\0") == bytes(memory.strings.get(name, b"")).rstrip(b"\0")
    members: Any = client.zrange(names["forgotten"], 0, -1, withscores=True)
    in_memory = memory.hashes.get(names["forgotten"], {})
    assert {name.decode("latin-1"): str(int(score)) for name, score in members} == in_memory
    for name in names.values():
        # A prepared string expires some time after now.
        assert abs(expires_at(client, name) - memory.expiries.get(name, 0)) < 60_000


def test_the_header_is_where_the_format_says(client: redis.Redis, key: str) -> None:
    """Alive (7 bits), sealed (1), epoch (40) and the mark of forgotten items (16), in this order."""
    store = RedisStore(client)
    store.execute([shards.CreateShard(key, SIZE, 0x123456789A, sealed=False)])
    assert client.get(key) == bytes.fromhex("02123456789a0000").ljust(SIZE, b"\0")
    store.execute([shards.SealShard(key)])
    assert client.get(key) == bytes.fromhex("03123456789a0000").ljust(SIZE, b"\0")
    store.execute([forgotten.MarkForgotten(key, 0x123456789A, 0x1234)])
    assert client.get(key) == bytes.fromhex("03123456789a9234").ljust(SIZE, b"\0")


def test_a_prepared_string_becomes_a_shard(client: redis.Redis, key: str) -> None:
    """A prepared string expires, until a shard of its size takes it in place; nothing else is then allocated."""
    store = RedisStore(client)
    create = shards.CreateShard(key, SIZE, 7, sealed=False, allocate=False)
    prepare = shards.PrepareShard(key, SIZE, SIZE)
    outcomes = [store.execute([operation])[0].outcome for operation in (create, prepare, prepare)]
    assert outcomes == [shards.ABSENT, shards.MADE, shards.PRESENT]
    assert 0 < client.ttl(key) <= 24 * 3600
    assert store.execute([create._replace(size=SIZE + 16)])[0].outcome == shards.ABSENT
    assert store.execute([create])[0].outcome == shards.MADE
    assert client.get(key) == bytes.fromhex("0200000000070000").ljust(SIZE, b"\0")
    assert client.ttl(key) == -1
    assert [store.execute([operation])[0].outcome for operation in (create, prepare)] == [shards.PRESENT] * 2


def test_a_user_who_may_not_persist(client: redis.Redis, key: str) -> None:
    """Without PERSIST a prepared string is not taken, because it would expire in use."""
    client.acl_setuser(key, enabled=True, passwords=["+x"], keys="*", commands=["+@all", "-persist"])
    with redis.Redis(username=key, password="x", **_address(client)) as unable:  # noqa: S106
        store = RedisStore(unable)
        create = shards.CreateShard(key, SIZE, 7, sealed=False)
        store.execute([shards.PrepareShard(key, SIZE, SIZE)])
        assert store.execute([create._replace(allocate=False)])[0].outcome == shards.ABSENT
        assert store.execute([create])[0].outcome == shards.MADE
    assert client.ttl(key) == -1
    client.acl_deluser(key)


def _address(client: redis.Redis) -> dict[str, Any]:
    return {name: client.connection_pool.connection_kwargs[name] for name in ("host", "port")}


def test_reserved_bits_do_not_matter(client: redis.Redis, key: str) -> None:
    """A shard is recognised with any value in the 16 reserved bits."""
    store = RedisStore(client)
    store.execute([shards.CreateShard(key, SIZE, 77, sealed=False)])
    client.bitfield(key).set("u16", 48, 0xFFFF).execute()
    [(found, _)] = store.execute([bits.CheckBits(key, [0], mark=False)])
    assert shard_header.identity(found) == shard_header.live(77)


def test_a_shard_is_allocated_exactly(client: redis.Redis, key: str) -> None:
    """A new shard takes its size class and no more, even over the remains of a late write."""
    size = 3 * 2**20 - 64
    client.setbit(key, 5 * 8 * 2**18, 1)
    RedisStore(client).execute([shards.CreateShard(key, size, 1, sealed=False)])
    assert client.memory_usage(key, samples=0) <= size + 64 + 256  # type: ignore[operator]


@pytest.mark.parametrize(
    ("kind", "fill"),
    [
        pytest.param("none", lambda client, key: client.delete(key), id="nothing"),
        pytest.param("set", lambda client, key: client.sadd(key, "a", "b"), id="a set"),
        pytest.param("string", lambda client, key: client.set(key, "a"), id="a string"),
        pytest.param("zset", lambda client, key: client.zadd(key, {"a": 1}), id="a sorted set"),
    ],
)
def test_load_tells_what_is_at_a_key(client: redis.Redis, key: str, kind: str, fill: object) -> None:
    """`Load` of a foreign key is no error, and returns its type."""
    fill(client, key)  # type: ignore[operator]
    [snapshot] = RedisStore(client).execute([filter_hash.Load(key)])
    assert (snapshot.kind, snapshot.members, snapshot.fields) == (kind, 2 if kind == "set" else 0, {})
    seconds, microseconds = client.time()
    assert abs(seconds + microseconds / 1e6 - snapshot.now) < 60


@pytest.mark.parametrize(
    ("stored", "is_deleted"),
    [
        pytest.param({"filter": "{}", "layer:0": "x"}, True, id="without a user"),
        pytest.param({"filter": "{}", "user:a": "1"}, False, id="with a user"),
        pytest.param({"filter": "1"}, False, id="of another filter"),
        pytest.param({"user:a": "1"}, False, id="a user alone"),
    ],
)
def test_a_hash_that_is_used_is_not_deleted(
    client: redis.Redis, key: str, stored: dict[str, str], is_deleted: bool
) -> None:
    """A restored hash is deleted only if it is the deleted filter's and has no references."""
    for name, value in stored.items():
        client.hset(key, name, value)
    memory = MemoryStore()
    memory.hashes[key] = dict(stored)
    for store in (RedisStore(client), memory):
        assert store.execute([filter_hash.DeleteUnusedHash(key, "{}")]) == [is_deleted]
    assert client.exists(key) == (key in memory.hashes) == (not is_deleted)


@pytest.mark.parametrize("epoch", [7, 8])
def test_a_shard_of_another_filter(client: redis.Redis, key: str, epoch: int) -> None:
    """A shard of any epoch is replaced, or of one epoch only."""
    store = RedisStore(client)
    store.execute([shards.CreateShard(key, SIZE, epoch, sealed=False)])
    create = shards.CreateShard(key, SIZE, 9, sealed=False, replaces=7)
    assert store.execute([create])[0].outcome == (shards.MADE if epoch == 7 else shards.OTHER)
    assert store.execute([shards.InspectShard(key)])[0].identity == shard_header.live(9 if epoch == 7 else epoch)
    store.execute([create._replace(replaces=None)])
    assert store.execute([shards.InspectShard(key)])[0].identity == shard_header.live(9)
