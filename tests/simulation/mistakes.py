"""Wrong designs, each with a crawl in which the simulation must find it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from scrapy_bloom.queue.worker import Worker
from tests.queue.search import mistakes
from tests.simulation.plan import plan_for
from tests.simulation.world import simulate
from tests.support.running import AnyWorker


@dataclass(frozen=True)
class Mistake:
    """A wrong worker, or wrong scripts: a text is replaced. The crawl of this kind and seed finds it."""

    kind: str
    seed: int
    worker: type[AnyWorker] = Worker
    wrong: dict[str, str] = field(default_factory=dict)

    def finders(self, seeds: Iterable[int]) -> Iterator[int]:
        """Yield the seeds whose crawls have a problem with the wrong design, and none with the right one."""
        for seed in seeds:
            plan = plan_for(self.kind, seed)
            if simulate(plan, self.worker, self.wrong).problems and not simulate(plan).problems:
                yield seed


MISTAKES = {
    "acknowledged before the links are queued": Mistake("kill", 261, mistakes.AcknowledgesTooEarly),
    "the cache is kept across EXPIRED": Mistake("loss", 14, mistakes.KeepsItsCache),
    "pages whose links were lost are acknowledged": Mistake("rollback", 53, mistakes.NeverTaints),
    "a link dropped by the cache is not relied on": Mistake("loss", 1064, mistakes.ForgetsDrops),
    "offers are dropped with the reply": Mistake("lossy", 1, mistakes.DropsUnansweredOffers),
    "a worker finishes without the others' contact": Mistake("kill", 75, mistakes.FinishesAlone),
    "any registration is taken for intact": Mistake("rollback", 100, mistakes.RelativelyTrusting),
    "stamps are not compared": Mistake("lossy", 3, wrong={"stamp ~= my.stamp or ": ""}),
    "a server that went back is not noticed": Mistake(
        "rollback", 20, wrong={"stamp ~= my.stamp or ": "stamp < my.stamp or "}
    ),
    "a dead worker's leases are dropped": Mistake("kill", 2, wrong={"move(STEM .. 'leases:' .. worker, QUEUE)": ""}),
    "leases are not counted": Mistake("double", 7, wrong={"if missing ~= 0 then note_loss": "if false then note_loss"}),
    "a queue that vanished is not noticed": Mistake(
        "evict", 15, wrong={"if crawl.waiting < noted[3] then": "if false then"}
    ),
    "a rejoin is no worker for a moment": Mistake("mixed", 272, wrong={"works = before.works": "works = 0"}),
    "a rejoin forgets lost leases": Mistake("double", 7, wrong={"elseif my and stamp ~=": "elseif false and stamp ~="}),
    "lost registrations are not noticed": Mistake("double", 2118, wrong={" or not crawl.id and is_used then": " then"}),
    "a worker that was away presumes others dead": Mistake(
        "stop", 10, wrong={"my.since = NOW end": "my.since = 0 end"}
    ),
    "the first queue to end deletes the filter": Mistake(
        "shared", 2, wrong={"if is_shared then call": "if false then call"}
    ),
    "a first death makes a dead letter": Mistake("poison", 325, wrong={"elseif member == suspect and": "elseif"}),
    "a suspect without its name fails an exchange": Mistake(
        "poison", 127, wrong={"if not suspect or not call(": "if not call("}
    ),
    "acknowledged before all partitions have the links": Mistake("kill/2", 7, mistakes.AcknowledgesAlone),
    "pages whose links another partition lost are acknowledged": Mistake("loss/2", 4, mistakes.TaintsNoOthers),
    "a partition is joined again without the first one": Mistake("double/2", 39, mistakes.RejoinsUnconfirmed),
    "reliances are not compared": Mistake("absent/5", 7, mistakes.ComparesNothing),
    "pages that led to forgotten local requests are acknowledged": Mistake("local/2", 10, mistakes.ForgetsLocalAlone),
    "a late flush deletes requests of the new crawl": Mistake(
        "flush/5",
        417,
        wrong={"flush = origin_of_first == 'flush' and (is_older or not crawl.id and (flush or not is_used))": ""},
    ),
}
