"""The moves of a scenario, from one state of the search to the next.

Between any two operations a callback may end, and a worker may be stopped, killed or presumed dead. A reply may be lost
with the operation executed, not executed or executed later. The server may lose its data, or its last writes.

The filter is one atomic set; its own protocol is searched by `schedule_search`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, combinations
from typing import Any

from scrapy_bloom.queue import operations as ops
from scrapy_bloom.queue.operations import (
    REGISTERED,
    AskFilter,
    ClearFilter,
    Ending,
    FilterOperation,
    ForgetFailed,
    ReleaseFilter,
    Reply,
    Status,
    UseFilter,
)
from scrapy_bloom.queue.worker_state import Phase
from tests.support.explore import Move
from tests.support.queue_memory import Registration
from tests.support.queue_model import (
    CHANGED,
    LEASE,
    NOTHING,
    NUMBER,
    OLDEST,
    Items,
    Late,
    Life,
    QueueModel,
    Rule,
    State,
    World,
    offered,
    shown,
)
from tests.support.queue_promises import Promises

_JOINED_PHASES = (Phase.WORKING, Phase.JOINING, Phase.JOINED)


class QueueWorld:
    """The moves of a scenario. Each checks the promises that it could break."""

    def __init__(self, model: QueueModel, promises: Promises, broken_rules: frozenset[Rule]) -> None:
        self._model = model
        self._scenario = model.scenario
        self._promises = promises
        self._broken_rules = broken_rules
        self._kinds = model.scenario.fault_kinds
        self._queues = model.scenario.queue_of
        self._workers = frozenset(f"w{number}" for number in range(len(self._queues)))

    def start(self) -> State:
        """Return the first state."""
        memories = (self._model.empty(),) * (max(self._queues) + 1)
        later = (*self._scenario.late, *self._scenario.spare, *self._scenario.anew)
        lives = tuple(
            Life("new" if number in later else "alive", self._model.fresh(number))
            for number in range(len(self._queues))
        )
        return State(memories, World(faults=self._scenario.faults), lives)

    def moves(self, state: State) -> Iterator[Move[State]]:
        """Yield all moves from a state."""
        for number, life in enumerate(state.lives):
            if life.state == "new":
                yield from self._starts(state, number)
            elif life.flushing:
                yield from self._flush_steps(state, number)
            elif life.is_alive:
                yield from self._events(state, number)
                yield from self._suspicions(state, number)
                yield from self._operations(state, number)
        yield from self._late_operations(state)
        yield from self._losses(state)

    def _may(self, state: State, kind: str) -> bool:
        return state.world.faults > 0 and kind in self._kinds

    def _peers(self, number: int) -> list[int]:
        """Return the other workers of a worker's queue."""
        return [other for other, queue in enumerate(self._queues) if queue == self._queues[number] and other != number]

    # Starts and flushes.

    def _starts(self, state: State, number: int) -> Iterator[Move[State]]:
        others = [life for other, life in enumerate(state.lives) if other != number]
        has_died = any(state.lives[peer].state == "crashed" for peer in self._peers(number))
        is_late = number in self._scenario.late
        if number in self._scenario.anew:
            yield Move(lambda: f"w{number} starts over, and deletes the filter", self._begun_anew(state, number), True)
        elif is_late or (has_died and not any(life.is_alive for life in others)):
            started = replace(state.lives[number], state="alive")
            yield Move(lambda: f"w{number} starts", state.with_life(number, started), is_late)

    def _begun_anew(self, state: State, number: int) -> State:
        """Delete the filter; the queue, the filter of the meantime and the end follow."""
        starting = replace(state.lives[number], state="alive", flushing=("flush", "clear", "end"))
        return _without_filter(state.with_life(number, starting))

    def _flushed_anew(self, state: State, number: int) -> State:
        """Flush the queue; promises cover only requests held or offered from now on."""
        state = self._executed(state, number, ops.Flush(f"w{number}", lease_seconds=LEASE))
        held: set[str] = set()
        finished: set[str] = set()
        for other, life in enumerate(state.lives):
            if life.is_alive:
                held |= self._model.held_items(life)
                # The worker holds the children of finished requests.
                finished |= self._model.items_of(self._model.known(life).finished.values())
                state = state.with_life(other, replace(life, is_stale=True))
        for queue, memory in enumerate(state.memories):
            if queue != self._queues[number]:
                held |= self._model.memory_items(memory)
        world = state.world
        filter_and_users = world.marks, world.users, world.relying
        history = World(*filter_and_users, frozenset(held), frozenset(finished), faults=world.faults)
        return state._replace(world=history)

    def _flush_steps(self, state: State, number: int) -> Iterator[Move[State]]:
        """Yield the next step of a worker that flushes the queue."""
        if self._may(state, "crash"):
            yield Move(lambda: f"w{number} CRASHES", self._crashed(state, number), True)
        life = state.lives[number]
        done = state.with_life(number, replace(life, flushing=life.flushing[1:]))
        match life.flushing[0]:
            case "flush":
                done = self._flushed_anew(done, number)
            case "clear":
                done = _without_filter(done)
            case _:
                done = self._executed(done, number, ops.EndClosing(f"w{number}", clears=False, stays=True))
        yield Move(lambda: f"w{number}: {life.flushing[0]}", done)

    def _executed(self, state: State, number: int, operation: ops.QueueOperation) -> State:
        """Return the state after an operation whose reply does not matter."""
        memory, _, changed = self._model.apply(state.memories[self._queues[number]], operation)
        return self._changed(state, number, memory, changed)

    def _changed(self, state: State, number: int, memory: int, names: Items) -> State:
        """Return the state with another memory of a worker's queue, and changed workers."""
        queue = self._queues[number]
        return self._noticed(state.with_memory(queue, memory), queue, names)

    # Events of one worker.

    def _events(self, state: State, number: int) -> Iterator[Move[State]]:
        life = state.lives[number]
        known = self._model.known(life)
        if self._may(state, "crash"):
            yield Move(lambda: f"w{number} CRASHES", self._crashed(state, number), True)
        if number in self._scenario.stop and life.has_started and not life.is_stopped:
            stopped = self._model.tell(number, replace(life, is_stopped=True), self._model.worker.stop)
            yield Move(lambda: f"w{number} is stopped", state.with_life(number, stopped), True)
        if known.phase in _JOINED_PHASES:
            for member in known.running:
                label = partial("w{} finishes {}".format, number, member.decode())
                yield Move(label, self._finished(state, number, member))
                if member.decode() in self._scenario.failing:
                    label = partial("w{} finds {} failed".format, number, member.decode())
                    yield Move(label, self._failed(state, number, member))
        ending = self._ending_of(number, life)
        if ending is not None:
            left = self._model.tell(number, life, self._model.worker.leave, ending)
            yield Move(lambda: f"w{number} decides to leave: {ending}", state.with_life(number, left))
        if known.phase in (Phase.WORKING, Phase.JOINED) and self._model.is_registered(state, number):
            beaten = self._noticed(state, self._queues[number], frozenset({f"w{number}"}))
            if beaten != state:
                yield Move(lambda: f"w{number} sends a heartbeat", beaten)

    def _finished(self, state: State, number: int, member: bytes) -> State:
        self._promises.check_fetch(state.world, member)
        fetched = replace(state.world, fetched=state.world.fetched | {self._model.item[member]})
        world = self._with_offers(fetched, self._scenario.tree[member.decode()][1])
        after = state.with_life(number, self._model.finish(number, state.lives[number], member))
        return self._begun(state, after._replace(world=world), number)

    def _failed(self, state: State, number: int, member: bytes) -> State:
        failed = state.with_world(failed=state.world.failed | {self._model.item[member]})
        life = self._model.fail(number, state.lives[number], member)
        return self._begun(state, failed.with_life(number, life), number)

    def _ending_of(self, number: int, life: Life) -> Ending | None:
        """Return how a worker decides to leave, or None."""
        known = self._model.known(life)
        if known.phase is not Phase.WORKING:
            return None
        if known.may_finish:
            return Ending.KEEP if self._scenario.persist else Ending.FINISHED
        if life.is_stopped and not known.running and self._model.next_operation(number, life) is None:
            return Ending.KEEP if self._scenario.persist else Ending.STOPPED
        return None

    def _suspicions(self, state: State, number: int) -> Iterator[Move[State]]:
        """Yield the heartbeat thread's moves: find workers silent, then requeue them."""
        life = state.lives[number]
        if self._model.known(life).ending is not None and Rule.LAST_BEATS not in self._broken_rules:
            return
        suspects = dict(life.suspects)
        memory = state.memories[self._queues[number]]
        registrations = dict(self._model.stored(memory).workers)
        may_err = self._may(state, "false")
        for peer in self._peers(number):
            text = registrations.get(f"w{peer}")
            if text is None or not (life.has_started or Registration.parse(text).is_closing):
                continue
            is_dead = not state.lives[peer].is_alive
            if peer not in suspects:
                if is_dead or may_err or self._broken_rules & {Rule.COMPARED, Rule.OWN_LEASES}:
                    suspecting = replace(life, suspects=life.suspects | {(peer, False)})
                    label = partial("w{} finds w{} silent".format, number, peer)
                    yield Move(label, state.with_life(number, suspecting), not is_dead)
                continue
            has_changed = suspects[peer]
            is_charged = not is_dead and not has_changed and Rule.OWN_LEASES not in self._broken_rules
            if is_charged and not may_err:
                continue
            value = CHANGED if has_changed and Rule.COMPARED not in self._broken_rules else text
            operation = ops.Requeue(f"w{number}", f"w{peer}", value, LEASE, NUMBER, self._scenario.max_deliveries)
            after, reply, changed = self._model.apply(memory, operation)
            self._promises.check_dead_letters(state, peer, reply)
            done = state.with_life(number, replace(life, suspects=life.suspects - {(peer, has_changed)}))
            done = self._changed(done, number, after, changed)
            label = partial("w{} requeues w{}: {}".format, number, peer, reply.status)
            yield Move(label, done.charged() if is_charged else done, not is_dead)

    # Operations of one worker.

    def _operations(self, state: State, number: int) -> Iterator[Move[State]]:
        operation = self._model.next_operation(number, state.lives[number])
        if operation is None:
            return
        if isinstance(operation, AskFilter):
            yield from self._asked(state, number, operation)
            return
        if isinstance(operation, ForgetFailed):
            yield from self._forgotten(state, number, operation)
            return
        if isinstance(operation, UseFilter | ReleaseFilter | ClearFilter):
            yield from self._referenced(state, number, operation)
            return
        if isinstance(operation, ops.Join):
            self._promises.check_filter_found(state, number)
        queue = self._queues[number]
        memory, reply, changed = self._model.apply(state.memories[queue], operation)
        executed = self._changed(state, number, memory, changed)
        if isinstance(operation, ops.Leave) and reply.status is Status.LAST:
            others = state.world.discarding - {queue}
            executed = executed.with_world(
                discarding=others | {queue} if operation.ending is Ending.STOPPED else others
            )
        if self._may(state, "lost") and reply.status is not Status.EXPIRED:
            yield from self._lost(state, executed, number, operation)
        yield Move(
            lambda: f"w{number} {shown(operation)}: {reply.status} {shown(reply.entries)}",
            self._replied(executed, number, operation, reply),
        )

    def _lost(self, state: State, executed: State, number: int, operation: ops.QueueOperation) -> Iterator[Move[State]]:
        """Yield the moves in which the reply to an operation is lost."""
        for done, outcome in ((executed, "executed"), (state, "not executed")):
            life, by = self._model.conclude(number, done.lives[number], self._model.worker.lose_reply, operation)
            lost = self._renumbered(done.charged().with_life(number, life), number, by)
            yield Move(partial("w{} {}: LOST, {}".format, number, shown(operation), outcome), lost, True)
            if done is state and state.late is None and isinstance(operation, ops.Sync | ops.Join):
                moved = replace(operation, number=operation.number + by)
                late = lost._replace(late=Late(number, moved))
                yield Move(lambda: f"w{number} {shown(operation)}: LATE", late, True)

    def _replied(
        self, state: State, number: int, operation: ops.QueueOperation | FilterOperation, reply: Reply
    ) -> State:
        """Return the state after a worker has its reply."""
        life, by = self._model.conclude(number, state.lives[number], self._model.worker.receive_reply, operation, reply)
        if reply.loss:
            state = state.with_world(is_unreported=False)
        if state.replica is not None and reply.status is Status.OK and isinstance(operation, ops.Sync):
            memories, ahead = state.replica
            state = state._replace(replica=(memories, ahead | {number}))
        if isinstance(operation, ops.Join) and reply.status in REGISTERED and state.has_failed_over is not None:
            state = state._replace(has_failed_over=state.has_failed_over - {number})
        state = self._without_vain_late(state, number, reply)
        state = self._renumbered(self._begun(state, state.with_life(number, life), number), number, by)
        if isinstance(operation, ops.Sync):
            state = self._recovered(state, number)
        return self._gone(self._started(state, number), number)

    def _without_vain_late(self, state: State, number: int, reply: Reply) -> State:
        """Return the state without a late operation that has no effect any more."""
        if state.late is None or state.late.worker != number:
            return state
        if isinstance(state.late.operation, ops.Join):
            # A join that is executed after the worker's end leaves a registration until its lease has passed.
            is_vain = reply.status in (Status.LAST, Status.LEFT)
        else:
            _, late, _ = self._model.apply(state.memories[self._queues[number]], state.late.operation)
            is_vain = late.status in (Status.AGAIN, Status.LATE)
        return state._replace(late=None) if is_vain else state

    def _started(self, state: State, number: int) -> State:
        """Return the state after a worker that begins to work offers its start requests."""
        life = state.lives[number]
        if self._model.known(life).phase is not Phase.WORKING or life.has_started:
            return state
        world = self._with_offers(state.world, self._scenario.roots[number])
        life = self._model.start(number, replace(life, has_started=True))
        return state.with_life(number, life)._replace(world=world)

    def _recovered(self, state: State, number: int) -> State:
        """Return the state after a stale worker has leased and checked everything again."""
        life = state.lives[number]
        known = self._model.known(life)
        if not life.is_stale or known.phase is not Phase.WORKING or known.to_reclaim or known.new:
            return state
        if any(entry.is_unsure for entry in (*offered(known), *known.to_check)):
            return state
        return state.with_life(number, replace(life, is_stale=False))

    def _gone(self, state: State, number: int) -> State:
        """Return the state without the knowledge of a worker that has left."""
        life = state.lives[number]
        if self._model.known(life).phase is not Phase.GONE:
            return state
        if state.late is not None and state.late.worker == number:
            state = state._replace(late=None)
        return state.with_life(number, Life("gone", self._model.fresh(number), is_stopped=life.is_stopped))

    def _late_operations(self, state: State) -> Iterator[Move[State]]:
        if state.late is None:
            return
        number, operation = state.late
        without = state._replace(late=None)
        yield Move(lambda: "the late operation is never executed", without, True)
        memory, reply, changed = self._model.apply(state.memories[self._queues[number]], operation)
        done = self._changed(without, number, memory, changed)
        if done.lives[number].state == "crashed":
            done = done.with_life(number, replace(done.lives[number], is_left=True))
        yield Move(lambda: f"late: w{number} {shown(operation)}: {reply.status}", done, True)

    # The filter.

    def _asked(self, state: State, number: int, operation: AskFilter) -> Iterator[Move[State]]:
        life, world = state.lives[number], state.world
        asked = [(self._model.item[entry.member], entry.is_unsure) for entry in operation.entries]
        unsure = {item for item, is_unsure in asked if is_unsure}
        are_new: list[bool] = []
        met: set[str] = set()
        for item, _ in asked:
            are_new.append(item not in met and (item in unsure or item not in world.marks))
            met.add(item)
        using, users = {self._queues[number]}, world.users
        if Rule.RENEWED not in self._broken_rules:
            users |= using
        marked = state.with_world(marks=world.marks | met, users=users, relying=world.relying | using)
        if self._may(state, "lost filter"):
            yield from self._half_asked(state, marked, number, operation)
        told, _ = self._model.conclude(number, life, self._model.worker.receive_filter_reply, operation, tuple(are_new))
        yield Move(lambda: f"w{number} asks for {asked}: {are_new}", marked.with_life(number, told))

    def _half_asked(self, state: State, marked: State, number: int, operation: AskFilter) -> Iterator[Move[State]]:
        """Yield the moves in which a check fails: any of its items are marked, and these and others are in doubt."""
        items = {entry.fingerprint: self._model.item[entry.member] for entry in operation.entries if entry.fingerprint}
        lost, _ = self._model.conclude(number, state.lives[number], self._model.worker.lose_reply, operation)
        for in_doubt in _subsets(items):
            doubting = self._model.tell(number, lost, self._model.worker.doubt, frozenset(in_doubt))
            for executed in _subsets(in_doubt):
                marks = state.world.marks | {items[fingerprint] for fingerprint in executed}
                failed = marked.with_world(marks=marks).charged().with_life(number, doubting)
                label = partial(
                    "w{} asks the filter: FAILED, {} marked, {} in doubt".format, number, executed, in_doubt
                )
                yield Move(label, failed, True)

    def _forgotten(self, state: State, number: int, operation: ForgetFailed) -> Iterator[Move[State]]:
        items = {fingerprint.decode() for fingerprint in operation.fingerprints}
        done = state.with_world(marks=state.world.marks - items)
        if self._may(state, "lost filter"):
            life, _ = self._model.conclude(number, state.lives[number], self._model.worker.lose_reply, operation)
            for after, outcome in ((done, "executed"), (state, "not executed")):
                label = partial("w{} has {} forgotten: LOST, {}".format, number, sorted(items), outcome)
                yield Move(label, after.charged().with_life(number, life), True)
        label = partial("w{} has {} forgotten".format, number, sorted(items))
        yield Move(label, self._replied(done, number, operation, Reply(Status.OK)))

    def _referenced(
        self, state: State, number: int, operation: UseFilter | ReleaseFilter | ClearFilter
    ) -> Iterator[Move[State]]:
        """Yield the moves in which a worker adds or removes its queue's reference, or completes a flush."""
        queue, status = self._queues[number], Status.OK
        if isinstance(operation, UseFilter):
            done = state.with_world(users=state.world.users | {queue}, relying=state.world.relying | {queue})
        else:
            is_flush = isinstance(operation, ClearFilter)
            done = _without_filter(state) if is_flush else self._released(state, number)
            if self._may(state, "lost"):
                yield Move(lambda: f"w{number} releases the filter: LOST", done.charged(), True)
            if not is_flush and self._is_used(done):
                # The filter stays, and with it the waiting requests that it knows.
                status = Status.KEPT
                done = done.with_world(discarding=done.world.discarding - {queue})
        label = partial("w{} {}".format, number, type(operation).__name__)
        yield Move(label, self._replied(done, number, operation, Reply(status)))

    def _released(self, state: State, number: int) -> State:
        """Return the state without a queue's reference; the last one clears the filter."""
        own = self._queues[number]
        state = state.with_world(users=state.world.users - {own}, relying=state.world.relying - {own})
        if self._is_used(state):
            return state
        text = dict(self._model.stored(state.memories[own]).workers).get(f"w{number}", "")
        is_deposed = " closing" not in text and Rule.CLOSING not in self._broken_rules
        self._promises.check_release(state, number)
        if (state.world.marks or state.world.offered) and not is_deposed:
            state = self._promises.check_clear(state, number)
        return _without_filter(state).with_world(has_cleared=state.world.has_cleared or not is_deposed)

    def _is_used(self, state: State) -> bool:
        """Return whether a reference keeps the filter."""
        has_users = bool(state.world.users) or self._scenario.is_shared
        return has_users and Rule.REFERENCES not in self._broken_rules

    # Parts of moves.

    def _renumbered(self, state: State, number: int, by: int) -> State:
        """Return the state with the number of a worker's last sync put back to NUMBER."""
        if not by:
            return state
        queue, name = self._queues[number], f"w{number}"
        state = state.with_memory(queue, self._model.shifted(state.memories[queue], name, by))
        if state.late is not None and state.late.worker == number:
            late: Any = state.late.operation
            state = state._replace(late=Late(number, replace(late, number=max(OLDEST, late.number + by))))
        if state.replica is not None:
            memories, ahead = state.replica
            shifted = self._model.shifted(memories[queue], name, by)
            state = state._replace(replica=((*memories[:queue], shifted, *memories[queue + 1 :]), ahead))
        return state

    def _noticed(self, state: State, queue: int, names: Items) -> State:
        """Return the state in which a queue's workers find these registrations changed."""
        if not names:
            return state
        for number, life in enumerate(state.lives):
            if self._queues[number] == queue and life.is_alive:
                suspects = frozenset((peer, changed or f"w{peer}" in names) for peer, changed in life.suspects)
                noting = self._model.note_changes(number, life, names)
                state = state.with_life(number, replace(noting, suspects=suspects))
        return state

    def _all_noticed(self, state: State) -> State:
        """Return the state in which all registrations have changed."""
        for queue in set(self._queues):
            state = self._noticed(state, queue, self._workers)
        return state

    def _with_offers(self, world: World, names: Iterable[str]) -> World:
        items = self._scenario.items(names)
        owed = self._scenario.items(name for name in names if name in self._scenario.unfiltered)
        return replace(world, offered=world.offered | items, owed=world.owed | owed)

    def _begun(self, before: State, after: State, number: int) -> State:
        """Return the state after, in which no request that a worker began is owed."""
        running = self._model.known(after.lives[number]).running.keys()
        begun = running - self._model.known(before.lives[number]).running.keys()
        owed = after.world.owed - {self._model.item[member] for member in begun}
        return after if owed == after.world.owed else after.with_world(owed=owed)

    # Faults.

    def _crashed(self, state: State, number: int) -> State:
        life, world = state.lives[number], state.world
        known, held = self._model.known(life), self._model.held_items(life)
        elsewhere = self._model.stored_items(state)
        for other, peer in enumerate(state.lives):
            if other != number and peer.is_alive:
                elsewhere |= self._model.held_items(peer)
        exempt = world.exempt
        has_lapsed = life.is_stale or (life.has_started and not self._model.is_registered(state, number))
        if has_lapsed:
            # Redis lost these items, and the worker dies before it could lease them again.
            exempt |= {item for item in held if item in world.marks or item not in elsewhere}
        # The next start offers start requests again that were not leased yet.
        roots = self._scenario.items(self._scenario.roots[number])
        gone = (self._model.items_of(offered(known)) & roots) - elsewhere - world.fetched - world.marks
        unfiltered = [entry for entry in known.running.values() if self._scenario.is_unfiltered(entry.member)]
        owed = world.owed | self._model.items_of(unfiltered)
        if has_lapsed:
            owed -= exempt
        crashed = Life(
            "crashed", self._model.fresh(number), is_stopped=life.is_stopped, had_begun=self._model.begun_by(life)
        )
        state = state.with_life(number, crashed)
        state = state.with_world(
            offered=world.offered - gone, exempt=exempt, owed=frozenset(owed), faults=world.faults - 1
        )
        if all(self._has_decided(state.lives[peer]) for peer in self._peers(number)):
            for other, peer in enumerate(state.lives):
                if peer.state == "crashed":
                    state = state.with_life(other, replace(peer, is_left=True))
        return state

    def _has_decided(self, life: Life) -> bool:
        """Return whether a worker detects no further crash."""
        known = self._model.known(life)
        is_working = life.is_alive and known.phase in _JOINED_PHASES and known.ending is None
        return not is_working or known.heartbeats_seen is not None

    def _losses(self, state: State) -> Iterator[Move[State]]:
        if self._may(state, "flush") and not state.world.is_flushed:
            yield Move(lambda: "FLUSHALL", self._flushed(state), True)
        is_at_work = any(life.is_alive and self._model.known(life).ending is None for life in state.lives)
        is_queued = any(self._model.stored(memory).queue for memory in state.memories)
        if self._may(state, "delete") and is_at_work and is_queued:
            yield Move(lambda: "the queue is DELETED", self._deleted(state), True)
        if "failover" not in self._kinds:
            return
        if state.world.faults and state.replica is None and state.has_failed_over is None:
            lagging = state.charged()._replace(replica=(state.memories, frozenset()))
            yield Move(lambda: "the replica lags", lagging, True)
        if state.replica is not None:
            yield Move(lambda: "FAILOVER", self._failed_over(state, *state.replica), True)

    def _flushed(self, state: State) -> State:
        kept: set[str] = set()
        for number, life in enumerate(state.lives):
            if life.is_alive:
                kept |= self._model.held_items(life)
                state = state.with_life(number, replace(life, is_stale=True))
        state = self._exempted(state.charged(), kept).with_world(is_flushed=True)
        if self._scenario.filter_is_flushed:
            state = _without_filter(state)
        empty = self._model.empty()
        return self._all_noticed(state._replace(memories=tuple(empty for _ in state.memories)))

    def _exempted(self, state: State, kept: set[str]) -> State:
        """Return the state after a loss in which only these items were kept."""
        world = state.world
        return state.with_world(exempt=world.exempt | (world.offered - world.fetched - kept))

    def _deleted(self, state: State) -> State:
        """Return the state after the deletion of the queue alone."""
        memories = tuple(self._model.without_queue(memory) for memory in state.memories)
        after = state.charged()._replace(memories=memories)
        after = self._exempted(after, self._sure_to_come(after))
        return after.with_world(owed=after.world.owed - after.world.exempt, is_unreported=True)

    def _sure_to_come(self, state: State) -> set[str]:
        """Return the items that are fetched without the queue."""
        kept: set[str] = set()
        for memory in state.memories:
            kept |= {self._model.item[member] for member, _ in self._model.stored(memory).dead}
        for number, life in enumerate(state.lives):
            if life.is_alive:
                known = self._model.known(life)
                kept |= self._taken_items(life)
                if known.in_doubt is None:
                    kept |= self._model.items_of(known.new)
                kept |= self._model.held_items(life) - state.world.marks
            else:
                leases = dict(self._model.stored(state.memories[self._queues[number]]).leases)
                kept |= {self._model.item[member] for member, _ in leases.get(f"w{number}", ())}
        return kept

    def _taken_items(self, life: Life) -> set[str]:
        """Return the items that a worker has taken from the queue."""
        known = self._model.known(life)
        running = (*known.running.values(), *known.finished.values(), *known.unreadable.values())
        return self._model.items_of((*known.ready, *running))

    def _failed_over(self, state: State, memories: tuple[int, ...], ahead: frozenset[int]) -> State:
        """Return the state in which a replica without the last writes has taken over."""
        state = state._replace(memories=memories, replica=None, has_failed_over=ahead)
        kept = self._model.stored_items(state)
        for number, life in enumerate(state.lives):
            if not life.is_alive:
                continue
            if number in ahead or not self._model.is_registered(state, number):
                kept |= self._model.held_items(life)
            else:
                # The worker does not notice, and trusts the filter.
                known = self._model.known(life)
                kept |= self._taken_items(life)
                kept -= self._model.items_of((*known.to_check, *known.repeats))
            state = state.with_life(number, replace(life, is_stale=True))
        return self._all_noticed(self._exempted(state, kept))


def _subsets(names: Iterable[bytes]) -> Iterator[tuple[bytes, ...]]:
    """Yield all subsets."""
    ordered = sorted(names)
    return chain.from_iterable(combinations(ordered, size) for size in range(len(ordered) + 1))


def _without_filter(state: State) -> State:
    """Return the state after a deletion of the filter with its references."""
    return state.with_world(marks=NOTHING, users=frozenset(), relying=frozenset())
