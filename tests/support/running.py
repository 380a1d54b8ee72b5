"""The running pages of a worker, and its ended ones."""

from scrapy_bloom.queue.partitioned import PartitionedWorker
from scrapy_bloom.queue.values import Page
from scrapy_bloom.queue.worker import Worker

AnyWorker = Worker | PartitionedWorker


def running(worker: AnyWorker) -> dict[bytes, Page]:
    """Return the pages of a worker that have not ended; in several partitions, ended ones may wait for others."""
    pages = {member: page for part in worker.parts for member, page in part.running.items()}
    if isinstance(worker, PartitionedWorker):
        for waiting in (*worker._unsettled, *(each for _, each in worker._waiting)):
            if isinstance(waiting, tuple):
                pages.pop(waiting[0])
    return pages


def ended(worker: AnyWorker) -> set[bytes]:
    """Return the pages of a worker that have ended, and are not acknowledged."""
    held = {member for part in worker.parts for member in (*part.running, *part.finished)}
    return held - set(running(worker))
