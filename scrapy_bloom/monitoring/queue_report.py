"""Log and count the findings of a worker about its queue: losses, dead workers, dead letters."""

import logging
from collections.abc import Callable

from scrapy_bloom._format import LimitedWarnings, plural
from scrapy_bloom.filter.info import Counters
from scrapy_bloom.monitoring.stats import QUEUE_LOSSES, RECOVERED, RequestNotifier
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.values import Trouble
from scrapy_bloom.queue.worker import MAX_STARTS, Worker

logger = logging.getLogger(__name__)

_START_OVER = "To fetch them, start over with SCHEDULER_FLUSH_ON_START = True"
_GONE = (
    "Requests in the queue %r or leased from it are gone%s, %s of them known: a key of it, or of another of its "
    "partitions, was deleted, evicted, or put back to an earlier state. Or another client takes requests, such as a "
    "worker with scrapy-redis's scheduler. The filter calls the requests seen, so their pages may be missed. "
    + _START_OVER
)
_LOST_SHARDS = (
    "The filter of the queue %r lost %d shards (evicted?). The crawl continues, and may fetch their pages again"
)
_TROUBLES = {
    Trouble.LOST: (
        "Redis has lost the crawl of the queue %r, unless other workers presumed this one dead and ended it. This "
        "worker queues its requests again. Others may be lost, and their pages missed. " + _START_OVER
    ),
    Trouble.FLUSHED: (
        "The queue %r was cleared, or another worker started over with it. This worker joins again with its requests, "
        "and some may be fetched twice"
    ),
    Trouble.ROLLED_BACK: (
        "Redis went back to an earlier state of the queue %r, by a restart from a snapshot or a failover. This worker "
        "queues its requests again, and some may be fetched twice"
    ),
    Trouble.PRESUMED_DEAD: (
        "Other workers presumed this one dead and requeued its leases in the queue %r. This worker joins again with "
        "its requests, and some may be fetched twice"
    ),
    Trouble.STARTS_LOST: (
        "Redis has lost requests of the queue %r, perhaps also start requests, of which a worker remembers the last "
        f"{MAX_STARTS:,}. The pages of earlier ones may be missed. " + _START_OVER
    ),
    Trouble.LINKS_LOST: (
        "This partition of the queue %r may have lost links of pages that were acknowledged in other partitions. Their "
        "pages may be missed. " + _START_OVER
    ),
    Trouble.FILTER_LOST: (
        "The filter of the queue %r was replaced (cleared, evicted, or at the end of BLOOMFILTER_TTL). The crawl "
        "continues with a new filter, and may fetch the pages of the lost one again"
    ),
}


