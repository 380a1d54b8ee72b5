"""Execute a worker's next operation against the queue or the filter."""

import logging
from collections.abc import Sequence
from typing import Protocol

from scrapy_bloom._format import LimitedWarnings, as_size, plural
from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom.errors import BloomError
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.monitoring.loss_watch import LossWatch
from scrapy_bloom.monitoring.reporter import warn_of_dead_letters, warn_of_deleted_requests, warn_of_kept_requests
from scrapy_bloom.queue.entries import OutboxEntry
from scrapy_bloom.queue.operations import (
    AskFilter,
    ClearFilter,
    EndClosing,
    Ending,
    FilterOperation,
    ForgetFailed,
    Join,
    Leave,
    QueueOperation,
    ReleaseFilter,
    Reply,
    RequestQueue,
    Status,
    Sync,
    UseFilter,
    require_own_queue,
)
from scrapy_bloom.queue.worker import QueueWorker
from scrapy_bloom.transport.failures import FAULTS, was_not_executed

logger = logging.getLogger(__name__)

# Fewer lost syncs in a row are normal on a slow link, until the worker's window has shrunk.
_MIN_LOST_SYNCS = 8


class FilterHolder(Protocol):
    """The owner of a crawl's filter: its dupefilter."""

    @property
    def filter(self) -> BaseBloomFilter:
        """The filter."""

    def release(self, user: str) -> bool:
        """Remove the queue's reference to the filter; return whether that deleted the filter."""

    def forget(self, fingerprints: Sequence[bytes]) -> None:
        """Have the filter forget requests."""

    def note_workers(self, *, is_alone: bool) -> None:
        """Note whether this worker is the only one of its queue, and the queue is empty."""


class Executor:
    """Executes the operations of `worker`, one round trip each, and passes the replies back to it."""

    def __init__(
        self, worker: QueueWorker, requests: RequestQueue, holder: FilterHolder, runtime: Runtime = RUNTIME
    ) -> None:
        self.worker = worker
        self.queue = requests.keys.queue
        self.warnings = LimitedWarnings(logger, runtime.monotonic)
        self.watch = LossWatch(self.queue, self.warnings)
        self._requests = requests
        self._holder = holder
        self._lost_in_a_row = 0
        # Requests in the queue when this worker started to close it.
        self._waiting = 0

    def execute_next(self, want: int = 0) -> tuple[QueueOperation | FilterOperation | None, Sequence[OutboxEntry]]:
        """Execute the worker's next operation; return it with the repeats that the filter found."""
        operation = self.worker.next_operation(want)
        return operation, self.execute(operation)

    def execute(self, operation: QueueOperation | FilterOperation | None) -> Sequence[OutboxEntry]:
        """Execute an operation of the worker; return the repeats that the filter found.

        Between a reply and the worker runs no code that can fail, except the refusal of another spider's queue.
        """
        repeats: Sequence[OutboxEntry] = ()
        try:
            match operation:
                case None:
                    pass
                case AskFilter():
                    repeats = self._ask_filter(operation)
                case UseFilter() | ReleaseFilter() | ClearFilter() | ForgetFailed():
                    self.worker.receive_reply(operation, Reply(self._change_filter(operation)))
                case _:
                    self._execute(operation)
        except Exception as error:  # also a fault of this process: the server may have executed the operation
            if operation is not None and _may_be_executed(error):
                self.worker.lose_reply(operation)
                if isinstance(operation, Sync) and isinstance(error, FAULTS):
                    self._warn_of_slow_link(operation)
            raise
        return repeats

    @property
    def filter(self) -> BaseBloomFilter:
        """The filter of the crawl."""
        return self._holder.filter

    def _execute(self, operation: QueueOperation) -> None:
        if isinstance(operation, EndClosing) and self._waiting:
            warn = warn_of_deleted_requests if operation.clears else warn_of_kept_requests
            warn(self._waiting, self.queue)
            self._waiting = 0
        reply = self._requests.execute(operation)
        if isinstance(operation, Join) and reply.status is Status.FOREIGN and not self.worker.is_leaving:
            require_own_queue(self.queue, reply, operation.spider)
        self.worker.receive_reply(operation, reply)
        if isinstance(operation, Sync):
            self._lost_in_a_row = 0
        if reply.status in (Status.EXPIRED, Status.LATE):
            # The filter may have been deleted with the queue, and another worker may fill a new one.
            self._holder.filter.forget_cached()
        self.watch.note(operation, reply)
        if reply.workers:
            is_alone = reply.workers.keys() <= {self.worker.name} and not reply.waiting
            self._holder.note_workers(is_alone=is_alone)
        if isinstance(operation, Leave):
            self._report_leftovers(operation, reply)

    def _warn_of_slow_link(self, sync: Sync) -> None:
        """Warn once if syncs keep losing their replies while smaller operations succeed."""
        self._lost_in_a_row += 1
        if self._lost_in_a_row == _MIN_LOST_SYNCS:
            logger.warning(
                "%d syncs in a row with the queue %r got no reply, although Redis is reachable. The last one carried "
                "%s of requests and asked for up to %d more. If a large request or a slow link takes longer than "
                "socket_timeout, set a longer socket_timeout in REDIS_PARAMS",
                _MIN_LOST_SYNCS,
                self.queue,
                as_size(sync.size),
                sync.want,
            )

    def _report_leftovers(self, leave: Leave, reply: Reply) -> None:
        """Log queued requests and dead letters that outlive this worker."""
        if reply.status in (Status.LAST, Status.FLUSHED) and leave.ending is Ending.STOPPED:
            self._waiting = reply.waiting
        if reply.status is Status.LEFT and leave.ending is Ending.KEEP and reply.waiting:
            logger.info("Left %s in the queue %r", plural(reply.waiting, "request"), self.queue)
        if reply.dead:
            warn_of_dead_letters(reply.dead, self._requests.keys.dead_letters)

    def _change_filter(self, operation: UseFilter | ReleaseFilter | ClearFilter | ForgetFailed) -> Status:
        match operation:
            case UseFilter():
                self._holder.filter.add_reference(self.queue)
            case ForgetFailed():
                self._holder.forget(operation.fingerprints)
            case ClearFilter():
                self._holder.filter.clear()
            case ReleaseFilter():
                return Status.OK if self._holder.release(self.queue) else Status.KEPT
        return Status.OK

    def _ask_filter(self, operation: AskFilter) -> Sequence[OutboxEntry]:
        """Add entries to the filter, and return the repeats among them."""
        bloom = self._holder.filter
        unsure = [entry.fingerprint or b"" for entry in operation.entries if entry.is_unsure]
        if unsure:
            bloom.mark_ambiguous(unsure)
        fingerprints = [entry.fingerprint or b"" for entry in operation.entries]
        try:
            are_new = bloom.add_many(fingerprints)
        except BaseException:
            self.worker.doubt(set(filter(bloom.is_ambiguous, fingerprints)))
            raise
        return self.worker.receive_filter_reply(operation, are_new)


def _may_be_executed(error: Exception) -> bool:
    """Return whether the server may have executed an operation that failed with this error."""
    if isinstance(error, BloomError) and error.outcomes is not None:
        return any(failure.is_in_doubt for failure in error.outcomes.failures.values())
    return not was_not_executed(error)
