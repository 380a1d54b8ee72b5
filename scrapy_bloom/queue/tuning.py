"""The sizes of a worker: how much it keeps in memory, reads at once and sends at once."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """The sizes of a worker of a queue. The defaults suit crawls; a simulation has small ones, to reach every limit.

    Attributes:
        requests_in_memory: undelivered requests that are kept in memory at most; further ones go to the disk.
        disk_batch: requests that come back from the disk at once, after an outage.
        spool_batch: requests that are read at once from the file of an earlier crawl.
        exchange_bytes: bytes of requests that one exchange carries at most.
        kept_leases: leases beside those that run that an exchange leaves at most, if it takes further ones.
        dead_letter_batch: dead letters that are read at once.
        prefetch: requests that are leased at once.
        reactor_seconds: seconds for which the reactor is kept from other work.
    """

    requests_in_memory: int = 5000
    disk_batch: int = 500
    spool_batch: int = 1000
    sync_bytes: int = 512 * 1024
    kept_leases: int = 150
    dead_letter_batch: int = 50
    prefetch: int = 8
    reactor_seconds: float = 0.03


TUNING = Tuning()
