"""Wrong designs: each must break a promise in its scenario, or in its simulated crawl, or in both."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scrapy_bloom.queue.partitioned import PartitionedWorker, Waiting
from scrapy_bloom.queue.values import Call, Entry, IndexedCall, Offer, Outcome, Page, Trouble
from scrapy_bloom.queue.worker import Worker
from tests.queue.search.scenarios import SCENARIOS, SMALL, TINY, one, scripts, spare, two
from tests.queue.search.world import Scenario
from tests.support.running import AnyWorker


@dataclass(frozen=True)
class Mistake:
    """A wrong worker, or wrong scripts: texts are replaced wherever they stand.

    Attributes:
        scenario: the crawl in which the search finds it; None: the search does not.
        worker: the wrong worker.
        wrong: replacements in the scripts.
        walks: random walks that find it; 0: only a search of all states does.
        seed: of a walk that finds it soon.
        is_long: this takes more than some seconds.
        crawl: kind and seed of the simulated crawl that finds it; None: the simulation does not.
    """

    scenario: Scenario | None = None
    worker: type[AnyWorker] = Worker
    wrong: dict[str, str] = field(default_factory=dict)
    walks: int = 500
    seed: int = 1
    is_long: bool = False
    crawl: tuple[str, int] | None = None

    def scripts(self) -> dict[str, str]:
        """Return the scripts, with the mistake."""
        wrong = scripts()
        for right, mistake in self.wrong.items():
            if max(text.count(right) for text in wrong.values()) != 1:
                raise ValueError(f"no script has {right!r}, or one has it twice")
            wrong = {name: text.replace(right, mistake) for name, text in wrong.items()}
        return wrong


class AcknowledgesTooEarly(Worker):
    def finish(self, member: bytes, outcome: Outcome = Outcome.DONE) -> None:
        super().finish(member, outcome)
        if member in self.finished:
            self.finished[member] = replace(self.finished[member], behind=0)


class KeepsItsCache(Worker):
    def expire(self) -> None:
        known = dict(self.repeats._young)
        super().expire()
        self.repeats._young.update(known)


class StartsOnce(Worker):
    def _start_again(self, restored: int) -> None:
        pass


class NeverTaints(Worker):
    def taint(self, is_tainted: Callable[[Page], bool], *, is_leased: bool) -> None:
        pass


class ForgetsDrops(Worker):
    def _has_dropped(self, page: Page) -> bool:  # noqa: ARG002
        return False


class DropsUnansweredOffers(Worker):
    def lose(self, index: int = 0) -> None:
        call = self._under_way
        super().lose(index)
        for _ in range(call.arguments[8] if call and call.script == "exchange" else 0):
            offer = self.outbox.popleft()
            self._offered.discard(offer.fingerprint or b"")
            self._base += 1


class NeverWaitsForLocal(Worker):
    def release(self) -> None:
        local, self.local = self.local, {}
        super().release()
        self.local = local


class NeverWaitsForLinksOfLocal(Worker):
    def release(self) -> None:
        outbox, self.outbox = self.outbox, deque()
        super().release()
        self.outbox = outbox


class MarksAtTheEnd(Worker):
    """Marks a local request although others are left, which it may have led to."""

    def finish(self, member: bytes, outcome: Outcome = Outcome.DONE) -> None:
        offer = self.local.get(member)
        super().finish(member, outcome)
        if offer and offer.fingerprint in self.unmarked:
            self.unmarked[offer.fingerprint] = self._base + len(self.outbox)


class ForgetsLocalInSilence(Worker):
    def taint(self, is_tainted: Callable[[Page], bool], *, is_leased: bool) -> None:
        if not (is_leased and self.is_stopping):
            super().taint(is_tainted, is_leased=is_leased)


class MarksWhatLedToForgotten(Worker):
    def _forget_local(self) -> None:
        unmarked = self.unmarked
        super()._forget_local()
        self.unmarked = unmarked


class RunsNoLocalAgain(Worker):
    def run_again(self, is_tainted: Callable[[Page], bool]) -> None:  # noqa: ARG002
        super().run_again(lambda _: False)


class KeepsUnmarked(Worker):
    def run_again(self, is_tainted: Callable[[Page], bool]) -> None:
        unmarked = self.unmarked
        super().run_again(is_tainted)
        self.unmarked = unmarked


class BeginsSuspectsBesideLocal(Worker):
    @property
    def is_held_back(self) -> bool:
        return False

    @property
    def needs_start(self) -> bool:
        return self.has_waiting_suspect and not self.is_stopping


class TrustsLostLookUps(Worker):
    """Takes a looked up request for new if the reply is lost."""

    def _end_offers(self, flags: Sequence[bool | None]) -> list[tuple[Offer, bool]]:
        return super()._end_offers([flag is not False for flag in flags])


class FinishesAlone(Worker):
    def _note_quiet(self, call: Call, taken: list[Entry], others: list[Any] | None) -> None:
        super()._note_quiet(call, taken, others and [others[0], 0, *others[2:]])


class ReturnsNothingAtARejoin(Worker):
    def _rejoin(self, *args: Any) -> None:
        self.ready = []
        super()._rejoin(*args)


class RelativelyTrusting(Worker):
    """Takes any registration that the server has for its own last one."""

    def _rejoin(self, crawl: bytes, origin: bytes, filter_id: bytes, replaced: int, restored: int | None) -> None:
        super()._rejoin(crawl, origin, filter_id, replaced, None if replaced else restored)


class AcknowledgesAlone(PartitionedWorker):
    """Acknowledges a page before all partitions have executed its links."""

    def _wait(self, waiting: Waiting) -> None:
        if self._is_settling:
            super()._wait(waiting)
        else:
            self._end(waiting)


class FinishesAfterOneRound(PartitionedWorker):
    def _note_visit(self, index: int) -> None:
        super()._note_visit(index)
        self._is_quiet = bool(self._quiet) and None not in self._quiet


class FinishesInSpiteOfChanges(PartitionedWorker):
    def _note_visit(self, index: int) -> None:
        before = self._quiet
        super()._note_visit(index)
        self._is_quiet = bool(before) and None not in (*before, *self._quiet)


class TaintsNoOthers(PartitionedWorker):
    def _note_trouble(self, index: int, trouble: Trouble) -> None:
        pass


class RejoinsUnconfirmed(PartitionedWorker):
    def receive(self, reply: Any, index: int) -> list[tuple[Offer, bool]]:
        ended = super().receive(reply, index)
        self._to_confirm.clear()
        return ended


class StartsSuspectsBesideOthers(PartitionedWorker):
    def _must_wait(self, part: Worker) -> bool:  # noqa: ARG002
        return False


class IgnoresLocalOfOthers(PartitionedWorker):
    def _settle(self) -> None:
        pass


class ForgetsLocalAlone(PartitionedWorker):
    def _forget_local(self, before: int) -> None:
        pass


class IsIdleAlone(PartitionedWorker):
    """Calls itself idle although it holds requests of other partitions; nor does it compare, for a shorter search."""

    def next_calls(self, want: int, flush: Collection[int] | None = None) -> list[IndexedCall]:
        self._has_compared = True
        calls = []
        for index, call in super().next_calls(want, flush):
            if call.script == "exchange":
                is_idle = self.parts[index].is_idle
                arguments = (*call.arguments[:4], int(is_idle), *call.arguments[5:])
                call = call._replace(arguments=arguments, is_idle=is_idle)  # noqa: PLW2901
            self.parts[index]._under_way = call
            calls.append((index, call))
        return calls


class ComparesNothing(PartitionedWorker):
    """Believes a partition that has lost data while no worker ran."""

    def _compare(self, joined: Worker) -> None:
        pass


_SKIPS_EQUAL_LEASES = """
for _, member in ipairs(call('ZRANGE', STEM .. 'leases:' .. worker, 0, -1)) do
  for _, field in ipairs(call('HKEYS', CRAWL)) do
    local other = string.match(field, '^@(.+)')
    if other and other ~= worker and call('ZSCORE', STEM .. 'leases:' .. other, member) then
      call('ZREM', STEM .. 'leases:' .. worker, member)
    end
  end
