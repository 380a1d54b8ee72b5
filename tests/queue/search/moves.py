"""The moves of a searched crawl: scripts, engines, kills, lost replies, and losses of the server."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from scrapy_bloom.queue.values import Call, Outcome, Phase, Trouble
from tests.queue.search import promises
from tests.queue.search.model import Model, Now
from tests.queue.search.normal import FIELDS, registrations, store
from tests.queue.search.world import KEYS, LEASE, NOW, Oracle, Process, Source, State, key, mask_of, union
from tests.support.explore import Move
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
}
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
        if w in s.stop and worker.phase is Phase.WORK and not (worker.is_stopping or worker._leaves_as):
            after = Now(self.model, state)
            after.worker(w).stop()
            yield Move(_text(f"w{w} is stopped"), after.freeze(), True)
        for member in worker.running:
            yield from self._engine(state, now, w, member)
        if worker.is_idle and (worker.may_finish or worker.is_stopping) and not worker._leaves_as:
            after = Now(self.model, state)
            after.worker(w).leave("keep" if s.persist else "stopped" if worker.is_stopping else "finished")
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
        while len(worker.running) < self.scenario.at_once and (entry := worker.take()):
            after.put(owed=after.oracle.owed & ~(1 << int(entry.member)))

    # Scripts.

    def _call(self, now: Now, w: int) -> Call | None:
        """Return the next call of a worker."""
        worker, s = now.worker(w), self.scenario
        if worker.phase is Phase.JOIN:
            worker._source = Source(self._free_filter_id(now))
        return worker.next_call(max(0, s.want - len(worker.ready) - len(worker.running)))

    def _execute(self, now: Now, w: int, call: Call) -> Any:
        """Execute a script, and return its reply; the replies of a state are remembered."""
        time = NOW + self._free_time(now)
        memo = None if now.is_server_changed() else (now.state.server, w, call, time)
        if memo in self.model.executed:
            server, reply = self.model.executed[memo]
            now.set_server(server.copy())
        else:
            server = now.server
            server.time = time
            # The filter's script has no worker.
            me = [] if call.script == "allocate" else [f"w{w}"]
            keys = KEYS[self.scenario.queue_of(w)]
            reply = server.eval(self.model.scripts[call.script], keys, [*me, *call.arguments])
            if memo:
                self.model.executed[memo] = server.copy(), reply
        if call.script == "leave":
            promises.check_leave(Now(self.model, now.state), w, call, reply)
            if reply[0] == b"LEFT" and reply[2]:
                promises.note_deletion(now, w, call.arguments[1])
        if call.script == "join" and reply[0] == b"OK" and now.see(w).life == "alive":
            is_new_crawl = reply[2] == b"%d" % now.seen_server().time
            if call.arguments[5] and is_new_crawl and now.seen_worker(w)._flush:
                promises.note_flush(now)
        return reply

    def _operate(self, state: State, w: int) -> Moves:
        """Yield a worker's next call, with each fate of it."""
        sent = Now(self.model, state)
        call = self._call(sent, w)
        if call is None:
            return
        executed = Now(self.model, state)
        reply = self._execute(executed, w, call)
        if self._may(state, "lost"):
            sent.fail(w, call)
            yield Move(partial(_label, w, call, "NOT SENT"), sent.freeze(), True)
            if state.packet is None:
                sent.packet = (w, call)
                yield Move(partial(_label, w, call, "LATE"), sent.freeze(), True)
            lost = Now(self.model, state)
            self._execute(lost, w, call)
            lost.fail(w, call)
            yield Move(partial(_label, w, call, "REPLY LOST"), lost.freeze(), True)
        self._receive(executed, w, reply)
        yield Move(partial(_label, w, call, reply), executed.freeze())
        if self._may(state, "lost") and state.packet is None and call.script in ("join", "exchange", "leave"):
            # Not `executed`, whose numbers are small again, unlike those of the packet.
            twice = Now(self.model, state)
            self._execute(twice, w, call)
            self._receive(twice, w, reply)
            twice.put(faults=twice.oracle.faults - 1)
            twice.packet = (w, call)
            yield Move(partial(_label, w, call, "DUPLICATED"), twice.freeze(), True)

    def _receive(self, after: Now, w: int, reply: Any) -> None:
        self._call(after, w)
        worker = after.worker(w)
        losses = worker.losses
        worker.receive(reply)
        if worker.losses > losses or {*worker.troubles} - {Trouble.FLUSHED}:
            after.put(is_reported=True)
        worker.troubles.clear()
        worker.reaped.clear()
        worker.buried.clear()
        if worker.may_finish and not (worker.is_stopping or worker._leaves_as):
            promises.check_finish(after, w)
        if worker.phase is Phase.LEFT:
            after.set_process(w, Process("gone"))
        else:
            self._begin(after, w)

    def _late_packet(self, state: State) -> Moves:
        lost, after = Now(self.model, state), Now(self.model, state)
        assert after.packet
        (w, call), after.packet = after.packet, None
        lost.packet = None
        yield Move(_text("the late packet is lost"), lost.freeze(), True)
        reply = self._execute(after, w, call)
        yield Move(partial(_label, w, call, f"arrives: {_shown(reply)}"), after.freeze(), True)

    def _free_time(self, now: Now) -> int:
        """Return the smallest addition to the time that makes no crawl's id or run a second time."""
        used: set[bytes | None] = set()
        for server in now.seen_servers():
            for queue in self.scenario.queues:
                used |= {*server.call("HMGET", key(queue, "crawl"), "id", "run")}
                used |= {value.split(b" ")[0] for value in server.call("HGETALL", key(queue, "failed"))[1::2]}
        for w in now.alive():
            used |= {now.seen_worker(w).crawl, now.seen_worker(w).run}
        if now.packet:
            used |= {argument for argument in now.packet[1].arguments if type(argument) is bytes}
        return next(i for i in _IDS if b"%d" % (NOW + i) not in used)

    def _free_filter_id(self, now: Now) -> int:
        used = {server.call("HGET", "f", "id") for server in now.seen_servers()}
        calls = [now.packet[1]] if now.packet else []
        for w in now.alive():
            used.add(now.seen_worker(w).filter_id)
            if (under_way := now.seen_worker(w)._under_way) is not None:
                calls.append(under_way)
        for server in now.seen_servers():
            used |= {name.split(b":")[1] for name in server._values if name.startswith(b"{f}:")}
        used |= {str(argument).encode() for call in calls for argument in call.arguments}
        return next(i for i in _IDS if b"%d" % i not in used)

    # Heartbeats.

    def _heartbeats(self, state: State, now: Now, w: int) -> Moves:
        queue = self.scenario.queue_of(w)
        table = registrations(now.seen_server(), key(queue, "crawl"))
        if b"w%d" % w not in table:
            return
        if any(v != w and now.seen_worker(v)._quiet_since is not None for v in now.alive()):
            after = Now(self.model, state)
            self._beat(after, w)
            yield Move(_text(f"w{w} beats"), after.freeze())
        for v in range(len(state.processes)):
            is_false = now.see(v).life == "alive"
            if v == w or b"w%d" % v not in table or (is_false and not self._may(state, "false")):
                continue
            after = Now(self.model, state)
            values = table[b"w%d" % v]
            suspect = now.seen_server().call("HGET", key(queue, "suspects"), f"w{v}")
            store(after.server, key(queue, "crawl"), b"w%d" % v, [*values[:_CONTACT], -LEASE, *values[_CONTACT + 1 :]])
            self._beat(after, w)
            letters = after.kept() & ~now.kept()
            promises.check_letters(now, letters, suspect if values[_SUSPECT] == _STARTED else None, now.leased(v))
            if is_false:
                runs = mask_of(now.seen_worker(v).running) & self.scenario.unfiltered & after.waiting()
                after.put(faults=after.oracle.faults - 1, owed=after.oracle.owed | runs)
            yield Move(_text(f"w{w} presumes w{v} dead{' FALSELY' * is_false}"), after.freeze(), is_false)

    def _beat(self, after: Now, w: int) -> None:
        after.server.time = NOW + len(_IDS)
        keys = KEYS[self.scenario.queue_of(w)]
        after.server.eval(self.model.scripts["heartbeat"], keys, (f"w{w}", self.scenario.max_deliveries))

    # Losses of the server.

    def _losses(self, state: State, now: Now) -> Moves:
        if self._may(state, "rollback") and state.snapshot is None:
            after = Now(self.model, state)
            after.take_snapshot()
            after.put(faults=after.oracle.faults - 1)
            yield Move(_text("SNAPSHOT"), after.freeze(), True)
        if state.snapshot is not None:
            after = Now(self.model, state)
            after.use_snapshot()
            promises.note_loss(after, "rollback")
            yield Move(_text("ROLLBACK"), after.freeze(), True)
        for kind in self.scenario.kinds if state.oracle.faults else ():
            groups = [_LOSSES[kind]] if kind in _LOSSES else []
            if kind == "lease":
                owners = ((self.scenario.queue_of(w), w) for w in range(len(state.processes)))
                groups = [(key(queue, f"leases:w{w}"), key(queue, f"taken:w{w}")) for queue, w in owners]
            for group in groups:
                after = Now(self.model, state)
                names = [name for name in after.server._values if _is_one_of(name.decode(), group)]
                if names and (now.alive() or kind not in ("queue", "audit")):
                    after.server.call("DEL", *names)
                    after.put(faults=after.oracle.faults - 1)
                    promises.note_loss(after, kind)
                    yield Move(_text(f"LOSS of {group}"), after.freeze(), True)


def _is_one_of(name: str, patterns: tuple[str, ...]) -> bool:
    return any(name.startswith(each[:-1]) if each.endswith("*") else name == each for each in patterns)


def _text(text: str) -> Callable[[], str]:
    return lambda: text


def _label(w: int, call: Call, reply: Any) -> str:
    return f"w{w} {call.script} {_shown(call.arguments)}: {reply if isinstance(reply, str) else _shown(reply)}"


def _shown(values: Any) -> str:
    """Return values without digests."""
    if not isinstance(values, list | tuple):
        return str(values)
    return " ".join(str(value) for value in values if not (type(value) is bytes and len(value) > 60))
