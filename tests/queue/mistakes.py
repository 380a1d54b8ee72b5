"""Wrong designs: each must break a promise in its scenario."""

from dataclasses import dataclass, field
from typing import Any

from scrapy_bloom.queue.messages import Call, Joined, Offer, Orders, Others, Outcome
from scrapy_bloom.queue.queue import Queue
from scrapy_bloom.queue.worker import Worker
from tests.queue.search.model import Model
from tests.queue.search.scenarios import DIAMOND, SCENARIOS, SMALL, TINY, TREE, one, scripts, spare, two
from tests.queue.search.world import Scenario


@dataclass(frozen=True)
class Mistake:
    """A wrong worker, a wrong line to a queue, or wrong scripts: texts are replaced wherever they stand.

    Attributes:
        scenario: the crawl in which the search finds it.
        worker, queue: the wrong classes.
        wrong: replacements in the scripts.
        walks: random walks that find it; 0: only a search of all states does.
        seed: of a walk that finds it soon.
        is_long: this takes more than some seconds.
    """

    scenario: Scenario
    worker: type[Worker] = Worker
    queue: type[Queue] = Queue
    wrong: dict[str, str] = field(default_factory=dict)
    walks: int = 500
    seed: int = 1
    is_long: bool = False

    def model(self) -> Model:
        """Return the model with the mistake."""
        wrong = scripts()
        for right, mistake in self.wrong.items():
            if max(text.count(right) for text in wrong.values()) != 1:
                raise ValueError(f"no script has {right!r}, or one has it twice")
            wrong = {name: text.replace(right, mistake) for name, text in wrong.items()}
        return Model(self.scenario, wrong, self.worker, self.queue)


class AcknowledgesTooEarly(Worker):
    def finish(self, member: bytes, outcome: Outcome = Outcome.DONE) -> None:
        super().finish(member, outcome)
        for queue in self.queues:
            if member in queue.finished:
                queue.finished[member] = queue.finished[member]._replace(end=-1)


class AcknowledgesWhatItGivesBack(Worker):
    def give_back(self, member: bytes) -> None:
        pass


class StartsOnce(Worker):
    def _note_kept(self, queue: Queue, joined: Joined) -> None:
        super()._note_kept(queue, joined._replace(has_calls=True))


class KeepsItsCache(Worker):
    def _let_go(self) -> None:
        known = dict(self.repeats._young)
        super()._let_go()
        self.repeats._young.update(known)


class ForgetsLostCalls(Queue):
    def lose(self) -> None:
        super().lose()
        self._sent = {}


class RequeuesNothing(Worker):
    def _let_go(self) -> None:
        super()._let_go()
        for queue in self.queues:
            queue.requeued.clear()


class DropsReady(Worker):
    def _let_go(self) -> None:
        self.ready = []
        super()._let_go()


class ForgetsUnansweredLocal(Queue):
    def expire(self) -> list[Offer]:
        super().expire()
        return []


class TakesManySuspects(Worker):
    def next_calls(self, want: int, now: float) -> list[tuple[int, Call]]:
        self._suspect = None
        return super().next_calls(want, now)


class FinishesAlone(Worker):
    def _note_quiet(self, index: int, others: Others | None) -> None:
        super()._note_quiet(index, others and others._replace(number=0))


class IsAlwaysIdle(Queue):
    def next_sync(self, orders: Orders) -> Call | None:
        return super().next_sync(orders._replace(is_idle=True))


class SettlesAtOnce(Worker):
    """Acknowledges a page as soon as its links are executed."""

    def next_calls(self, want: int, now: float) -> list[tuple[int, Call]]:
        self._rounds.settled = self._executed
        return super().next_calls(want, now)


class FinishesAfterOneRound(Worker):
    def _note_quiet(self, index: int, others: Others | None) -> None:
        super()._note_quiet(index, others)
        self.may_finish = self.is_idle and len(self._rounds.quiet) == len(self.queues)


