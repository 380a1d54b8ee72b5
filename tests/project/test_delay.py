"""The proxy of `python -m benchmarks distance` adds a delay, and has no other effect."""

import os
import time
from typing import Any

import pytest
import redis

from devtools.proxy.delay import delaying, ping
from devtools.waiting import LIMIT, until
from tests.support.servers import Server

SECONDS = 0.02
TURNS = 20


def took(client: redis.Redis, commands: int) -> float:
    """Return the least seconds of several runs of a pipeline of so many commands."""
    found = []
    for _ in range(TURNS):
        pipeline = client.pipeline(transaction=False)
        for number in range(commands):
            pipeline.echo(str(number))
        started = time.perf_counter()
        assert pipeline.execute() == [str(number).encode() for number in range(commands)]
        found.append(time.perf_counter() - started)
    return min(found)


@pytest.mark.long
def test_each_way_takes_longer_by_the_delay(valkey: Server) -> None:
    """A round trip takes twice the delay, and so does a pipeline of a thousand commands."""
    with delaying(valkey.port, SECONDS) as proxy, redis.Redis(port=proxy.port) as client:
        assert took(client, 1) >= 2 * SECONDS
        # Not at the first attempt on a busy machine.
        until(lambda: took(client, 1) < 3 * SECONDS)
        until(lambda: took(client, 1000) < 5 * SECONDS)


def lateness(client: redis.Redis) -> float:
    """Return the longest time to a reply among ten commands sent apart, before any reply can arrive."""
    connection: Any = client.connection_pool.get_connection()
    sent, began = [], time.perf_counter()
    for number in range(10):
        while time.perf_counter() - began < number * SECONDS / 10:
            pass
        sent.append(time.perf_counter())
        connection.send_command("ECHO", number)
    late = []
    for number in range(10):
        assert connection.read_response() == str(number).encode()
        late.append(time.perf_counter() - sent[number])
    client.connection_pool.release(connection)
    assert min(late) >= 2 * SECONDS
    return max(late)


@pytest.mark.long
def test_what_is_sent_while_something_is_on_the_way_is_not_held_up(valkey: Server) -> None:
    """Commands sent apart arrive as far apart, though none has a reply yet."""
    with delaying(valkey.port, SECONDS) as proxy, redis.Redis(port=proxy.port) as client:
        until(lambda: lateness(client) < 5 * SECONDS)


def test_everything_passes_unchanged(valkey: Server, key: str) -> None:
    """Values of all sizes pass unchanged, in both directions at once."""
    values = [os.urandom(size) for size in (0, 1, 1 << 16, (1 << 16) + 1, 3_000_000)]
    with delaying(valkey.port, 0.001) as proxy, redis.Redis(port=proxy.port) as client:
        pipeline = client.pipeline(transaction=False)
        for number, value in enumerate(values):
            pipeline.set(f"{key}:{number}", value)
            pipeline.get(f"{key}:{number}")
        assert pipeline.execute()[1::2] == values


def test_what_nobody_takes_yet_is_kept(valkey: Server, key: str) -> None:
    """A client that reads late gets all its data, more than a socket buffer holds."""
    value, times = os.urandom(3_000_000), 20
    with valkey.client() as direct, delaying(valkey.port, 0.001) as proxy:
        direct.set(key, value)
        with redis.Redis(port=proxy.port, socket_timeout=LIMIT) as client:
            connection: Any = client.connection_pool.get_connection()
            before = direct.info("stats")["total_net_output_bytes"]
            for _ in range(times):
                connection.send_command("GET", key)
            until(lambda: direct.info("stats")["total_net_output_bytes"] > before + times * len(value))
            assert all(connection.read_response() == value for _ in range(times))
            client.connection_pool.release(connection)


def test_an_end_passes_too(valkey: Server) -> None:
    """A connection closed by one side is closed for the other."""
    with valkey.client() as direct, delaying(valkey.port, 0.001) as proxy:
        with redis.Redis(port=proxy.port, client_name="through-the-delay") as client:
            client.ping()
            connection = client.connection_pool.get_connection()
            (address,) = (each["addr"] for each in direct.client_list() if each["name"] == "through-the-delay")
            direct.client_kill(address)
            with pytest.raises(redis.ConnectionError):
                connection.read_response()
            client.connection_pool.release(connection)
            client.ping()
        until(lambda: all(each["name"] != "through-the-delay" for each in direct.client_list()))


@pytest.mark.long
def test_a_calibrated_ping_takes_what_it_should(valkey: Server) -> None:
    """A calibrated proxy's ping takes exactly the delay, without the proxy's own overhead."""
    with delaying(valkey.port, 0.0) as proxy:
        direct = ping(valkey.port)
        # Not at the first attempt on a busy machine.
        until(lambda: proxy.calibrate(valkey.port, 0.002) == pytest.approx(0.004 + direct, rel=0.1))
