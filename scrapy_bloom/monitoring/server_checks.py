"""Warnings about a server's own settings; a server that does not tell them is not warned about."""

import logging
from typing import Any

import redis

logger = logging.getLogger(__name__)


def warn_about_memory_policy(server: Any, key: str, memory_bytes: int, *, expires: bool = False) -> None:
    """Warn where the filter does not fit the server's maxmemory, or where the server may evict it.

    `memory_bytes` is what the filter takes when it is made. The keys of one that `expires` may be evicted where others
    may not. Managed servers may deny INFO, and a cluster answers for each node; what they do not say is not warned
    about.
    """
    try:
        memory = server.info("memory")
    except redis.RedisError:
        return
    limit, policy = memory.get("maxmemory", 0), memory.get("maxmemory_policy", "")
    if limit and memory_bytes > limit:
        logger.warning(
            "The filter at %r takes %s bytes, and the server's maxmemory is %s bytes: raise maxmemory, or set a "
            "smaller BLOOMFILTER_CAPACITY or a larger BLOOMFILTER_ERROR_RATE",
            key,
            f"{memory_bytes:,}",
            f"{limit:,}",
        )
    if policy.startswith(("allkeys-", "volatile-") if expires else "allkeys-"):
        logger.warning(
            "The server's maxmemory-policy is %s: it may evict parts of the filter at %r, and the crawl then fetches "
            "pages again. Set noeviction%s",
            policy,
            key,
            ": the keys of a filter with BLOOMFILTER_TTL expire" if expires else ", or a volatile-* policy",
        )
