"""The filter's Lua functions, called from small scripts as other scripts call them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.transport.scripts import Script

LIBRARY = Script("filter", "block").text + "\nlocal filter = load_filter()"
# Layers of 100 and 200 items at an error rate far below 1e-9, in shards of two and three blocks.
SIZES = "100 6 32 2;200 12 32 3;"
HASH = FilterParameters().hasher(b"secret")
CHECK = """
local f, new = filter.open(KEYS[1], 'f1'), {}
for i = 1, #ARGV do new[i] = filter.check(f, ARGV[i]) and 1 or 0 end
filter.save(f)
return new
"""
Run = Callable[..., Any]


def items(numbers: Sequence[int]) -> list[bytes]:
    return [HASH(str(number).encode()) for number in numbers]


@pytest.fixture
def run(client: redis.Redis, key: str) -> Run:
    """Run a script over the library and a created filter."""

    def run(text: str, *args: Any) -> Any:
        return client.eval(f"{LIBRARY}\n{text}", 1, key, *args)

    run(f"filter.create(KEYS[1], 'f1', 'secret', 'parameters', '{SIZES}', '0')")
    return run


def test_the_first_layer_is_allocated_by_parts(run: Run, client: redis.Redis, key: str) -> None:
    """Each call of `allocate` allocates a shard, and says how many are missing; then none is, for anybody."""
    allocate = "return filter.allocate(filter.open(KEYS[1]))"
    assert [run(allocate) for _ in range(4)] == [2, 1, 0, 0]
    assert sorted(client.scan_iter(f"{{{key}}}:*")) == [f"{{{key}}}:f1:1:{shard}".encode() for shard in range(3)]


def test_a_lost_shard_is_counted_and_replaced(run: Run, client: redis.Redis, key: str) -> None:
    """The items of a lost shard, of a full layer too, are new again; the loss is counted once."""
    run(CHECK, *items(range(200)))
    client.unlink(f"{{{key}}}:f1:1:0", f"{{{key}}}:f1:2:1")
    again = sum(run(CHECK, *items(range(200))))
    assert 20 <= again <= 120
    assert run(CHECK, *items(range(200))) == [0] * 200
    assert run("return filter.open(KEYS[1]).lost") == 2


def test_delete_leaves_nothing(run: Run, client: redis.Redis, key: str) -> None:
    """All layers go, also a prepared one."""
    run(CHECK, *items(range(100)))
    assert client.exists(f"{{{key}}}:f1:2:0")
    run("filter.delete(KEYS[1])")
    assert list(client.scan_iter(f"*{key}*")) == []
    assert run("return filter.open(KEYS[1]) == nil and filter.describe(KEYS[1]) == nil and 1") == 1


def test_another_filter_is_not_opened(run: Run) -> None:
    """A filter with another id counts as none."""
    assert run("return filter.open(KEYS[1], 'f2') == nil and 1") == 1
