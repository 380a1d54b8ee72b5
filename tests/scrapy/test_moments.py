"""The script that reserves moments, on each kind of server: in order, for several slots, and when the clock is set."""

from collections.abc import Iterator

import pytest
import redis
from scrapy.settings import Settings

from scrapy_bloom.pace import Moments
from scrapy_bloom.queue.keys import QueueKeys
from tests.support.servers import EACH_KIND, Server, expires_at

# A test takes no hour: waits are compared in hours.
HOUR = 3_600_000_000


@pytest.fixture(params=EACH_KIND)
def server(request: pytest.FixtureRequest) -> Server:
    """Each kind of server in turn."""
    found: Server = request.getfixturevalue("servers")(request.param)
    return found


@pytest.fixture
def keys(key: str) -> QueueKeys:
    """The keys of a queue."""
    return QueueKeys(key)


@pytest.fixture
def moments(server: Server, keys: QueueKeys) -> Iterator[Moments]:
    """The moments of its slots."""
    moments = Moments(Settings({"REDIS_URL": server.url}), keys.of_slot)
    yield moments
    moments.close()


def hours(moments: Moments, *slots: str, gap: int = HOUR) -> list[int]:
    """Reserve a moment of each slot, and return the waits in hours."""
    return [round(wait / HOUR) for wait in moments.reserve(slots, [gap] * len(slots))]


def test_moments_follow_each_other(moments: Moments) -> None:
    """Each slot has its own; the gap is that of the call before."""
    assert moments.reserve(["a"], [HOUR]) == [0]
    assert hours(moments, "a", "b", "a", gap=2 * HOUR) == [1, 0, 3]
    assert hours(moments, "a", "b") == [5, 2]
    assert moments.reserve(["c", "d"], [HOUR, 2 * HOUR]) == [0, 0]
    assert hours(moments, "c", "d") == [1, 2]


@pytest.mark.parametrize(("jump", "expected"), [(2 * HOUR, 3), (-2 * HOUR, 1), (-9 * HOUR, 0)])
def test_a_clock_that_is_set(moments: Moments, client: redis.Redis, keys: QueueKeys, jump: int, expected: int) -> None:
    """If the server's clock goes back, the moments do too; if it goes on, the slot is free earlier, and never late.

    To the script a clock that was set is the same as stored times that were shifted.
    """
    assert [hours(moments, "a") for _ in range(3)] == [[0], [1], [2]]
    for field in ("free", "now"):
        client.hincrby(keys.of_slot("a"), field, jump)
    assert hours(moments, "a") == [expected]


def test_a_slot_expires(moments: Moments, client: redis.Redis, keys: QueueKeys) -> None:
    """A second after it is free."""
    hours(moments, "a")
    free = int(client.hget(keys.of_slot("a"), "free") or 0)
    assert expires_at(client, keys.of_slot("a")) == pytest.approx(free / 1000 + 1000, abs=11_000)


def test_exact_numbers(moments: Moments, client: redis.Redis, keys: QueueKeys) -> None:
    """Times are stored as whole microseconds."""
    hours(moments, "a", gap=1)
    assert all(value.isdigit() for value in client.hgetall(keys.of_slot("a")).values())
