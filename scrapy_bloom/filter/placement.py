"""The largest shard of a new layer, and the slots of a new filter's shards, by the kind of the server."""

from typing import Any, NamedTuple, Self

from scrapy_bloom.filter.sizing import MAX_SHARD_BYTES
from scrapy_bloom.storage import filter_keys
from scrapy_bloom.transport.server_info import is_cluster

# When slots move, MIGRATE blocks its node for 23 ms a shard of 4 MiB, and for 202 to 225 ms a shard of 32 MiB
# (`python -m benchmarks moving`). The time of a check does not depend on the size.
CLUSTER_SHARD_BYTES = 4 * 1024 * 1024


class Placement(NamedTuple):
    """The placement of the shards that a worker creates. Other workers' shards may differ: each layer stores its own.

    Attributes:
        max_shard_bytes: maximum bytes of a shard.
        is_spread: the shards of a new filter spread over all slots of a cluster; otherwise the filter's key decides.
    """

    max_shard_bytes: int = MAX_SHARD_BYTES
    is_spread: bool = False

    @classmethod
    def on(cls, server: Any, key: str, shard_bytes: int | None) -> Self:
        """Return the placement on a client's server; without `shard_bytes`, in shards of the default size."""
        if not is_cluster(server):
            return cls(shard_bytes or MAX_SHARD_BYTES)
        return cls(shard_bytes or CLUSTER_SHARD_BYTES, filter_keys.can_spread(key))


# The placement on a single server.
PLAIN = Placement()
