"""Warnings about a server's own settings; a server that does not tell them is not warned about."""

import logging
from typing import Any

from scrapy_bloom.transport.failures import FAULTS
from scrapy_bloom.transport.server_info import evicts, nodes, policy

logger = logging.getLogger(__name__)


def warn_about_memory_policy(server: Any, key: str, memory_bytes: int, *, expires: bool = False) -> None:
    """Warn where the filter does not fit the server's maxmemory, or where the server may evict it.

    `memory_bytes` is what the filter takes when it is made. The keys of one that `expires` may be evicted where others
    may not. Managed servers may deny INFO. The nodes of a cluster share the filter.
    """
    try:
        told = [info for _, info in nodes(server)]
    except FAULTS:
        return
    limits = [int(info.get("maxmemory", 0)) for info in told]
    limit = sum(limits) if all(limits) else 0
    if limit and memory_bytes > limit:
        logger.warning(
            "The filter at %r takes %s bytes, and the server's maxmemory is %s bytes: raise maxmemory, or set a "
            "smaller BLOOMFILTER_CAPACITY or a larger BLOOMFILTER_ERROR_RATE",
            key,
            f"{memory_bytes:,}",
            f"{limit:,}",
        )
    evicting = [policy(info) for info in told if evicts(info, expires=expires)]
    if evicting:
        logger.warning(
            "The server's maxmemory-policy is %s: it may evict parts of the filter at %r, and the crawl then fetches "
            "pages again; or the queue, with requests whose pages are then missed. Set noeviction%s",
            evicting[0],
            key,
            ": the keys of a filter with BLOOMFILTER_TTL expire" if expires else ", or a volatile-* policy",
        )
