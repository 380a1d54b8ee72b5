"""The promises S1 to S9 of the queue, and their checks on states of a search."""

from dataclasses import replace

from scrapy_bloom.queue.operations import Reply, Status
from scrapy_bloom.queue.worker_state import Phase
from tests.support.explore import BrokenPromiseError
from tests.support.queue_memory import Audit
from tests.support.queue_model import NOTHING, Life, QueueModel, Rule, State, World

PROMISES = {
    "S1": "no request is lost",
    "S2": "a queue is cleared only when no request waits or is leased",
    "S3": "a finished crawl leaves no filter, no registration and no dead worker behind",
    "S4": "from every state all workers can leave",
    "S5": "without a fault, each page is fetched once",
    "S6": "a filter is not cleared while another queue uses it",
    "S7": "if a queue is lost, a worker reports the loss",
    "S8": "a request becomes a dead letter only for the death of a worker that had started it and nothing else",
    "S9": "a failed request is new to the filter again, in Redis, or held by its worker",
}


def broken(number: str, detail: str = "") -> str:
    """Return the text of a broken promise."""
    text = f"{number} is broken ({PROMISES[number]})"
    return f"{text}: {detail}" if detail else text


def break_promise(number: str, detail: str) -> None:
    """Raise BrokenPromiseError."""
    raise BrokenPromiseError(broken(number, detail))


