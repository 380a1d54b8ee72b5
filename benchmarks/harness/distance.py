"""A distance to Redis: the time of a ping."""

import time
from statistics import median

import redis

from tests.support.proxy.link import LinkProxy

PINGS = 300


def ping(port: int) -> float:
    """Return the median seconds of a PING."""
    with redis.Redis(port=port) as client:
        client.ping()
        took = []
        for _ in range(PINGS):
            started = time.perf_counter()
            client.ping()
            took.append(time.perf_counter() - started)
    return median(took)


def set_delay(link: LinkProxy, upstream: int, seconds: float) -> float:
    """Delay a link by so many seconds either way, less the time of forwarding; return the seconds of a ping."""
    link.link.delay = 0.0
    forwarding = ping(link.port) - ping(upstream)
    link.link.delay = max(0.0, seconds - forwarding / 2)
    return ping(link.port)