class QueueReport:
    """Reports the findings of `worker`.

    Args:
        worker: the worker.
        keys: the keys of its queue.
        counters: this worker's part in the filter.
        notifier: counts in the stats.
        report_buried: reports a request that became a dead letter.

    Attributes:
        has_lost: the queue has lost requests since this worker joined.
    """

    def __init__(
        self,
        worker: Worker,
        keys: QueueKeys,
        counters: Counters,
        notifier: RequestNotifier,
        report_buried: Callable[[bytes], object],
    ) -> None:
        self.has_lost = self._has_begun = False
        self.warnings = LimitedWarnings(logger)
        self._worker = worker
        self._keys = keys
        self._counters = counters
        self._notifier = notifier
        self._report_buried = report_buried
        self._losses = self._lost = self._lost_shards = 0

    def begin(self) -> None:
        """Report the losses before this worker joined."""
        self._has_begun = True
        self._losses, self._lost, self._lost_shards = self._worker.losses, self._worker.lost, self._worker.lost_shards
        if self._losses:
            logger.warning(_GONE, self._keys.queue, " since before this worker began", f"{self._lost:,}")

    def update(self) -> None:
        """Report the findings since the last call."""
        worker = self._worker
        while worker.troubles:
            trouble = worker.troubles.pop(0)
            is_loss = trouble in (Trouble.LOST, Trouble.STARTS_LOST, Trouble.LINKS_LOST)
            self.warnings.warn(
                _TROUBLES[trouble], self._keys.queue, level=logging.ERROR if is_loss else logging.WARNING
            )
            self._counters.losses += trouble is Trouble.FILTER_LOST
            if is_loss:
                self._note_loss()
                self._losses, self._lost = worker.losses, worker.lost
        if self._has_begun and worker.losses != self._losses:
            # After a rollback the counts may be smaller.
            number, self._losses, self._lost = max(worker.lost - self._lost, 0), worker.losses, worker.lost
            self._note_loss()
            self.warnings.warn(_GONE, self._keys.queue, "", f"{number:,}", level=logging.ERROR)
        if worker.lost_shards > self._lost_shards:
            self._counters.losses += 1
            self.warnings.warn(_LOST_SHARDS, self._keys.queue, worker.lost_shards - self._lost_shards)
        self._lost_shards = worker.lost_shards
        while worker.buried:
            self._report_buried(worker.buried.pop(0))

    def end(self, mode: str, dead: int) -> None:
        """Report the requests that this worker has left, deleted or crawled alone, and the dead letters."""
        waiting, forgotten = self._worker.waiting, self._worker.forgotten_local
        if crawled := self._worker.accepted_local - forgotten:
            logger.info("%s could not be serialized: this process crawled them itself", plural(crawled, "request"))
        if forgotten:
            logger.info(
                "%s could not be serialized and were not crawled: the pages that led to them wait again in the queue "
                "%r, and start() yields start requests again",
                plural(forgotten, "request"),
                self._keys.queue,
            )
        if waiting and self._worker.is_deleted:
            warn_of_deleted_requests(waiting, self._keys.queue)
        elif waiting and mode == "shared" and not self._worker.working:
            logger.warning(
                "%s requests still wait in the queue %r, and stay there: their filter is shared, and calls them seen. "
                "Start this spider again to fetch them",
                f"{waiting:,}",
                self._keys.queue,
            )
        elif waiting:
            logger.info("Left %s in the queue %r", plural(waiting, "request"), self._keys.queue)
        if dead:
            logger.warning(
                "%s requests are kept at the key %r: no worker could read them, or BLOOMFILTER_MAX_DELIVERIES workers "
                "died with them. The next worker to start queues the unreadable ones again, and `scrapy bloom requeue` "
                "all of them. To discard them, delete the key",
                f"{dead:,}",
                self._keys.dead_letters,
            )

    def _note_loss(self) -> None:
        self.has_lost = True
        self._notifier.count(QUEUE_LOSSES)


def report_dead_workers(workers: list[Worker], queue: str, notifier: RequestNotifier) -> None:
    """Report the workers that the partitions' replies call dead, each once for all partitions."""
    dead: dict[str, tuple[float, int]] = {}
    for each in (each for worker in workers for each in worker.reaped):
        seconds, requests = dead.get(each.worker, (0.0, 0))
        dead[each.worker] = max(seconds, each.seconds), requests + each.requests
    for worker in workers:
        worker.reaped.clear()
    for name, (seconds, requests) in dead.items():
        notifier.count(RECOVERED, requests)
        logger.warning(
            "Worker %s has been silent for %.0f s: requeued %s of its leases in the queue %r",
            name,
            seconds,
            plural(requests, "request"),
            queue,
        )


def warn_of_deleted_requests(waiting: int, queue: str, *, is_shared: bool = False) -> None:
    """Warn that a stopped crawl deletes queued requests, and the filter unless that is shared."""
    logger.warning(
        "%s requests that still waited in the queue %r are deleted, %s; set SCHEDULER_PERSIST = True to keep them and "
        "resume the crawl",
        f"{waiting:,}",
        queue,
        "and the shared filter calls them seen: their pages are missed" if is_shared else "and the filter with them",
    )