class Promises:
    """The checks of S1 to S3 and S5 to S9; S4 is the exploration's own.

    Raises:
        BrokenPromiseError: by each check.
    """

    def __init__(self, model: QueueModel, broken_rules: frozenset[Rule]) -> None:
        self._model = model
        self._scenario = model.scenario
        self._broken_rules = broken_rules

    def check_filter_found(self, state: State, number: int) -> None:
        """S3: a new crawl does not find the filter of a finished one, when a worker joins."""
        world = state.world
        stored = self._model.stored(state.memories[self._scenario.queue_of[number]])
        # A crawl whose queue was deleted alone is finished, too, and the joining worker reports the loss.
        is_finished = not (stored.queue or stored.leases) and stored.audit == Audit()
        if len(state.memories) > 1 or self._scenario.persist or not world.marks - world.exempt or not is_finished:
            return
        is_left_by_flush = world.is_flushed and not self._scenario.filter_is_flushed
        is_used = stored.workers or any(life.is_alive and life.has_started for life in state.lives)
        has_failed_over = state.has_failed_over is not None
        if not (is_used or is_left_by_flush or has_failed_over or Rule.FENCE in self._broken_rules):
            break_promise("S3", "a new crawl finds the filter of a finished one")

    def check_fetch(self, world: World, member: bytes) -> None:
        """S5: a request is fetched."""
        item = self._model.item[member]
        if item in world.fetched and self._scenario.fetches_once and not self._scenario.is_unfiltered(member):
            break_promise("S5", f"fetched twice: {item}")

    def check_dead_letters(self, state: State, dead: int, reply: Reply) -> None:
        """S8: a worker is requeued."""
        if reply.status is not Status.REQUEUED:
            return
        life = state.lives[dead]
        begun = self._model.begun_by(life) if life.is_alive else life.had_begun
        members = {entry.member for entry in reply.entries}
        if members - begun:
            break_promise("S8", f"the dead worker had not started {sorted(members - begun)}")
        if members and (begun - members or len(members) > 1):
            break_promise("S8", f"the dead worker had started others: {sorted(begun - members)}")

    def check_release(self, state: State, number: int) -> None:
        """S6: a worker of the filter's last queue clears it, which others have not used since it was lost."""
        own = self._scenario.queue_of[number]
        for other, life in enumerate(state.lives):
            queue = self._scenario.queue_of[other]
            if queue == own or not life.is_alive or queue not in state.world.relying:
                continue
            uses_queue = self._model.is_registered(state, other) or self._model.stored(state.memories[queue]).queue
            if uses_queue and self._model.known(life).phase in (Phase.WORKING, Phase.LEAVING):
                break_promise("S6", f"w{other} still uses the filter")

    def check_clear(self, state: State, number: int) -> State:
        """S1 and S2: a worker clears the filter. Return the state of the next crawl."""
        world, own = state.world, self._scenario.queue_of[number]
        stored = self._model.stored(state.memories[own])
        dead = {self._model.item[member] for member, _ in stored.dead}
        held = set(dead)
        for other, life in enumerate(state.lives):
            if life.is_alive:
                held |= self._model.held_items(life, finished=True)
            if self._scenario.queue_of[other] != own:
                held |= self._model.memory_items(state.memories[self._scenario.queue_of[other]])
        is_closing = Rule.CLOSING not in self._broken_rules
        if not is_closing:
            held |= self._model.memory_items(state.memories[own])
        covered = self._scenario.closure(held)
        lost = world.offered - world.exempt - world.fetched - covered - self._scenario.closure(world.failed)
        if own in world.discarding:
            # A stopped crawl is discarded on purpose, with a warning.
            world = replace(world, exempt=world.exempt | lost, owed=NOTHING)
        elif lost:
            break_promise("S1", f"lost at the clear: {sorted(lost)}")
        if world.owed - covered:
            break_promise("S1", f"equal requests are not fetched again: {sorted(world.owed - covered)}")
        if (stored.queue or stored.leases) and is_closing and not world.discarding:
            break_promise("S2", "requests wait or are leased at the clear")
        if not held - dead and not (len(state.memories) > 1 and self._scenario.faults):
            # No worker holds anything: requests that are offered from now on belong to another crawl.
            world = replace(world, offered=NOTHING, fetched=NOTHING, failed=NOTHING, exempt=NOTHING)
        return state._replace(world=world)

    def is_end(self, state: State) -> bool:
        """Return whether no worker is alive; then check S1 to S3, S7 and S9."""
        if any(life.is_alive for life in state.lives):
            return False
        for check in (self._check_lost, self._check_unknown_leases, self._check_reported):
            check(state)
        if state.has_failed_over is None:
            self._check_left(state)
        return True

    def _check_lost(self, state: State) -> None:
        """S1 and S9: no item is missing at the end."""
        world, lives = state.world, state.lives
        kept = self._scenario.closure(self._model.stored_items(state))
        has_finished = any(life.state == "gone" for life in lives) and not any(life.is_stopped for life in lives)
        is_alone = len(state.memories) == 1 and not self._scenario.spare
        if has_finished and is_alone and self._scenario.fault_kinds <= {"crash", "lost", "lost filter"}:
            # A worker that finished has left nothing to others.
            kept = kept if world.has_cleared else set()
        if world.discarding:
            return
        lost = world.offered - world.exempt - world.fetched - kept
        if lost & world.failed & world.marks:
            break_promise("S9", f"failed, and never offered again: {sorted(lost & world.failed & world.marks)}")
        # A link to a failed page leads to its children again.
        lost -= self._scenario.closure(world.failed - world.marks)
        if lost:
            break_promise("S1", f"lost: {sorted(lost)}")
        if world.owed - kept:
            break_promise("S1", f"equal requests are not fetched again: {sorted(world.owed - kept)}")

    def _check_unknown_leases(self, state: State) -> None:
        """S1: every lease belongs to a registered worker, so that others can requeue it."""
        for memory in state.memories:
            stored = self._model.stored(memory)
            if {name for name, _ in stored.leases} - dict(stored.workers).keys():
                break_promise("S1", "entries are leased by an unregistered worker, and never requeued")

    def _check_reported(self, state: State) -> None:
        """S7: a worker that finished has reported the loss."""
        states = {life.state for life in state.lives}
        if state.world.is_unreported and "gone" in states and "crashed" not in states:
            break_promise("S7", "no worker has reported it")

    def _check_left(self, state: State) -> None:
        """S2 and S3: nothing is left at the end that should not be."""
        world, lives = state.world, state.lives
        has_crashed = any(life.state == "crashed" for life in lives)
        has_stopped = any(life.is_stopped for life in lives)
        if not any(life.state == "gone" for life in lives):
            return
        parts = [self._model.stored(memory) for memory in state.memories]
        is_waiting = any(part.queue for part in parts)
        has_entries = any(part.queue or part.leases for part in parts)
        if not (has_crashed or has_stopped) and has_entries:
            break_promise("S2", "all workers have finished, and entries are left in Redis")
        if not has_crashed:
            if any(part.workers for part in parts):
                break_promise("S3", "a registration is left")
            is_kept = self._scenario.persist or is_waiting
            if not is_kept and ((world.marks and not world.is_flushed) or world.users):
                break_promise("S3", "the filter is left")
        if has_stopped or world.is_flushed:
            return
        for number, life in enumerate(lives):
            if _is_overlooked(life) and self._model.is_registered(state, number):
                break_promise("S3", "a worker finished after another had died, and left it registered")
        is_spare_left = any(lives[number].state == "new" for number in self._scenario.spare)
        is_stored = any(part.queue or part.dead or part.leases or part.workers for part in parts)
        is_filter_due = has_crashed and not is_spare_left and not self._scenario.persist and not is_stored
        if is_filter_due and world.marks - world.exempt:
            break_promise("S3", "the filter is left although no worker is registered")


def _is_overlooked(life: Life) -> bool:
    return life.state == "crashed" and not life.is_left
