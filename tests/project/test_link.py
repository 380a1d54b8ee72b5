"""The link of `python -m benchmarks crawls` adds a delay, and has no other effect."""

import os
import time
from typing import Any

import pytest
import redis

from benchmarks.harness.distance import ping, set_delay
from devtools.proxy.link import forwarding
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
    with forwarding(valkey.port) as link, redis.Redis(port=link.port) as client:
        link.link.delay = SECONDS
        client.ping()
        assert took(client, 1) >= 2 * SECONDS
        # Not at the first attempt on a busy machine.
        until(lambda: took(client, 1) < 3 * SECONDS)
        until(lambda: took(client, 1000) < 5 * SECONDS)


def test_everything_passes_unchanged(valkey: Server, key: str) -> None:
    """Values of all sizes pass unchanged to a client that reads late, more than a socket buffer holds."""
    values = [os.urandom(size) for size in (0, 1, 1 << 16, (1 << 16) + 1, *[3_000_000] * 20)]
    with valkey.client() as direct, forwarding(valkey.port) as link:
        link.link.delay = 0.001
        direct.mset({f"{key}:{number}": value for number, value in enumerate(values)})
        with redis.Redis(port=link.port, socket_timeout=LIMIT) as client:
            connection: Any = client.connection_pool.get_connection()
            before = direct.info("stats")["total_net_output_bytes"]
            for number in range(len(values)):
                connection.send_command("GET", f"{key}:{number}")
            until(lambda: direct.info("stats")["total_net_output_bytes"] > before + sum(map(len, values)))
            assert [connection.read_response() for _ in values] == values
            client.connection_pool.release(connection)


@pytest.mark.long
def test_a_ping_takes_what_it_should(valkey: Server) -> None:
    """A ping takes longer by the delay, without the time that forwarding itself takes."""
    with forwarding(valkey.port) as link:
        # Not at the first attempt on a busy machine.
        until(lambda: set_delay(link, valkey.port, 0.002) == pytest.approx(0.004 + ping(valkey.port), rel=0.1))