class FinishesInSpiteOfChanges(Worker):
    def _forget_quiet(self) -> None:
        self.may_finish = False


# Page 0 is in the first queue, and its links are in the other one.
_FORK = ((1, 3, 5, 7), *[()] * 7)


# The other worker runs page 1, which leads from the second queue to the first one, and may die then.
_MOVED = Scenario(((), (2,), ()), ((), (1,)), 1, ("crash",), local=2, parts=2)


def _lua(scenario: Scenario, right: str, mistake: str = "", **more: Any) -> Mistake:
    return Mistake(scenario, wrong={right: mistake}, **more)


MISTAKES = {
    "acknowledged before the links are queued": Mistake(
        spare(TREE, 1, ("crash",), batch=1), AcknowledgesTooEarly, seed=10
    ),
    "a request that was given back is acknowledged": Mistake(
        SCENARIOS["no fault, one is stopped"], AcknowledgesWhatItGivesBack
    ),
    "start requests are offered once": Mistake(SCENARIOS["rollback, start requests"], StartsOnce, seed=23),
    "the cache is kept across a rejoin": Mistake(
        one(SMALL, 1, ("flushall",), want=2, is_slow=True), KeepsItsCache, seed=9
    ),
    "a lost call is forgotten": Mistake(one(TREE, 1, ("lost",), want=3, at_once=2), queue=ForgetsLostCalls, seed=11),
    "a rejoin requeues nothing": Mistake(spare(TINY, 2, ("lease", "crash")), RequeuesNothing, seed=6),
    "requests that have not begun are dropped at a rejoin": Mistake(
        one(TREE, 1, ("lease",), want=3), DropsReady, seed=25
    ),
    "a local offer of a lost reply is forgotten": Mistake(
        one(TINY, 2, ("lost", "workers"), local=2), queue=ForgetsUnansweredLocal, walks=0
    ),
    "a worker takes many suspects": Mistake(SCENARIOS["poison, two at once"], TakesManySuspects, seed=43),
    "finished without a sync of the others": Mistake(two(SMALL, 1, ("crash",)), FinishesAlone, seed=19),
    "idle although it holds requests": Mistake(Scenario(((), ()), ((0, 1), (0,)), batch=1), queue=IsAlwaysIdle, seed=9),
    "numbers are not compared": Mistake(
        one(TINY, 1, ("rollback",), is_slow=True),
        wrong={" or last + 0 < answered + 0": "", "last == answered and": "last + 0 <= answered + 0 and"},
        seed=50,
    ),
    "a lost call is executed again": _lua(
        two(SMALL, 1, ("lost",), want=2), "return last == answered and 'next' or 'again'", "return 'next'", seed=6
    ),
    "a repeated join is executed again": _lua(
        one(SMALL, 1, ("lost",), want=2),
        "if last == opened + 0 and my and filter_id then return joined(0) end",
        seed=47,
    ),
    "a join alone counts as a worker": _lua(
        two(TINY, 1, ("lost",)), "synced = is_new and 0 or NOW", "synced = NOW", walks=0, is_long=True
    ),
    "deleted although others work": _lua(
        SCENARIOS["no fault, one is stopped"], "delete == '' and working == 0 and", "delete == '' and", seed=20
    ),
    "deleted although requests wait": _lua(
        Scenario(((1,), (), ()), ((0,), (2,), (0,)), 1, ("crash",), late=(1,), spare=(2,)),
        "is_due = is_due and said[1] + held == 0",
        walks=0,
    ),
    "finished although others are busy": _lua(
        two(SMALL), "is_quiet = is_quiet and r.idle == 1 and r.held == 0", seed=49
    ),
    "finished although others may hold start requests": _lua(
        Scenario(((2,), (), ()), ((0,), (1,))), "r.idle == 1 and ", seed=19
    ),
    "no audit of the queue": _lua(SCENARIOS["lost the queue"], "if vanished > 0 then", "if false then", seed=48),
    "leases are not counted": _lua(
        one(TINY, 2, ("lease", "lost")), "if not f or my.held ~= leased + took then", "if not f then", seed=8
    ),
    "a failed request is only acknowledged": _lua(
        SCENARIOS["failing"], "call('HSET', FAILED, ARGV[i + 2], call(", "local _ = (call(", seed=2
    ),
    "the last death does not count": _lua(
        SCENARIOS["poison"], "DEATHS, entries[i], 1) >= most", "DEATHS, entries[i], 1) > most"
    ),
    "the first death makes a dead letter": _lua(
        SCENARIOS["poison"], "DEATHS, entries[i], 1) >= most", "DEATHS, entries[i], 1) > 0"
    ),
    "a rejoin after a loss requeues nothing": _lua(
        one(TREE, 1, ("lease",), want=3), "if kept == 1 and filter_id == known and", "if kept == 1 or", seed=33
    ),
    "a frozen worker revives a dead letter": _lua(
        two(TINY, 1, ("false",), max_deaths=1), "(ending == 'dead' or my and my.held", "(my and my.held", seed=33
    ),
    "a lost crawl counts as ended": _lua(
        two(DIAMOND, 1, ("audit",)),
        "is_ended = id == ARGV[4] and step(match(last or '', '%d.*'), known)",
        "is_ended = true",
        seed=29,
    ),
    "the filter is deleted under another spider": _lua(
        Scenario(((2,), (2,), ()), ((0,), (1,)), spider=(0, 1)), "if is_shared then call", "if false then call"
    ),
    "the leases of the dead are dropped": _lua(SCENARIOS["crash"], "in_parts('ZADD', QUEUE, entries)\n", seed=30),
    "leases without a registration are forgotten": _lua(
        spare(TINY, 2, ("workers", "crash")),
        "if worker and worker ~= ME and not others[worker] and",
        "if false and",
        seed=3,
    ),
    "an equal request is taken twice": _lua(
        Scenario(((1, 2), (), (1,)), ((0,), (0,)), 1, ("crash",), spare=(1,), want=3, at_once=2, unfiltered=2),
        " and not call('ZSCORE', LEASES, member)",
        seed=12,
    ),
    "requeued requests are not marked in a new filter": _lua(
        SCENARIOS["lost the filter"], "if ARGV[i] ~= '' then filter.check(f, ARGV[i]) end", seed=3
    ),
    "two queues, a suspect of each": _lua(
        SCENARIOS["partitions, poison, two at once"], "(suspect ~= '' or ARGV[10] ~= '1')", "suspect ~= ''"
    ),
    "two queues, one that lost everything is used in silence": _lua(
        SCENARIOS["partitions, lost one while none runs"],
        "(is_used or synced == '1')",
        "is_used",
    ),
    "two queues, acknowledged before the links are queued": Mistake(
        SCENARIOS["partitions, crash"], AcknowledgesTooEarly
    ),
    "two queues, acknowledged at once": Mistake(one(_FORK, 1, ("rollback 1",), parts=2), SettlesAtOnce, seed=1),
    "two queues, finished after one round": Mistake(_MOVED, FinishesAfterOneRound, walks=0, is_long=True),
    "two queues, finished in spite of changes": Mistake(_MOVED, FinishesInSpiteOfChanges, walks=0, is_long=True),
    "two queues, idle although another one is busy": Mistake(
        Scenario(TINY, ((0,), ()), parts=2), queue=IsAlwaysIdle, walks=0
    ),
    "two queues, an older one keeps its requests": _lua(
        SCENARIOS["partitions, flush by another"],
        "local is_other = of_first ~= '' and crawl.id and crawl.id ~= of_first",
        "local is_other = false",
        seed=4,
    ),
    "two queues, an older one is emptied in silence": _lua(
        SCENARIOS["partitions, lost one while none runs"], "if left > 0 and not is_flushed then note_loss(left) end"
    ),
}