end
move(STEM .. 'leases:' .. worker, QUEUE)
"""

MISTAKES = {
    "a local request is marked when it is offered": Mistake(
        SCENARIOS["local, crash"],
        wrong={"not is_queued and not filter.has(f, digest)": "not is_queued and filter.check(f, digest)"},
    ),
    "acknowledged before local requests are done": Mistake(SCENARIOS["local, crash"], NeverWaitsForLocal),
    "acknowledged before the links of local requests are queued": Mistake(
        SCENARIOS["local, crash, batches of one"], NeverWaitsForLinksOfLocal
    ),
    "a local request is marked before its local links are done": Mistake(
        SCENARIOS["local links, crash"], MarksAtTheEnd
    ),
    "local requests are forgotten at a stop, and their pages acknowledged": Mistake(
        SCENARIOS["local, stopped, kept"], ForgetsLocalInSilence
    ),
    "local requests that led to forgotten ones are marked": Mistake(
        SCENARIOS["local, stopped, kept"], MarksWhatLedToForgotten
    ),
    "a local request that relied on lost data does not run again": Mistake(
        SCENARIOS["local start, flushall"], RunsNoLocalAgain
    ),
    "local requests stay known after a loss": Mistake(SCENARIOS["local, flushall, none ahead"], KeepsUnmarked),
    "a suspect begins beside local requests": Mistake(
        SCENARIOS["local poison at the start"], BeginsSuspectsBesideLocal
    ),
    "a lost look-up is taken for new": Mistake(
        SCENARIOS["local, lost twice, each page once"], TrustsLostLookUps, walks=0
    ),
    "acknowledged before the children are queued": Mistake(
        spare(((1, 2), (), ()), 1, ("crash",), batch=1), AcknowledgesTooEarly, seed=10, crawl=("kill", 261)
    ),
    "stamps are not compared": Mistake(
        two(SMALL, 1, ("lost",), want=2, most=1), wrong={"stamp ~= my.stamp or ": ""}, crawl=("lossy", 3)
    ),
    "start requests are offered once": Mistake(SCENARIOS["rollback, start requests"], StartsOnce),
    "a server that went back is not noticed": Mistake(
        one(TINY, 1, ("rollback",), is_slow=True),
        wrong={"stamp ~= my.stamp or ": "stamp < my.stamp or "},
        seed=4,
        crawl=("rollback", 20),
    ),
    "an equal request of a lost reply is taken for the acknowledged one": Mistake(
        Scenario(((1, 2), (), (1,)), ((0,),), 1, ("lost",), want=3, at_once=2, unfiltered=2),
        wrong={"if stamp == before.prior then move(TAKEN, QUEUE) end": ""},
        seed=1,
    ),
    "the number of a join is not compared": Mistake(
        one(SMALL, 1, ("lost",), want=2, most=1), wrong={"number <= before.join": "number < 0"}, seed=18
    ),
    "a join alone counts as a worker": Mistake(
        two(TINY, 1, ("lost",)), wrong={"works = before.works": "works = 1"}, walks=0, is_long=True
    ),
    "the cache is kept across EXPIRED": Mistake(
        one(SMALL, 1, ("flushall",), want=2, is_slow=True), KeepsItsCache, seed=19, crawl=("loss", 14)
    ),
    "pages whose children were lost are acknowledged": Mistake(
        one(SMALL, 1, ("flushall",), want=2, is_slow=True), NeverTaints, seed=19, crawl=("rollback", 53)
    ),
    "a link dropped by the cache is not relied on": Mistake(
        one(SMALL, 1, ("flushall",), want=2, is_slow=True), ForgetsDrops, seed=37, crawl=("loss", 1064)
    ),
    "any registration is taken for intact": Mistake(
        one(TINY, 1, ("rollback",), is_slow=True), RelativelyTrusting, seed=4, crawl=("rollback", 100)
    ),
    "nothing is leased again after EXPIRED": Mistake(
        Scenario(SMALL, ((0,), (0,)), 2, ("flushall", "crash"), spare=(1,), most=3),
        wrong={"my.held = in_parts('ZADD', LEASES, without_digests(holds))": "my.held = 0"},
        seed=7,
    ),
    "a rejoin keeps the old leases": Mistake(
        one(TINY, 1, ("rollback",)),
        wrong={"move(LEASES, QUEUE)\nmy.held = in": "my.held = call('ZCARD', LEASES) + in"},
        walks=0,
        is_long=True,
    ),
    "unanswered offers are dropped": Mistake(one(TINY, 1, ("lost",)), DropsUnansweredOffers, crawl=("lossy", 1)),
    "requests that have not begun are dropped at a rejoin": Mistake(
        Scenario(((1, 2, 3), (), (), ()), ((0,),), 1, ("flushall",), want=3), ReturnsNothingAtARejoin, seed=9
    ),
    "deleted although others work": Mistake(
        SCENARIOS["no fault, one is stopped"], wrong={"delete == '' and working == 0 and": "delete == '' and"}
    ),
    "deleted although requests wait": Mistake(
        Scenario(((1,), (), ()), ((0,), (2,), (0,)), 1, ("crash",), late=(1,), spare=(2,)),
        wrong={"is_due = is_due and crawl.waiting + held == 0": ""},
        walks=0,
    ),
    "finished without contact of the others": Mistake(
        two(SMALL, 1, ("crash",)), FinishesAlone, walks=0, crawl=("kill", 75)
    ),
    "finished although others are busy": Mistake(
        two(SMALL), wrong={"is_quiet = is_quiet and r.busy == 0 and r.held == 0": ""}
    ),
    "finished although others may hold start requests": Mistake(
        Scenario(((2,), (), ()), ((0,), (1,))), wrong={"r.busy == 0 and ": ""}, seed=2
    ),
    "no audit": Mistake(
        SCENARIOS["lost the queue"], wrong={"if crawl.waiting < noted[3] then": "if false then"}, crawl=("evict", 15)
    ),
    "leases are not counted": Mistake(
        SCENARIOS["lost leases"],
        wrong={"return r.held - call('ZCARD', STEM .. 'leases:' .. worker) - taken": "return 0 * taken"},
        walks=0,
    ),
    "a failed request is only acknowledged": Mistake(
        SCENARIOS["failing"], wrong={"write(FAILED, failed[i],": "local _ = (failed[i] .."}
    ),
    "deaths count for all leases": Mistake(
        SCENARIOS["poison, and a crash"],
        wrong={"elseif member == suspect and call": "elseif call"},
        is_long=True,
        crawl=("poison", 325),
    ),
    "the first death does not count": Mistake(
        SCENARIOS["poison"], wrong={"call('HSET', DELIVERIES, member, 1)": "call('HSET', DELIVERIES, member, 0)"}
    ),
    "a suspect on its last delivery runs beside others": Mistake(
        Scenario(
            ((1, 2), (3,), (), ()),
            ((0,),) * 5,
            spare=(2, 3, 4),
            poison=4,
            want=2,
            at_once=2,
            batch=1,
            is_slow=True,
            max_deliveries=2,
            most=9,
        ),
        wrong={"return deaths and max_deliveries > 0 and deaths + 1 >= max_deliveries": "return false"},
    ),
    "the filter is deleted under another spider": Mistake(
        Scenario(((2,), (2,), ()), ((0,), (1,)), spider=(0, 1)), wrong={"if is_shared then call": "if false then call"}
    ),
    "leases of another worker are not returned": Mistake(
        SCENARIOS["unfiltered, equal, two at once"],
        wrong={"move(STEM .. 'leases:' .. worker, QUEUE)": _SKIPS_EQUAL_LEASES},
        is_long=True,
    ),
    "a rejoin removes an equal request that waits": Mistake(
        Scenario(((1, 2), (), (1,)), ((0,), (0,)), 1, ("false",), want=3, at_once=2, unfiltered=2),
        wrong={"if holds[i] ~= '' then call('ZREM'": "if true then call('ZREM'"},
        is_long=True,
    ),
    "partitions, a suspect on its last delivery runs beside others": Mistake(
        SCENARIOS["partitions, poison, two at once"], StartsSuspectsBesideOthers
    ),
    "partitions, local requests of others are ignored": Mistake(
        SCENARIOS["partitions, local, any"], IgnoresLocalOfOthers, seed=44
    ),
    "partitions, finished after one round": Mistake(
        Scenario(TINY, ((1,), (0,)), partitions=2), FinishesAfterOneRound, walks=0
    ),
    "partitions, finished in spite of changes": Mistake(
        Scenario(TINY, ((1,), (0,)), partitions=2), FinishesInSpiteOfChanges, walks=0
    ),
    "partitions, idle although another one is busy": Mistake(
        Scenario(TINY, ((0,), ()), partitions=2), IsIdleAlone, walks=0
    ),
    "partitions, stamps of acknowledgements are not compared": Mistake(
        SCENARIOS["partitions, lost one while none runs"], ComparesNothing, walks=0, crawl=("absent/5", 7)
    ),
    "partitions, no reliance is stored": Mistake(
        SCENARIOS["partitions, lost one while none runs"],
        wrong={"if relied ~= '' then my.relied = relied end": ""},
        walks=0,
    ),
    "partitions, a join forgets the reliance": Mistake(
        SCENARIOS["partitions, lost one while none runs"], wrong={"relied = before.relied,": "relied = '-',"}, walks=0
    ),
    "partitions, an older crawl goes on in silence": Mistake(
        SCENARIOS["partitions, lost one while none runs"],
        wrong={"is_new and has_other_id or not crawl.id": "not crawl.id"},
        walks=0,
    ),
    "a dead worker's leases are dropped": Mistake(
        wrong={"move(STEM .. 'leases:' .. worker, QUEUE)": ""}, crawl=("kill", 2)
    ),
    "missing leases are not noted": Mistake(
        wrong={"if missing ~= 0 then note_loss": "if false then note_loss"}, crawl=("double", 7)
    ),
    "a rejoin is no worker for a moment": Mistake(wrong={"works = before.works": "works = 0"}, crawl=("mixed", 591)),
    "a rejoin forgets lost leases": Mistake(
        wrong={"elseif my and stamp ~=": "elseif false and stamp ~="}, crawl=("double", 7)
    ),
    "lost registrations are not noticed": Mistake(
        wrong={" or not crawl.id and is_used then": " then"}, crawl=("double", 2118)
    ),
    "a worker that was away presumes others dead": Mistake(
        wrong={"my.since = NOW end": "my.since = 0 end"}, crawl=("stop", 10)
    ),
    "the first queue to end deletes the filter": Mistake(
        wrong={"if is_shared then call": "if false then call"}, crawl=("shared", 2)
    ),
    "a suspect without its name fails an exchange": Mistake(
        wrong={"if not suspect or not call(": "if not call("}, crawl=("poison", 127)
    ),
    "acknowledged before all partitions have the links": Mistake(worker=AcknowledgesAlone, crawl=("kill/2", 7)),
    "pages whose links another partition lost are acknowledged": Mistake(worker=TaintsNoOthers, crawl=("loss/2", 4)),
    "a partition is joined again without the first one": Mistake(worker=RejoinsUnconfirmed, crawl=("double/2", 39)),
    "pages that led to forgotten local requests are acknowledged": Mistake(
        worker=ForgetsLocalAlone, crawl=("local/2", 10)
    ),
    "a late flush deletes requests of the new crawl": Mistake(
        wrong={"flush = origin_of_first == 'flush' and (is_older or not crawl.id and (flush or not is_used))": ""},
        crawl=("flush/5", 417),
    ),
}
SEARCHED = {name: mistake for name, mistake in MISTAKES.items() if mistake.scenario}
SIMULATED = {name: mistake for name, mistake in MISTAKES.items() if mistake.crawl}
