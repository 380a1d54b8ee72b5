"""Wrong designs, each of which breaks a promise in a simulated crawl. The search looks for others, without a clock."""

from dataclasses import dataclass, field
from typing import Any

from scrapy_bloom.queue.messages import Joined, Outcome
from scrapy_bloom.queue.queue import Queue
from scrapy_bloom.queue.worker import Worker


@dataclass(frozen=True)
class Mistake:
    """A mistake in the worker or in the scripts.

    Attributes:
        kind, seed: the crawl that finds it.
        patches: values of names in `scrapy_bloom.queue.worker`.
        wrong: replacements in the scripts.
    """

    kind: str
    seed: int = 0
    patches: dict[str, Any] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)


_finish = Worker.finish


def _finish_too_early(worker: Worker, member: bytes, outcome: Outcome = Outcome.DONE) -> None:
    _finish(worker, member, outcome)
    for queue in worker.queues:
        if member in queue.finished:
            queue.finished[member] = queue.finished[member]._replace(end=-1)


_note_kept = Worker._note_kept


def _starts_once(worker: Worker, queue: Queue, joined: Joined) -> None:
    _note_kept(worker, queue, joined._replace(has_calls=True))


MISTAKES = {
    "acknowledged before the links are executed": Mistake("kill", patches={"Worker.finish": _finish_too_early}),
    "acknowledged without settling": Mistake("absent/2", 9, patches={"SETTLING": 0.0, "_ROUND_SECONDS": 0.0}),
    "the cache is kept at a rejoin": Mistake("loss", 40, patches={"TwoGenerationCache.clear": lambda _: None}),
    "start requests are offered once": Mistake("rollback", 11, patches={"Worker._note_kept": _starts_once}),
    "a dead worker's leases are dropped": Mistake("kill", wrong={"in_parts('ZADD', QUEUE, entries)\n": ""}),
    "a worker that was away presumes others dead": Mistake(
        "outage", 10, wrong={"my.back = NOW end": "my.back = 0 end"}
    ),
    "a late call is executed": Mistake("lossy", 2, wrong={"last == answered and 'next' or 'again'": "'next'"}),
    "a worker takes many suspects": Mistake("poison/2", wrong={" or ARGV[10] ~= '1'": ""}),
    "missing leases are not noted": Mistake("evict", 63, wrong={"if r.held ~= held then": "if false then"}),
    "a shrunken queue is not noticed": Mistake("evict", 9, wrong={"if vanished > 0 then": "if false then"}),
    "a lost crawl counts as ended": Mistake(
        "absent", 87, wrong={"id == ARGV[4] and step(match(last or '', '%d.*'), known)": "true"}
    ),
    "a shared filter is deleted": Mistake("shared", 2, wrong={"if is_shared then call": "if false then call"}),
}
