"""Sizes and intervals of a worker, injected so that tests reach every limit."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Sizes and intervals of a worker. The defaults suit crawls.

    Attributes:
        requests_in_memory: undelivered requests in memory at most; further ones go to the disk.
        disk_batch: requests to read from the disk at once after an outage.
        spool_batch: requests to read at once from an earlier crawl's file.
        sync_bytes: bytes of requests in one sync at most.
        kept_leases: leases beside the running requests that a sync may leave if it takes further
            ones.
        dead_letter_batch: dead letters to read at once.
        prefetch: requests to lease ahead.
        reactor_seconds: seconds for which the worker may block the reactor at once.
        tick_seconds: seconds between two deliveries at most, even while the engine asks for nothing.
    """

    requests_in_memory: int = 5000
    disk_batch: int = 500
    spool_batch: int = 1000
    sync_bytes: int = 512 * 1024
    kept_leases: int = 150
    dead_letter_batch: int = 50
    prefetch: int = 8
    reactor_seconds: float = 0.03
    tick_seconds: float = 0.25


TUNING = Tuning()
