"""The server beside its data: room, and replicas. A server that does not tell them, and a cluster, is not asked on."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import redis
from redis.connection import Connection, SSLConnection

from scrapy_bloom.storage.redis import RedisStore
from scrapy_bloom.storage.retrying import RetryingStore
from scrapy_bloom.transport.failures import FAULTS
from scrapy_bloom.transport.retry import disable_client_retries
from scrapy_bloom.transport.server_info import Info, evicts, is_cluster, nodes

# Those of a connection that say where it goes, or who takes it there.
_PLACE = ("host", "port", "path", "connection_pool")
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class Replica:
    """A replica: its `address`, the store to read from, and why it cannot be used, or None."""

    address: str
    store: RetryingStore
    problem: str | None = None


def missing_room(client: Any, needed: int) -> tuple[int, int] | None:
    """Return the bytes that a server uses and its limit, if so many more do not fit; None: they do, or who knows."""
    memory = _info(client)
    limit, used = int(memory.get("maxmemory", 0)), int(memory.get("used_memory", 0))
    makes_room = evicts(memory, expires=False)
    return (used, limit) if limit and not makes_room and used + needed > limit else None


def replicas(client: Any, timeout: float) -> list[Replica]:
    """Return a server's replicas, when each has all that the server has, or has not had it in `timeout` seconds."""
    told = _info(client)
    if told.get("role") != "master":
        return []
    places = [place for name, place in told.items() if name.startswith("slave") and isinstance(place, dict)]
    end = time.monotonic() + timeout
    return [_replica(client, place, int(told["master_repl_offset"]), end) for place in places]


def _replica(client: Any, place: Mapping[str, Any], offset: int, end: float) -> Replica:
    theirs = _client_of(client, str(place["ip"]), int(place["port"]))
    store = RetryingStore(RedisStore(theirs), 0.0)
    return Replica(f"{place['ip']}:{place['port']}", store, _wait(lambda: _lack(theirs, offset), end))


def _wait(lack: Callable[[], str | None], end: float) -> str | None:
    """Return what is lacking when it is time; None as soon as nothing is."""
    while (lacking := lack()) is not None and time.monotonic() < end:
        time.sleep(_PAUSE_SECONDS)
    return lacking


def _lack(client: Any, offset: int) -> str | None:
    told = _info(client)
    if not told:
        return "it cannot be reached from here"
    has_all = told.get("master_link_status") == "up" and int(told.get("slave_repl_offset", -1)) >= offset
    return None if has_all else "it has not got all of it yet"


def _client_of(client: Any, host: str, port: int) -> redis.Redis:
    """Return a client of another server, with the same credentials and options."""
    pool = client.connection_pool
    options = {name: value for name, value in pool.connection_kwargs.items() if name not in _PLACE}
    kind = SSLConnection if issubclass(pool.connection_class, SSLConnection) else Connection
    made = redis.ConnectionPool(connection_class=kind, **{**options, "host": host, "port": port})
    return disable_client_retries(redis.Redis(connection_pool=made))  # type: ignore[no-any-return]  # of any client


def _info(client: Any) -> Info:
    """Return INFO of a server; nothing where it is denied, of a cluster, or from a client without it."""
    if is_cluster(client) or not hasattr(client, "connection_pool"):
        return {}
    try:
        return next(info for _, info in nodes(client))
    except (*FAULTS, OSError):
        return {}
