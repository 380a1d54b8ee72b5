"""The moves of a searched crawl: scripts, engines, kills, lost replies, and losses of the server."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from scrapy_bloom.queue.values import Call, Outcome, Phase, Trouble
from tests.queue.search import promises
from tests.queue.search.model import Model, Now, is_one_of
from tests.queue.search.normal import FIELDS, quiet_times, registrations, store
from tests.queue.search.world import (
    FILTERS,
    KEYS,
    LEASE,
    NOW,
    Oracle,
    Process,
    Source,
    State,
    filter_id,
    key,
    mask_of,
    union,
)
from tests.support.explore import Move
from tests.support.running import running
from tests.support.script_server import ScriptServer

_CONTACT, _SUSPECT = map(FIELDS.index, ("contact", "suspect"))
_STARTED = 2
# The deletions of each loss: keys by name, or by their beginning.
_LOSSES = {
    "flushall": ("*",),
    "queue": ("q",),
    "filter": ("f",),
    "crawl": ("{q}:crawl",),
    "audit": ("q", "{q}:crawl"),
    "shard": ("{f}:*",),
    "queue 1": ("q1",),
    "filter 1": ("f1",),
    "crawl 1": ("{q1}:crawl",),
    "partition": ("q", "{q}:*", "f", "{f}:*"),
    "partition 1": ("q1", "{q1}:*", "f1", "{f1}:*"),
}
_PARTITIONS = {"rollback 0": _LOSSES["partition"], "rollback 1": _LOSSES["partition 1"]}
# Above all crawls' ids and runs, of which there are a few at once.
_IDS = range(1, 99)
Moves = Iterator[Move[State]]


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
        oracle = Oracle(found, (0,) * len(s.links), s.faults)
        return State(model.number(ScriptServer(NOW)), tuple(map(model.number, processes)), oracle)

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
                yield from self._operate(state, w)
                yield from self._heartbeats(state, now, w)
        if state.packet is not None:
            yield from self._late_packet(state)
        yield from self._losses(state, now)

    def _may(self, state: State, kind: str) -> bool:
        return state.oracle.faults > 0 and kind in self.scenario.kinds

    # Processes.

    def _fresh(self, w: int, *, flush: bool = False) -> Process:
        worker = self.model.new_worker(w, flush=flush)
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
        s, worker = self.scenario, now.seen_worker(w)
        if self._may(state, "crash"):
            yield Move(_text(f"w{w} CRASHES"), self._crash(state, w, 1), True)
        is_open = worker.phase is Phase.WORK and not now.see(w).pending
        if w in s.stop and is_open and not (worker.is_stopping or worker._leaves_as):
            after = Now(self.model, state)
            after.worker(w).stop()
            yield Move(_text(f"w{w} is stopped"), after.freeze(), True)
        if now.see(w).pending:
            return
        for member in running(worker):
            yield from self._engine(state, now, w, member)
        if worker.is_idle and (worker.may_finish or worker.is_stopping) and not worker._leaves_as:
            after = Now(self.model, state)
            keeps = s.persist or (s.spider and worker.is_stopping)  # a stopped crawl with a shared filter stays
            after.worker(w).leave("keep" if keeps else "stopped" if worker.is_stopping else "finished")
            yield Move(_text(f"w{w} decides to leave"), after.freeze())

    def _crash(self, state: State, w: int, cost: int) -> State:
        after = Now(self.model, state)
        promises.note_crash(after, w, cost)
        after.set_process(w, Process("crashed"))
        return after.freeze()

    # The engine.

    def _engine(self, state: State, now: Now, w: int, member: bytes) -> Moves:
        s, page = self.scenario, int(member)
        if s.poison >> page & 1:
            yield Move(_text(f"w{w} is KILLED by {page}"), self._crash(state, w, 0))
            return
        children, done = s.links[page], now.see(w).progress.get(member, 0)
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

    def _ended(self, after: Now, w: int, member: bytes, outcome: Outcome) -> State:
        page, s = int(member), self.scenario
        if outcome is Outcome.FAILED:
            after.put(failed=after.oracle.failed | 1 << page)
        else:
            fetched = list(after.oracle.fetched)
            fetched[page] += 1
            if not s.unfiltered >> page & 1:
                self.most_fetched = max(self.most_fetched, fetched[page])
                promises.require(fetched[page] <= s.bound, f"S5: page {page} is fetched {fetched[page]} times")
            fetched[page] = min(fetched[page], s.bound)
            after.put(fetched=tuple(fetched))
        after.worker(w).finish(member, outcome)
        promises.note_end(after, w)
        after.process(w).progress.pop(member, None)
        self._begin(after, w)
        return after.freeze()

    def _begin(self, after: Now, w: int) -> None:
        """Give ready requests to the engine."""
        worker = after.worker(w)
        while len(running(worker)) < self.scenario.at_once and (entry := worker.take()):
            after.put(owed=after.oracle.owed & ~(1 << int(entry.member)))
        promises.check_alone(worker)

    # Scripts.

    def _calls(self, now: Now, w: int) -> tuple[tuple[int, Call], ...]:
        """Return the calls of a worker that are not executed yet, or the next ones."""
        worker, s = now.worker(w), self.scenario
        if now.see(w).pending:
            return now.see(w).pending
        for part, queue in zip(worker.parts, s.queues_of(w), strict=True):
            if part.phase is Phase.JOIN:
                part._source = Source(self._free_filter_id(now, FILTERS[queue]))
        ahead = sum(len(part.ready) for part in worker.parts)
        calls = worker.next_calls(max(0, s.want - ahead - len(running(worker))))
        now.process(w).pending = tuple(calls)
        return now.process(w).pending

    def _execute(self, now: Now, w: int, index: int, call: Call) -> Any:
        """Execute a script, and return its reply; the replies of a state are remembered."""
        queue = self.scenario.queues_of(w)[index]
        time = NOW + self._free_time(now)
        memo = None if now.is_server_changed() else (now.state.server, w, index, call, time)
        if memo in self.model.executed:
            server, reply = self.model.executed[memo]
            now.set_server(server.copy())
        else:
            server = now.server
            server.time = time
            # The filter's script has no worker.
            me = [] if call.script == "allocate" else [f"w{w}"]
            reply = server.eval(self.model.scripts[call.script], KEYS[queue], [*me, *call.arguments])
            if memo:
                self.model.executed[memo] = server.copy(), reply
        if call.script == "leave" and index == 0:
            promises.check_leave(Now(self.model, now.state), w, call, reply)
            if reply[0] == b"LEFT" and reply[2]:
                promises.note_deletion(now, w, call.arguments[1])
        if call.script == "join" and reply[0] == b"OK":
            before = Now(self.model, now.state).seen_server().call("HGET", key(queue, "crawl"), "id")
            if reply[4] == b"flush" and reply[2] != before:
                promises.note_flush(now, queue)
        return reply

    def _operate(self, state: State, w: int) -> Moves:
        """Yield each pending call of a worker, with each fate of it."""
        for index, call in self._calls(Now(self.model, state), w):
            yield from self._fates(state, w, index, call)

    def _fates(self, state: State, w: int, index: int, call: Call) -> Moves:
        executed = Now(self.model, state)
        reply = self._execute(executed, w, index, call)
        if self._may(state, "lost"):
            sent = Now(self.model, state)
            self._drop(sent, w, index, call)
            yield Move(partial(_label, w, index, call, "NOT SENT"), sent.freeze(), True)
            if state.packet is None:
                sent.packet = (w, index, call)
                yield Move(partial(_label, w, index, call, "LATE"), sent.freeze(), True)
            lost = Now(self.model, state)
            self._execute(lost, w, index, call)
            self._drop(lost, w, index, call)
            yield Move(partial(_label, w, index, call, "REPLY LOST"), lost.freeze(), True)
        self._receive(executed, w, index, call, reply)
        yield Move(partial(_label, w, index, call, reply), executed.freeze())
        if self._may(state, "lost") and state.packet is None and call.script in ("join", "exchange", "leave"):
            # Not `executed`, whose numbers are small again, unlike those of the packet.
            twice = Now(self.model, state)
            self._execute(twice, w, index, call)
            self._receive(twice, w, index, call, reply)
            twice.put(faults=twice.oracle.faults - 1)
            twice.packet = (w, index, call)
            yield Move(partial(_label, w, index, call, "DUPLICATED"), twice.freeze(), True)

    def _take_up(self, now: Now, w: int, index: int, call: Call) -> None:
        """Take a call from the pending ones: it is under way."""
        left = tuple(each for each in self._calls(now, w) if each[0] != index)
        now.process(w).pending = left
        now.worker(w).parts[index]._under_way = call

    def _drop(self, now: Now, w: int, index: int, call: Call) -> None:
        self._take_up(now, w, index, call)
        now.fail(w, index, call)

    def _receive(self, after: Now, w: int, index: int, call: Call, reply: Any) -> None:
        self._take_up(after, w, index, call)
        worker = after.worker(w)
        part = worker.parts[index]
        losses = part.losses
        worker.receive(reply, index)
        if part.losses > losses or {*part.troubles} - {Trouble.FLUSHED}:
            after.put(is_reported=True)
        part.troubles.clear()
        part.reaped.clear()
        part.buried.clear()
        if worker.may_finish and not (worker.is_stopping or worker._leaves_as):
            promises.check_finish(after, w)
        if worker.phase is Phase.LEFT:
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
        """Return the smallest addition to the time that makes no crawl's id or run a second time."""
        used: set[bytes | None] = set()
        for server in now.seen_servers():
            for queue in self.scenario.queues:
                used |= {*server.call("HMGET", key(queue, "crawl"), "id", "run", "changed")}
                used |= {value.split(b" ")[0] for value in server.call("HGETALL", key(queue, "failed"))[1::2]}
        for w in now.alive():
            used |= {name for part in now.seen_worker(w).parts for name in (part.crawl, part.run)}
            used |= {argument for _, call in now.see(w).pending for argument in call.arguments}
            used |= {b"%d" % time for time in quiet_times(now.seen_worker(w))}
        if now.packet:
            used |= {argument for argument in now.packet[2].arguments if type(argument) is bytes}
        return next(i for i in _IDS if b"%d" % (NOW + i) not in used)

    def _free_filter_id(self, now: Now, name: str) -> int:
        used = {filter_id(server, name) for server in now.seen_servers()}
        calls = [now.packet[2]] if now.packet else []
        for w in now.alive():
            parts = now.seen_worker(w).parts
            used |= {part.filter_id for part in parts}
            calls += [part._under_way for part in parts if part._under_way is not None]
            calls += [call for _, call in now.see(w).pending]
        for server in now.seen_servers():
            used |= {key.split(b":")[1] for key in server._values if key.startswith(b"{%s}:" % name.encode())}
        used |= {str(argument).encode() for call in calls for argument in call.arguments}
        return next(i for i in _IDS if b"%d" % i not in used)

    # Heartbeats.

    def _heartbeats(self, state: State, now: Now, w: int) -> Moves:
        for queue in self.scenario.queues_of(w):
            table = registrations(now.seen_server(), key(queue, "crawl"))
            if b"w%d" % w in table:
                yield from self._heartbeats_in(state, now, w, queue, table)

    def _heartbeats_in(self, state: State, now: Now, w: int, queue: str, table: dict[bytes, list[int]]) -> Moves:
        others = (part for v in now.alive() if v != w for part in now.seen_worker(v).parts)
        if any(part._quiet_since is not None for part in others):
            after = Now(self.model, state)
            self._beat(after, w, queue)
            yield Move(_text(f"w{w} beats in {queue}"), after.freeze())
        for v in range(len(state.processes)):
            is_false = now.see(v).life == "alive"
            if v == w or b"w%d" % v not in table or (is_false and not self._may(state, "false")):
                continue
            after = Now(self.model, state)
            values = table[b"w%d" % v]
            suspect = now.seen_server().call("HGET", key(queue, "suspects"), f"w{v}")
            store(after.server, key(queue, "crawl"), b"w%d" % v, [*values[:_CONTACT], -LEASE, *values[_CONTACT + 1 :]])
            self._beat(after, w, queue)
            letters = after.kept() & ~now.kept()
            held = now.leased(v, (queue,))
            promises.check_letters(now, letters, suspect if values[_SUSPECT] == _STARTED else None, held)
            if is_false:
                runs = mask_of(running(now.seen_worker(v))) & self.scenario.unfiltered & after.waiting()
                after.put(faults=after.oracle.faults - 1, owed=after.oracle.owed | runs)
            yield Move(_text(f"w{w} presumes w{v} dead in {queue}{' FALSELY' * is_false}"), after.freeze(), is_false)

    def _beat(self, after: Now, w: int, queue: str) -> None:
        after.server.time = NOW + len(_IDS)
        after.server.eval(self.model.scripts["heartbeat"], KEYS[queue], (f"w{w}", self.scenario.max_deliveries))

    # Losses of the server.

    def _losses(self, state: State, now: Now) -> Moves:
        rollbacks = [kind for kind in self.scenario.kinds if kind.startswith("rollback")]
        if rollbacks and state.oracle.faults > 0 and state.snapshot is None:
            after = Now(self.model, state)
            after.take_snapshot()
            after.put(faults=after.oracle.faults - 1)
            yield Move(_text("SNAPSHOT"), after.freeze(), True)
        for kind in rollbacks if state.snapshot is not None else ():
            after = Now(self.model, state)
            after.use_snapshot(_PARTITIONS.get(kind, ("*",)))
            promises.note_loss(after, kind)
            yield Move(_text(kind.upper()), after.freeze(), True)
        for kind in self.scenario.kinds if state.oracle.faults else ():
            groups = [_LOSSES[kind]] if kind in _LOSSES else []
            if kind == "lease":
                owners = [(queue, w) for w in range(len(state.processes)) for queue in self.scenario.queues_of(w)]
                groups = [(key(queue, f"leases:w{w}"), key(queue, f"taken:w{w}")) for queue, w in owners]
            for group in groups:
                after = Now(self.model, state)
                names = [name for name in after.server._values if is_one_of(name, group)]
                is_absent = not now.alive()
                if names and (
                    is_absent if kind in promises.ABSENT else not is_absent or kind not in ("queue", "audit")
                ):
                    after.server.call("DEL", *names)
                    after.put(faults=after.oracle.faults - 1)
                    promises.note_loss(after, kind)
                    yield Move(_text(f"LOSS of {group}"), after.freeze(), True)


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
