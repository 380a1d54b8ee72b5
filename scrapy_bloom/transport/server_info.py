"""The reply of a server to INFO, and what its maxmemory-policy means for keys."""

from collections.abc import Iterator, Mapping
from typing import Any

Info = Mapping[str, Any]

# The oldest server that the tests are run with, as INFO's `redis_version` counts; Valkey says 7.2 there or more.
OLDEST_REDIS = (6, 2)


def nodes(client: Any) -> Iterator[tuple[dict[str, Any], Info]]:
    """Yield the options of redis-py that address a node, and its INFO: of a server, or of a cluster's primaries."""
    addresses = [{"target_nodes": node} for node in client.get_primaries()] if is_cluster(client) else [{}]
    for address in addresses:
        yield address, client.info(**address)


def is_cluster(client: Any) -> bool:
    """Return whether a client is of a cluster, which has a server for each part of the keys."""
    return hasattr(client, "get_primaries")


def evicts(info: Info, *, expires: bool) -> bool:
    """Return whether a full server deletes keys of others: any, or those that have an expiry, if these `expires`."""
    policies = ("allkeys-", "volatile-") if expires else ("allkeys-",)
    return bool(info.get("maxmemory")) and policy(info).startswith(policies)


def policy(info: Info) -> str:
    """Return the maxmemory-policy, which managed servers may not tell."""
    return str(info.get("maxmemory_policy", "unknown"))
