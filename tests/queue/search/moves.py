"""The moves of a searched crawl: scripts, engines, kills, lost replies, and losses of the server."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from scrapy_bloom.queue.messages import Call, JoinRefusedError, Outcome
from scrapy_bloom.queue.worker import SETTLING, Worker
from tests.queue.search import promises
from tests.queue.search.model import Model, Now, is_one_of
from tests.queue.search.world import (
    FILTERS,
    KEYS,
    NOW,
    Oracle,
    Process,
    State,
    filter_id,
    key,
    mask_of,
    registrations,
    union,
)
from tests.support.explore import BrokenPromiseError, Move
from tests.support.script_server import ScriptServer

# The deletions of each loss: keys by name, or by their beginning.
_LOSSES = {
    "flushall": ("*",),
    "queue": ("q",),
    "filter": ("f",),
    "crawl": ("{q}:crawl",),
    "workers": ("{q}:workers",),
    "audit": ("q", "{q}:crawl"),
    "failed": ("{q}:failed",),
    "shard": ("{f}:*",),
    "queue 1": ("q1",),
    "filter 1": ("f1",),
    "crawl 1": ("{q1}:crawl",),
    "workers 1": ("{q1}:workers",),
    "all 0": ("q", "{q}:*", "f", "{f}:*"),
    "all 1": ("q1", "{q1}:*", "f1", "{f1}:*"),
}
# What goes back in time.
_ROLLBACKS = {"rollback": ("*",), "rollback 0": _LOSSES["all 0"], "rollback 1": _LOSSES["all 1"]}
# A loss that a running crawl does not notice otherwise than by its count.
_UNREAD = ("queue", "audit")
# Ids of filters, of which there are a few at once.
_IDS = range(1, 99)
# The places of the number of offers, and of the offers, among the arguments of a sync.
_NUMBER, _OFFERS = 11, 16
Moves = Iterator[Move[State]]
# The progress of a page that has not begun, and was given back.
GIVEN_BACK = -1


class Crawl:
    """The search of one scenario.

    Attributes:
        most_fetched: how often a page was fetched in any order.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.scenario = model, model.scenario
        self.most_fetched = 0
        self._known: dict[State, list[Move[State]]] = {}

    def start(self) -> State:
        """Return the first state."""
        s, model = self.scenario, self.model
        later = {*s.spare, *s.late, *s.anew}
        processes = [Process("new") if w in later else self._fresh(w) for w in range(len(s.roots))]
        found = union(1 << page for w, roots in enumerate(s.roots) if w not in later for page in roots)
        oracle = Oracle(found, (0,) * len(s.links), s.faults, deaths=(0,) * len(s.links))
        return State(model.number(ScriptServer(NOW * 1000)), tuple(map(model.number, processes)), oracle)

    def is_end(self, state: State) -> bool:
        """Return whether no process is left, and check the data left behind."""
        now = Now(self.model, state)
        lives = [now.see(w).life for w in range(len(state.processes))]
        is_due = any(lives[w] == "new" for w in self.scenario.spare) and now.is_work_left()
        if "alive" in lives or is_due:
            return False
        promises.check_end(now, lives)
        return True

    def known_moves(self, state: State) -> list[Move[State]]:
        """Return all moves from a state, and remember them for walks that come back to it."""
        if state not in self._known:
            self._known[state] = list(self.moves(state))
        return self._known[state]

    def moves(self, state: State) -> Moves:
        """Yield all moves from a state."""
        now = Now(self.model, state)
        for w in range(len(state.processes)):
            life = now.see(w).life
            if life == "new":
                yield from self._start_of(state, now, w)
            elif life == "alive":
                yield from self._events(state, now, w)
                yield from self._operate(state, now, w)
                yield from self._presumptions(state, now, w)
        yield from self._wait(state, now)
        if state.packet is not None:
            yield from self._late_packet(state)
        yield from self._losses(state, now)

    def _may(self, state: State, kind: str) -> bool:
        return state.oracle.faults > 0 and kind in self.scenario.kinds

    # Processes.

    def _fresh(self, w: int, *, flush: bool = False) -> Process:
        worker = self.model.new_worker(flush=flush)
        for page in self.scenario.roots[w]:
            self.model.offer(worker, page, is_start=True)
        return Process("alive", worker)

    def _start_of(self, state: State, now: Now, w: int) -> Moves:
        s = self.scenario
        is_due = w in s.spare and not now.alive() and now.is_work_left()
        if is_due or w in s.late or w in s.anew:
            after = Now(self.model, state)
            after.set_process(w, self._fresh(w, flush=w in s.anew))
            after.put(found=after.oracle.found | union(1 << page for page in s.roots[w]))
            yield Move(_text(f"w{w} starts"), after.freeze(), not is_due)

    def _events(self, state: State, now: Now, w: int) -> Moves:
        s, worker, pending = self.scenario, now.seen_worker(w), now.see(w).pending
        if self._may(state, "crash"):
            yield Move(_text(f"w{w} CRASHES"), self._crash(state, w), True)
        if w in s.stop and worker.is_joined and not (pending or worker.is_stopping or worker._mode):
            after = Now(self.model, state)
            after.worker(w).stop()
            promises.note_local(after)
            yield Move(_text(f"w{w} is stopped"), after.freeze(), True)
        if pending and not s.overlaps:
            return
        for member in worker.running:
            yield from self._engine(state, now, w, member)
        if worker.is_idle and (worker.may_finish or worker.is_stopping) and not (worker._mode or pending):
            after = Now(self.model, state)
            keeps = s.persist or (s.spider and worker.is_stopping)  # a stopped crawl with a shared filter stays
            after.worker(w).leave("keep" if keeps else "stopped" if worker.is_stopping else "finished")
            yield Move(_text(f"w{w} decides to leave"), after.freeze())

    def _crash(self, state: State, w: int, *, is_kill: bool = False) -> State:
        after = Now(self.model, state)
        promises.note_crash(after, w)
        if is_kill:
            promises.note_kill(after)
        else:
            after.note_fault(again=1)
        after.set_process(w, Process("crashed"))
        promises.note_local(after)
        return after.freeze()

    # The engine.

    def _engine(self, state: State, now: Now, w: int, member: bytes) -> Moves:
        s, page = self.scenario, int(member)
        if s.poison >> page & 1:
            yield Move(_text(f"w{w} is KILLED by {page}"), self._crash(state, w, is_kill=True))
            return
        children, done = s.links[page], now.see(w).progress.get(member, 0)
        if done == GIVEN_BACK:
            yield Move(_text(f"w{w}: {page} is ignored"), self._ignored(state, w, member))
            return
        if now.seen_worker(w).is_stopping and not done:
            after = Now(self.model, state)
            after.worker(w).give_back(member)
            after.process(w).progress[member] = GIVEN_BACK
            after.put(owed=after.oracle.owed | 1 << page & s.unfiltered)
            promises.note_local(after)
            yield Move(_text(f"w{w} gives {page} back"), after.freeze(), True)
        upto = min(len(children), done + 1) if s.is_slow else len(children)
        after = Now(self.model, state)
        for child in children[done:upto]:
            bit = 1 << child
            after.put(found=after.oracle.found | bit, owed=after.oracle.owed | bit & s.unfiltered)
            self.model.offer(after.worker(w), child)
        if s.is_slow and done < len(children):
            after.process(w).progress[member] = upto
            yield Move(_text(f"w{w}: {page} yields {children[done]}"), after.freeze())
        else:
            yield Move(_text(f"w{w}: {page} ends"), self._ended(after, w, member, Outcome.DONE))
        if s.failing >> page & 1 and not done and not state.oracle.failed >> page & 1:
            after = Now(self.model, state)
            yield Move(_text(f"w{w}: {page} fails"), self._ended(after, w, member, Outcome.FAILED))

    def _ignored(self, state: State, w: int, member: bytes) -> State:
        after = Now(self.model, state)
        after.worker(w).finish(member)
        after.process(w).progress.pop(member)
        return after.freeze()

    def _ended(self, after: Now, w: int, member: bytes, outcome: Outcome) -> State:
        page, s = int(member), self.scenario
        if outcome is Outcome.FAILED:
            after.put(failed=after.oracle.failed | 1 << page)
        else:
            fetched = list(after.oracle.fetched)
            fetched[page] += 1
            if not s.unfiltered >> page & 1:
                self.most_fetched = max(self.most_fetched, fetched[page])
                most = s.most or 1 + after.oracle.again
                promises.require(fetched[page] <= most, f"S5: page {page} is fetched {fetched[page]} times")
            fetched[page] = min(fetched[page], s.most or 1 + 3 * s.faults)
            after.put(fetched=tuple(fetched))
        after.worker(w).finish(member, outcome)
        after.process(w).progress.pop(member, None)
        self._begin(after, w)
        return after.freeze()

    def _begin(self, after: Now, w: int) -> None:
        """Give ready requests to the engine."""
        worker = after.worker(w)
        while len(worker.running) < self.scenario.at_once and (entry := worker.take()):
            after.put(owed=after.oracle.owed & ~(1 << int(entry.member)))

    # Scripts.

    def _calls(self, now: Now, w: int) -> tuple[tuple[int, Call], ...]:
        """Return the calls of a worker that are not executed yet, or the next ones."""
        process, worker = now.process(w), now.worker(w)
        if not process.pending:
            self.model.source.next_id = partial(self._free_filter_id, now)
            want = max(0, self.scenario.want - len(worker.ready) - len(worker.running))
            process.pending = tuple(worker.next_calls(want, 0))
        return process.pending

    def _operate(self, state: State, now: Now, w: int) -> Moves:
        """Yield each pending call of a worker, with each fate of it."""
        before = Now(self.model, state)
        calls = self._calls(before, w)
        if calls and self.scenario.overlaps and not now.see(w).pending:
            yield Move(_text(f"w{w} calls"), before.freeze())
            return
        for index, call in calls:
            yield from self._fates(state, w, index, call)

    def _fates(self, state: State, w: int, index: int, call: Call) -> Moves:
        executed = Now(self.model, state)
        reply = self._execute(executed, w, index, call)
        if self._may(state, "lost"):
            sent = Now(self.model, state)
            self._drop(sent, w, index)
            yield Move(partial(_label, w, index, call, "NOT SENT"), sent.freeze(), True)
            if state.packet is None:
                sent.packet = (w, index, call)
                yield Move(partial(_label, w, index, call, "LATE"), sent.freeze(), True)
            lost = Now(self.model, state)
            self._execute(lost, w, index, call)
            self._drop(lost, w, index)
            yield Move(partial(_label, w, index, call, "REPLY LOST"), lost.freeze(), True)
        self._receive(executed, w, index, call, reply)
        yield Move(partial(_label, w, index, call, reply), executed.freeze())
        if self._may(state, "lost") and state.packet is None and call.script != "prepare":
            # Not `executed`, whose numbers are small again, unlike those of the packet.
            twice = Now(self.model, state)
            self._execute(twice, w, index, call)
            self._receive(twice, w, index, call, reply)
            twice.note_fault()
            twice.packet = (w, index, call)
            yield Move(partial(_label, w, index, call, "DUPLICATED"), twice.freeze(), True)

    def _execute(self, now: Now, w: int, index: int, call: Call) -> Any:
        """Execute a script, and return its reply; the replies of a state are remembered."""
        queue = self.scenario.queues_of(w)[index]
        time = self._free_time(now) if call.script == "join" else NOW + len(_IDS)
        memo = None if now.is_server_changed() else (now.state.server, w, index, call, time)
        if memo in self.model.executed:
            server, reply = self.model.executed[memo]
            now.server = server.copy()
        else:
            server = now.server
            server.time = 1000 * time
            reply = server.eval(self.model.scripts[call.script], KEYS[queue], [f"w{w}", *call.arguments])
            if memo:
                self.model.executed[memo] = server.copy(), reply
        before = Now(self.model, now.state)
        if call.script == "leave" and index == 0 and promises.has_crawl(before, queue) > promises.has_crawl(now, queue):
            promises.check_leave(before, w, call.arguments[1])
            promises.note_deletion(now, w, call.arguments[1])
        if self.scenario.max_deaths and call.script == "sync":
            offers = call.arguments[_OFFERS : _OFFERS + 3 * call.arguments[_NUMBER]]
            promises.check_letters(before, now, mask_of(offers[2::3]))
        if call.script == "join" and reply[0] == b"OK" and reply[3] == b"flush":
            known = before.seen_server().call("HGET", key(queue, "crawl"), "id")
            if known != reply[1]:
                promises.note_flush(now, queue)
        return reply

    def _take_up(self, now: Now, w: int, index: int) -> None:
        """Take a call from the pending ones."""
        now.process(w).pending = tuple(each for each in self._calls(now, w) if each[0] != index)

    def _drop(self, now: Now, w: int, index: int) -> None:
        """Lose the reply to a call, which is a fault."""
        self._take_up(now, w, index)
        now.worker(w).lose(index)
        now.note_fault()

    def _receive(self, after: Now, w: int, index: int, call: Call, reply: Any) -> None:
        self._take_up(after, w, index)
        worker = after.worker(w)
        losses = worker.queues[index].news.losses
        try:
            received = worker.receive(index, call, reply)
        except JoinRefusedError as error:
            raise BrokenPromiseError(f"S1: w{w} is refused: {error}") from None
        if worker.queues[index].news.losses > losses or received.rejoin not in ("", "dead", "ended", "flush"):
            after.put(is_reported=True)
        if worker.is_stopping:
            promises.note_local(after)
        if worker.may_finish and not (worker.is_stopping or worker._mode):
            promises.check_finish(after, w)
        if worker.has_left:
            after.set_process(w, Process("gone"))
        elif not after.process(w).pending:
            self._begin(after, w)

    def _late_packet(self, state: State) -> Moves:
        lost, after = Now(self.model, state), Now(self.model, state)
        assert after.packet
        (w, index, call), after.packet = after.packet, None
        lost.packet = None
        yield Move(_text("the late packet is lost"), lost.freeze(), True)
        reply = self._execute(after, w, index, call)
        yield Move(partial(_label, w, index, call, f"arrives: {shown(reply)}"), after.freeze(), True)

    def _free_time(self, now: Now) -> int:
        """Return the first time that is later than the ids and runs of all crawls."""
        used: set[Any] = {NOW}
        for server in now.seen_servers():
            for queue in self.scenario.queues:
                used |= {*server.call("HMGET", key(queue, "crawl"), "id", "run")}
                used |= {server.call("HGET", key(queue, "ended"), "id")}
                used |= {value.split(b" ")[0] for value in server.call("HGETALL", key(queue, "failed"))[1::2]}
        for w in now.alive():
            for line in now.seen_worker(w).queues:
                used |= {*line.crawl[:2], line._older, line._first}
        used |= self._arguments(now)
        times = [int(each) for each in used if isinstance(each, int) or (each and each.isdigit() and len(each) == 11)]
        return max(each for each in times if each < NOW + len(_IDS)) + 1

    def _free_filter_id(self, now: Now) -> int:
        used = {queue.crawl.filter_id for w in now.alive() for queue in now.seen_worker(w).queues}
        for server in now.seen_servers():
            used |= {filter_id(server, name) or b"" for name in FILTERS.values()}
            used |= {name.split(b":")[1] for name in server._values if name.startswith((b"{f}:", b"{f1}:"))}
        used |= {b"%d" % each if isinstance(each, int) else each for each in self._arguments(now)}
        return next(i for i in _IDS if b"%d" % i not in used)

    def _arguments(self, now: Now) -> set[Any]:
        """Return numbers and bytes among the arguments of calls that are not executed."""
        calls = [call for w in now.alive() for _, call in now.see(w).pending]
        calls += [now.packet[2]] if now.packet else []
        return {argument for call in calls for argument in call.arguments if type(argument) in (bytes, int)}

    # Time.

    def _wait(self, state: State, now: Now) -> Moves:
        """Let some time pass, after which a failover cannot lose what was executed before."""
        if self.scenario.parts == 1 or not any(_waits(now.seen_worker(w)) for w in now.alive()):
            return
        after = Now(self.model, state)
        for w in now.alive():
            rounds = after.worker(w)._rounds
            rounds._began -= SETTLING
            if rounds._following:
                rounds._following = rounds._following[0] - SETTLING, rounds._following[1]
        if "rollback" not in self.scenario.kinds:
            after.snapshot = None
        yield Move(_text("SOME SECONDS pass"), after.freeze())

    # Presumed deaths.

    def _presumptions(self, state: State, now: Now, w: int) -> Moves:
        for queue in self.scenario.queues_of(w):
            table = registrations(now.seen_server(), queue)
            for v in range(len(state.processes)) if b"w%d" % w in table else ():
                may = now.see(v).life != "alive" or self._may(state, "false")
                if v != w and b"w%d" % v in table and may:
                    held, idle, _, synced, _, back = table[b"w%d" % v]
                    yield self._presume(now, w, v, queue, f"{held} {idle} 0 {synced} 0 {back}")

    def _presume(self, now: Now, w: int, v: int, queue: str, silent: str) -> Move[State]:
        after, is_false = Now(self.model, now.state), now.see(v).life == "alive"
        after.server.call("HSET", key(queue, "workers"), f"w{v}", silent)
        after.server.time = 1000 * (NOW + len(_IDS))
        after.server.eval(self.model.scripts["heartbeat"], KEYS[queue], (f"w{w}", self.scenario.max_deaths))
        promises.note_death(after, now.leased(v, (queue,)), after.kept() & ~now.kept())
        if is_false:
            runs = mask_of(now.seen_worker(v).running) & self.scenario.unfiltered & after.waiting()
            after.note_fault(is_rejoin=True)
            after.put(owed=after.oracle.owed | runs)
        return Move(_text(f"w{w} presumes w{v} dead in {queue}{' FALSELY' * is_false}"), after.freeze(), is_false)

    # Losses of the server.

    def _losses(self, state: State, now: Now) -> Moves:
        kinds = self.scenario.kinds if state.oracle.faults else ()
        if state.snapshot is None and set(kinds) & set(_ROLLBACKS):
            after = Now(self.model, state)
            after.snapshot = state.server
            after.note_fault(is_rejoin=True)
            yield Move(_text("SNAPSHOT"), after.freeze(), True)
        for kind in self.scenario.kinds if state.snapshot is not None else ():
            if kind in _ROLLBACKS:
                after = Now(self.model, state)
                after.use_snapshot(_ROLLBACKS[kind])
                promises.note_loss(after, kind)
                yield Move(_text(kind.upper()), after.freeze(), True)
        for kind in kinds:
            groups = [_LOSSES[kind]] if kind in _LOSSES else []
            if kind == "lease":
                owners = [(queue, w) for w in range(len(state.processes)) for queue in self.scenario.queues_of(w)]
                groups = [(key(queue, f"leases:w{w}"), key(queue, f"taken:w{w}")) for queue, w in owners]
            for group in groups:
                after = Now(self.model, state)
                names = [name for name in after.server._values if is_one_of(name, group)]
                is_absent = not now.alive()
                if names and (is_absent if kind in promises.ABSENT else not (is_absent and kind in _UNREAD)):
                    after.server.call("DEL", *names)
                    after.note_fault(is_rejoin=True)
                    promises.note_loss(after, kind)
                    yield Move(_text(f"LOSS of {group}"), after.freeze(), True)


def _waits(worker: Worker) -> bool:
    rounds = worker._rounds
    return rounds._began == 0 or (rounds._following is not None and rounds._following[0] == 0)


def _text(text: str) -> Callable[[], str]:
    return lambda: text


def _label(w: int, index: int, call: Call, reply: Any) -> str:
    answer = reply if isinstance(reply, str) else shown(reply)
    return f"w{w} {call.script} {'in 1 ' * index}{shown(call.arguments)}: {answer}"


def shown(values: Any) -> str:
    """Return values without digests."""
    if not isinstance(values, list | tuple):
        return str(values)
    return " ".join(str(value) for value in values if not (type(value) is bytes and len(value) > 60))
