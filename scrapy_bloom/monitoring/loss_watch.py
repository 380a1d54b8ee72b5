"""Detect losses of the queue in the replies to a worker, and log each once."""

import logging

from scrapy_bloom._format import LimitedWarnings
from scrapy_bloom.queue.operations import REGISTERED, Join, QueueOperation, Reply, Status

logger = logging.getLogger(__name__)

_START_OVER = "To fetch them, start over with SCHEDULER_FLUSH_ON_START = True"
# Why a worker had to join again.
_REJOINED = {
    Status.ROLLED_BACK: (
        "Redis went back to an earlier state of the queue %r, by a restart from a snapshot or a failover. This worker "
        "queues its requests again, and some may be fetched twice. The latest requests may be lost if the filter is in "
        "another slot of a cluster"
    ),
    Status.PRESUMED_DEAD: (
        "Other workers presumed this one dead and requeued its leases in the queue %r, or they started over. This "
        "worker joins again with its requests, and some may be fetched twice"
    ),
    Status.OK: (
        "This worker was not registered with the queue %r any more: others presumed it dead, or Redis has lost its "
        "data. It joins again with its requests, and some may be fetched twice"
    ),
}


class LossWatch:
    """Logs the losses of the queue at `queue`; `warnings` limits the rate of equal lines.

    Attributes:
        losses: losses since this worker joined.
        lost: known lost requests since then.
    """

    def __init__(self, queue: str, warnings: LimitedWarnings) -> None:
        self.losses = 0
        self.lost = 0
        self._queue = queue
        self._warnings = warnings
        self._has_joined = False
        self._loss = 0
        self._total = 0

    def note(self, operation: QueueOperation, reply: Reply) -> None:
        """Log a loss that a reply reports, or why this worker had to join again."""
        if reply.loss and reply.loss != self._loss:
            self._note_loss(reply)
        elif self._has_joined and isinstance(operation, Join) and reply.status in _REJOINED:
            self._warnings.warn(_REJOINED[reply.status], self._queue)
        if reply.status in REGISTERED and isinstance(operation, Join):
            self._has_joined = True

    def _note_loss(self, reply: Reply) -> None:
        # The queue's total starts at 0 if Redis lost it with the queue.
        number = reply.lost - self._total if reply.lost >= self._total else reply.lost
        self._loss, self._total = reply.loss, reply.lost
        if not self._has_joined:
            logger.warning(
                "The queue %r has lost requests before this worker began, %s of them known: its key was deleted or "
                "evicted, unless another scheduler took them. Their pages may be missing. %s",
                self._queue,
                f"{number:,}",
                _START_OVER,
            )
            return
        self.losses += 1
        self.lost += number
        if number:
            self._warnings.warn(
                "%s requests that waited in the queue %r are gone: its key was deleted or evicted. This crawl does not "
                "fetch their pages, since the filter calls them seen. %s",
                f"{self.lost:,}",
                self._queue,
                _START_OVER,
                level=logging.ERROR,
            )
        else:
            self._warnings.warn(
                "No worker was registered with the queue %r any more: Redis has lost its data, unless other workers "
                "ended the crawl or started over. Workers queue their requests again. Other requests may be lost, and "
                "their pages missed. %s",
                self._queue,
                _START_OVER,
                level=logging.ERROR,
            )
