"""Ways to ask a server which items are new and to remember them, one by one or in batches."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from scrapy_bloom import BloomFilter

SET, SET_BATCH = "scrapy-redis's way, SADD", "SADD in a pipeline"
BF_ADD, BF_MADD, CRAWLEE = "RedisBloom, BF.ADD", "RedisBloom, BF.MADD", "crawlee's way, BF.MADD in a script"
OURS, OURS_BATCH = "scrapy-bloom, add", "scrapy-bloom, add_many"
NEED_MODULE = (BF_ADD, BF_MADD, CRAWLEE)

# The duplicate check of crawlee-python's `atomic_bloom_add_requests.lua`, without the queue.
_CRAWLEE = """
local asked = cjson.decode(ARGV[1])
local replies, new = redis.call('BF.MADD', KEYS[1], unpack(asked)), {}
for place, item in ipairs(asked) do
  if replies[place] == 1 then new[#new + 1] = item end
end
return cjson.encode(new)
"""

Add = Callable[[Sequence[str]], Sequence[bool]]


class Target(NamedTuple):
    """A client, the key of the data, and the size of a filter there."""

    client: Any
    key: str
    capacity: int
    error_rate: float


def reserve(target: Target) -> None:
    """Create RedisBloom's filter, as a crawl does at its start."""
    target.client.execute_command("BF.RESERVE", target.key, target.error_rate, target.capacity)


def _one_by_one(command: str) -> Callable[[Target], Add]:
    """Return the way to send a command for each item."""

    def make(target: Target) -> Add:
        send = target.client.execute_command
        return lambda items: [bool(send(command, target.key, item)) for item in items]

    return make


def _sadd_batch(target: Target) -> Add:
    client = target.client

    def add(items: Sequence[str]) -> list[bool]:
        with client.pipeline(transaction=False) as pipe:
            for item in items:
                pipe.sadd(target.key, item)
            return list(map(bool, pipe.execute()))

    return add


def _bf_madd(target: Target) -> Add:
    client = target.client
    return lambda items: list(map(bool, client.execute_command("BF.MADD", target.key, *items)))


def _crawlee(target: Target) -> Add:
    client = target.client
    script = client.script_load(_CRAWLEE)

    def add(items: Sequence[str]) -> list[bool]:
        new = set(json.loads(client.evalsha(script, 1, target.key, json.dumps(list(items)))))
        return [item in new for item in items]

    return add


def _filter(target: Target) -> BloomFilter:
    return BloomFilter(target.client, target.key, capacity=target.capacity, error_rate=target.error_rate, cache_size=0)


def _add(target: Target) -> Add:
    bloom = _filter(target)
    return lambda items: [bloom.add(item) for item in items]


def _add_many(target: Target) -> Add:
    return _filter(target).add_many


SINGLE: dict[str, Callable[[Target], Add]] = {SET: _one_by_one("SADD"), BF_ADD: _one_by_one("BF.ADD"), OURS: _add}
BATCHED: dict[str, Callable[[Target], Add]] = {
    SET_BATCH: _sadd_batch,
    BF_MADD: _bf_madd,
    CRAWLEE: _crawlee,
    OURS_BATCH: _add_many,
}
