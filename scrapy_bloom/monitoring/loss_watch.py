"""Notice what a queue has lost, by the answers to a worker: each loss is logged once."""

import logging

from scrapy_bloom._log import LimitedWarnings
from scrapy_bloom.queue.operations import REGISTERED, Join, QueueOperation, Reply, Status

logger = logging.getLogger(__name__)

_BEGIN_ANEW = "Begin anew to fetch them, with SCHEDULER_FLUSH_ON_START = True"
# Why a worker had to join again.
_REJOINED = {
    Status.ROLLED_BACK: (
        "Redis went back to an earlier state of the queue %r, by a restart from a snapshot or a failover. This worker "
        "queues again what it holds, some of which may be fetched twice. Requests of the last moments may be lost if "
        "the filter is in another slot of a cluster"
    ),
    Status.PRESUMED_DEAD: (
        "Other workers took this one for dead and requeued what it held of the queue %r, or began the crawl anew. It "
        "joins again with what it has, some of which may be fetched twice"
    ),
    Status.OK: (
        "This worker was not registered with the queue %r any more: others took it for dead, or Redis has lost its "
        "data. It joins again with what it has, some of which may be fetched twice"
    ),
}


class LossWatch:
    """Logs the losses of the queue at `queue` by `warnings`, which holds back those that come again and again.

    Attributes:
        losses: how many there were since this worker began.
        lost: how many requests are known to be gone since then.
    """

    def __init__(self, queue: str, warnings: LimitedWarnings) -> None:
        self.losses = 0
        self.lost = 0
        self._queue = queue
        self._warnings = warnings
        self._has_joined = False
        self._loss = 0
        self._total = 0

    def note(self, operation: QueueOperation, answer: Reply) -> None:
        """Log what an answer tells of losses, and why a worker had to join again."""
        if answer.loss and answer.loss != self._loss:
            self._note_loss(answer)
        elif self._has_joined and isinstance(operation, Join) and answer.status in _REJOINED:
            self._warnings.warn(_REJOINED[answer.status], self._queue)
        if answer.status in REGISTERED and isinstance(operation, Join):
            self._has_joined = True

    def _note_loss(self, answer: Reply) -> None:
        # The total begins anew where the data were lost with the queue.
        number = answer.lost - self._total if answer.lost >= self._total else answer.lost
        self._loss, self._total = answer.loss, answer.lost
        if not self._has_joined:
            logger.warning(
                "The queue %r has lost requests before this worker began, %s of them known: its key was deleted or "
                "evicted, unless another scheduler took them. Their pages may be missing. %s",
                self._queue,
                f"{number:,}",
                _BEGIN_ANEW,
            )
            return
        self.losses += 1
        self.lost += number
        if number:
            self._warnings.warn(
                "%s requests that waited in the queue %r are gone: its key was deleted or evicted. Their pages are not "
                "fetched by this crawl, since the filter has them as seen. %s",
                f"{self.lost:,}",
                self._queue,
                _BEGIN_ANEW,
                level=logging.ERROR,
            )
        else:
            self._warnings.warn(
                "No worker was registered with the queue %r any more: Redis has lost its data, unless the crawl was "
                "ended or begun anew by other workers. Workers queue again what they hold. Requests that waited may be "
                "lost, and their pages missed. %s",
                self._queue,
                _BEGIN_ANEW,
                level=logging.ERROR,
            )
