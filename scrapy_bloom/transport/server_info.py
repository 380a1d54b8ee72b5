"""Read a server's INFO and its maxmemory-policy."""

from collections.abc import Iterator, Mapping
from typing import Any

from scrapy_bloom.transport.connect import is_cluster

Info = Mapping[str, Any]

# The oldest version that the tests run on, as INFO's `redis_version`; Valkey reports 7.2 or newer.
OLDEST_REDIS = (6, 2)


def nodes(client: Any) -> Iterator[tuple[dict[str, Any], Info]]:
    """Yield redis-py's options to address a node, and its INFO, for a server or each primary of a cluster."""
    addresses = [{"target_nodes": node} for node in client.get_primaries()] if is_cluster(client) else [{}]
    for address in addresses:
        yield address, client.info(**address)


def run_id(client: Any, key: str) -> str:
    """Return the id of the server process that has a key: another one after a restart or a failover."""
    options = {"target_nodes": client.get_node_from_key(key)} if is_cluster(client) else {}
    return str(client.info("server", **options).get("run_id"))


def evicts(info: Info, *, expires: bool) -> bool:
    """Return whether a full server evicts the keys in question, which `expires` says have an expiry."""
    policies = ("allkeys-", "volatile-") if expires else ("allkeys-",)
    return bool(info.get("maxmemory")) and policy(info).startswith(policies)


def policy(info: Info) -> str:
    """Return the maxmemory-policy; managed servers may hide it."""
    return str(info.get("maxmemory_policy", "unknown"))
