"""Log and count what a worker finds out about its queue: losses, dead workers, dead letters."""

import logging
from collections.abc import Callable

from scrapy_bloom._format import LimitedWarnings, plural
from scrapy_bloom.atomic.queue import Keys
from scrapy_bloom.atomic.values import Trouble
from scrapy_bloom.atomic.worker import Worker
from scrapy_bloom.monitoring.reporter import warn_of_dead_letters, warn_of_deleted_requests, warn_of_kept_requests
from scrapy_bloom.monitoring.stats import QUEUE_LOSSES, RECOVERED, RequestNotifier

logger = logging.getLogger(__name__)

_START_OVER = "To fetch them, start over with SCHEDULER_FLUSH_ON_START = True"
_TROUBLES = {
    Trouble.LOST: (
        "Redis has lost the crawl of the queue %r, unless other workers presumed this one dead and ended it. This "
        "worker queues its requests again. Others may be lost, and their pages missed. " + _START_OVER
    ),
    Trouble.FLUSHED: (
        "Another worker started over with the queue %r. This worker joins again with its requests, and some may be "
        "fetched twice"
    ),
    Trouble.ROLLED_BACK: (
        "Redis went back to an earlier state of the queue %r, by a restart from a snapshot or a failover. This worker "
        "queues its requests again, and some may be fetched twice"
    ),
    Trouble.PRESUMED_DEAD: (
        "Other workers presumed this one dead and requeued its leases in the queue %r. This worker joins again with "
        "its requests, and some may be fetched twice"
    ),
    Trouble.FILTER_LOST: (
        "The filter of the queue %r was replaced (cleared or evicted). The crawl continues with a new filter, and may "
        "fetch the pages of the lost one again"
    ),
}


class QueueReport:
    """Reports what `worker` finds out.

    Args:
        worker: the worker.
        keys: the keys of its queue.
        notifier: counts in the stats.
        report_buried: reports a request that became a dead letter.

    Attributes:
        has_lost: the queue has lost requests since this worker joined.
    """

    def __init__(
        self, worker: Worker, keys: Keys, notifier: RequestNotifier, report_buried: Callable[[bytes], object]
    ) -> None:
        self.has_lost = False
        self.warnings = LimitedWarnings(logger)
        self._worker = worker
        self._keys = keys
        self._notifier = notifier
        self._report_buried = report_buried
        self._losses = self._lost = 0

    def begin(self) -> None:
        """Report the losses before this worker joined."""
        self._losses, self._lost = self._worker.losses, self._worker.lost
        if self._losses:
            logger.warning(
                "The queue %r has lost requests before this worker began, %s of them known: its key or leases were "
                "deleted or evicted. Their pages may be missing. %s",
                self._keys.queue,
                f"{self._lost:,}",
                _START_OVER,
            )

    def update(self) -> None:
        """Report what is new since the last call."""
        worker = self._worker
        while worker.troubles:
            trouble = worker.troubles.pop(0)
            is_loss = trouble is Trouble.LOST
            self.warnings.warn(
                _TROUBLES[trouble], self._keys.queue, level=logging.ERROR if is_loss else logging.WARNING
            )
            if is_loss:
                self._note_loss()
                self._losses, self._lost = worker.losses, worker.lost
        if worker.losses != self._losses:
            self._report_losses()
        while worker.reaped:
            dead = worker.reaped.pop(0)
            self._notifier.count(RECOVERED, dead.requests)
            logger.warning(
                "Worker %s has been silent for %.0f s: requeued %s of its leases in the queue %r",
                dead.worker,
                dead.seconds,
                plural(dead.requests, "request"),
                self._keys.queue,
            )
        while worker.buried:
            self._report_buried(worker.buried.pop(0))

    def report_end(self, mode: str, dead: int) -> None:
        """Report the requests that this worker has left or deleted, and the dead letters."""
        waiting = self._worker.waiting
        if waiting and self._worker.is_deleted:
            warn_of_deleted_requests(waiting, self._keys.queue)
        elif waiting and mode == "stopped" and not self._worker.working:
            warn_of_kept_requests(waiting, self._keys.queue)
        elif waiting:
            logger.info("Left %s in the queue %r", plural(waiting, "request"), self._keys.queue)
        if dead:
            warn_of_dead_letters(dead, self._keys.dead_letters)

    def _report_losses(self) -> None:
        worker = self._worker
        # After a rollback the counts may be smaller.
        number, self._losses, self._lost = max(worker.lost - self._lost, 0), worker.losses, worker.lost
        self._note_loss()
        self.warnings.warn(
            "%s requests in the queue %r or leased from it are gone: a key was deleted or evicted. This crawl does not "
            "fetch their pages, since the filter calls them seen. %s",
            f"{number:,}",
            self._keys.queue,
            _START_OVER,
            level=logging.ERROR,
        )

    def _note_loss(self) -> None:
        self.has_lost = True
        self._notifier.count(QUEUE_LOSSES)
