"""The carrying out of what a worker of the queue does next, on the queue and on the filter."""

import logging
from collections.abc import Sequence
from typing import Protocol

from scrapy_bloom._format import as_size
from scrapy_bloom._log import LimitedWarnings
from scrapy_bloom._runtime import RUNTIME, Runtime
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.filter.base_filter import BaseBloomFilter
from scrapy_bloom.monitoring.loss_watch import LossWatch
from scrapy_bloom.monitoring.reporter import warn_of_dead_letters, warn_of_deleted_requests, warn_of_kept_requests
from scrapy_bloom.queue.entries import OutboxEntry
from scrapy_bloom.queue.members import Registration
from scrapy_bloom.queue.operations import EndClosing, Ending, Join, Leave, QueueOperation, Reply, Status, Sync
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.queue.sync import AskFilter, FilterOperation, ReleaseFilter, UseFilter
from scrapy_bloom.queue.worker import QueueWorker
from scrapy_bloom.transport.failures import FAULTS, was_not_executed

logger = logging.getLogger(__name__)

# Exchanges lost in a row from which on a user is told: fewer may be batches that are made smaller.
_MANY_LOST = 8


class FilterHolder(Protocol):
    """The holder of the filter of a crawl: its dupefilter."""

    @property
    def filter(self) -> BaseBloomFilter:
        """The filter."""

    def release(self, user: str) -> bool:
        """Keep the filter for a queue no more; return whether it was deleted."""

    def note_workers(self, *, is_alone: bool) -> None:
        """Note whether no other worker is registered with the queue now, and nothing waits in it."""


class Executor:
    """Carries out the plan of a `worker`, by one round trip each time, and tells it what became of that."""

    def __init__(
        self, worker: QueueWorker, requests: RequestQueue, holder: FilterHolder, runtime: Runtime = RUNTIME
    ) -> None:
        self.worker = worker
        self.queue = requests.keys.queue
        self._requests = requests
        self._holder = holder
        self.warnings = LimitedWarnings(logger, runtime.monotonic)
        self._lost_in_a_row = 0
        self.watch = LossWatch(self.queue, self.warnings)
        # Requests that waited when this worker began to close the queue.
        self._waiting = 0

    def execute_next(self, want: int = 0) -> tuple[QueueOperation | FilterOperation | None, Sequence[OutboxEntry]]:
        """Carry out what the worker does next; return it, and the repeats that it found.

        Nothing comes between a reply and the worker that could fail.
        """
        operation = self.worker.next_operation(want)
        repeats: Sequence[OutboxEntry] = ()
        try:
            match operation:
                case None:
                    pass
                case AskFilter():
                    repeats = self.worker.answer(operation, self._ask(operation.entries))
                case UseFilter():
                    self._holder.filter.add_reference(self.queue)
                    self.worker.reply(operation, Reply(Status.OK))
                case ReleaseFilter():
                    is_deleted = self._holder.release(self.queue)
                    self.worker.reply(operation, Reply(Status.OK if is_deleted else Status.KEPT))
                case _:
                    self._carry_out(operation)
        except Exception as error:  # also a fault of this process: the server may have carried the operation out
            if operation is not None and not was_not_executed(error):
                self.worker.lose(operation)
                if isinstance(operation, Sync) and isinstance(error, FAULTS):
                    self._warn_of_slow_link(operation)
            raise
        return operation, repeats

    def _carry_out(self, operation: QueueOperation) -> None:
        if isinstance(operation, EndClosing):
            self._warn_of_discarded(is_deleted=operation.clears)
        answer = self._requests.execute(operation)
        if isinstance(operation, Join) and answer.status is Status.FOREIGN and not self.worker.is_leaving:
            refuse_other_spiders(self.queue, answer, operation.spider)
        self.worker.reply(operation, answer)
        if isinstance(operation, Sync):
            self._lost_in_a_row = 0
        if answer.status in (Status.EXPIRED, Status.LATE):
            # The filter may have been cleared with the queue, and another worker fill a new one.
            self._holder.filter.forget_cached()
        self.watch.note(operation, answer)
        if answer.workers:
            is_alone = answer.workers.keys() <= {self.worker.name} and not answer.waiting
            self._holder.note_workers(is_alone=is_alone)
        if isinstance(operation, Leave):
            self._report_leftovers(operation, answer)

    def _warn_of_slow_link(self, sync: Sync) -> None:
        """Tell once of exchanges that are lost one after another, though what follows each of them gets through."""
        self._lost_in_a_row += 1
        if self._lost_in_a_row == _MANY_LOST:
            logger.warning(
                "%d exchanges in a row with the queue %r got no reply, although Redis is there. The last one carried "
                "requests of %s, and asked for up to %d more. If a request is so large, or the link so slow, that this "
                "takes longer than socket_timeout, set a longer one in REDIS_PARAMS",
                _MANY_LOST,
                self.queue,
                as_size(sync.size),
                sync.want,
            )

    def _ask(self, entries: Sequence[OutboxEntry]) -> list[bool]:
        """Return of each entry whether it is new to the filter, which remembers it now."""
        bloom = self._holder.filter
        bloom.mark_ambiguous(entry.fingerprint or b"" for entry in entries if entry.is_unsure)
        return bloom.add_many([entry.fingerprint or b"" for entry in entries])

    def _warn_of_discarded(self, *, is_deleted: bool) -> None:
        """Warn of requests that wait in a queue that was stopped: they are deleted, or stay with their filter."""
        if self._waiting:
            (warn_of_deleted_requests if is_deleted else warn_of_kept_requests)(self._waiting, self.queue)
            self._waiting = 0

    def _report_leftovers(self, leave: Leave, answer: Reply) -> None:
        """Tell of requests that stay, and of dead letters."""
        if answer.status is Status.LAST and leave.ending is Ending.STOPPED:
            self._waiting = answer.waiting
        if answer.status is Status.LEFT and leave.ending is Ending.KEEP and answer.waiting:
            logger.info("%s requests stay in the queue %r", f"{answer.waiting:,}", self.queue)
        if answer.dead:
            warn_of_dead_letters(answer.dead, self._requests.keys.dead_letters)


def refuse_other_spiders(queue: str, answer: Reply, own: str) -> None:
    """Refuse a queue with which, as an answer says, workers of other spiders than one's own are registered.

    Raises:
        ConfigError: there are such workers.
    """
    spiders = {name: Registration.parse(value).spider for name, value in (answer.workers or {}).items()}
    worker, spider = next(((name, spider) for name, spider in spiders.items() if spider not in ("", own)), ("", ""))
    if not worker:
        return
    raise ConfigError(
        f"SCHEDULER_QUEUE_KEY: worker {worker} of the spider {spider!r} is registered with the queue {queue!r}, and "
        "two spiders cannot share a queue, since each would take requests of the other; set one with %(spider)s in it. "
        "If that worker is dead, start its spider again, or delete the queue with `scrapy bloom clear --with-queue`"
    )
