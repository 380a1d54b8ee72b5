"""Wrong designs, each with kinds of crawls in which the simulation must find it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from scrapy_bloom.queue.values import Call, Entry, Outcome, Page
from scrapy_bloom.queue.worker import Worker


@dataclass(frozen=True)
class Mistake:
    """A wrong worker, or wrong scripts: a text is replaced. A crawl of this kind finds it, from this seed on."""

    kind: str
    seed: int
    worker: type[Worker] = Worker
    wrong: dict[str, str] = field(default_factory=dict)


class AcknowledgesTooEarly(Worker):
    def finish(self, member: bytes, outcome: Outcome = Outcome.DONE) -> None:
        super().finish(member, outcome)
        if member in self.finished:
            self.finished[member] = replace(self.finished[member], behind=0)


class KeepsItsCache(Worker):
    def _expire(self) -> None:
        known = dict(self.repeats._young)
        super()._expire()
        self.repeats._young.update(known)


class NeverTaints(Worker):
    def _taint(self, is_tainted: Callable[[Page], bool], *, is_leased: bool) -> None:
        pass


class ForgetsDrops(Worker):
    def _has_dropped(self, page: Page) -> bool:  # noqa: ARG002
        return False


class DropsUnansweredOffers(Worker):
    def lose(self) -> None:
        call = self._under_way
        super().lose()
        for _ in range(call.offers if call else 0):
            self._offered.discard(self.outbox.popleft().fingerprint or b"")
            self._base += 1


class FinishesAlone(Worker):
    def _note_quiet(self, call: Call, taken: list[Entry], others: list[Any] | None) -> None:
        super()._note_quiet(call, taken, others and [others[0], 0, *others[2:]])


class Trusting(Worker):
    """Takes any registration that the server has for its own last one."""

    def _rejoin(self, *args: Any, **_: Any) -> None:
        super()._rejoin(*args, is_intact=args[3] > 0)


MISTAKES = {
    "acknowledged before the links are queued": Mistake("kill", 132, AcknowledgesTooEarly),
    "the cache is kept across EXPIRED": Mistake("loss", 14, KeepsItsCache),
    "pages whose links were lost are acknowledged": Mistake("rollback", 28, NeverTaints),
    "a link dropped by the cache is not relied on": Mistake("loss", 1064, ForgetsDrops),
    "offers are dropped with the reply": Mistake("lossy", 1, DropsUnansweredOffers),
    "a worker finishes without the others' contact": Mistake("kill", 75, FinishesAlone),
    "any registration is taken for intact": Mistake("rollback", 0, Trusting),
    "stamps are not compared": Mistake("lossy", 3, wrong={"stamp ~= my.stamp or ": ""}),
    "a server that went back is not noticed": Mistake(
        "rollback", 4, wrong={"stamp ~= my.stamp or ": "stamp < my.stamp or "}
    ),
    "a dead worker's leases are dropped": Mistake("kill", 2, wrong={"move(STEM .. 'leases:' .. worker, QUEUE)": ""}),
    "leases are not counted": Mistake("double", 7, wrong={"if missing ~= 0 then note_loss": "if false then note_loss"}),
    "a queue that vanished is not noticed": Mistake(
        "evict", 15, wrong={"if crawl.waiting == 0 then note_loss(audited)": "if false then"}
    ),
    "a rejoin is no worker for a moment": Mistake(
        "mixed", 272, wrong={"works = before and before.works or 0": "works = 0"}
    ),
    "a rejoin forgets lost leases": Mistake("double", 7, wrong={"note_missing_leases(ME, my)\nelseif": "elseif"}),
    "lost registrations are not noticed": Mistake(
        "double", 2118, wrong={"elseif not crawl.id and": "elseif false and"}
    ),
    "a worker that was away presumes others dead": Mistake("stop", 0, wrong={"my.since = NOW end": "my.since = 0 end"}),
    "the first queue to end deletes the filter": Mistake(
        "shared", 2, wrong={"return (call('HGET', key, 'users') or 0) + 0 <= 0": "return true"}
    ),
    "a first death makes a dead letter": Mistake("poison", 325, wrong={"elseif member == suspect and": "elseif"}),
    "a suspect without its name fails an exchange": Mistake(
        "poison", 127, wrong={"if not suspect or not call(": "if not call("}
    ),
}
