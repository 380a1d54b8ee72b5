"""The syncs of a worker: their contents, sizes and order. Searches cover the other properties."""

import pytest

from scrapy_bloom.queue.entries import AdaptiveWindow, Finished, OutboxEntry, QueueEntry
from scrapy_bloom.queue.operations import (
    AskFilter,
    ClearFilter,
    Ending,
    Join,
    Leave,
    ReleaseFilter,
    Reply,
    Requeue,
    ResolveInDoubt,
    Status,
    Sync,
    UseFilter,
    digests,
)
from scrapy_bloom.queue.worker import QueueWorker
from scrapy_bloom.queue.worker_state import Phase
from tests.support.queue_memory import QueueMemory


class Played:
    """A worker over a queue in memory, with a filter that calls every request new."""

    def __init__(self, batch_size: int = 10, max_deliveries: int = 0) -> None:
        self.memory = QueueMemory()
        self.worker = QueueWorker("one", "5", batch_size, max_deliveries=max_deliveries)
        self.syncs: list[Sync] = []
        self.work()

    def step(self, want: int = 0) -> object:
        """Execute the worker's next operation."""
        operation = self.worker.next_operation(want)
        match operation:
            case None:
                pass
            case AskFilter():
                self.worker.receive_filter_reply(operation, [True] * len(operation.entries))
            case UseFilter() | ReleaseFilter() | ClearFilter():
                self.worker.receive_reply(operation, Reply(Status.OK))
            case _:
                if isinstance(operation, Sync):
                    self.syncs.append(operation)
                self.worker.receive_reply(operation, self.memory.apply(operation))
        return operation

    def work(self, want: int = 0) -> None:
        """Execute operations until the worker has no news."""
        while self.worker.has_news or want:
            self.step(want)
            want = 0

    def put(self, **deaths: int) -> None:
        """Fill the queue with requests in this order, each with its number of deaths."""
        self.memory.queue = {name.encode(): float(score) for score, name in enumerate(deaths)}
        self.memory.deliveries = {name.encode(): (number, "") for name, number in deaths.items() if number}

    def take(self) -> str:
        """Return the request that the engine gets next, or an empty text."""
        entry = self.worker.take()
        return "" if entry is None else entry.member.decode()

    def expire(self) -> None:
        """Let another worker requeue the worker's leases, and let the worker rejoin."""
        self.expire_registration()
        self.work()

    def expire_registration(self) -> None:
        """Let another worker requeue the worker's leases."""
        self.memory.apply(Join("other", "5", 0, is_new=True))
        self.memory.apply(
            Requeue("other", "one", self.memory.workers["one"], "5", 0, self.worker.state.suspects.max_deliveries)
        )
        self.worker.receive_reply(ResolveInDoubt("one", 1, None), Reply(Status.EXPIRED))

    def offer(self, *names: str, score: float = 0, size: int = 1) -> None:
        """Offer requests of `size` bytes."""
        for name in names:
            self.worker.offer(OutboxEntry(name.encode().ljust(size, b"."), score, name.encode()))


def names(entries: tuple[QueueEntry, ...]) -> str:
    """Return the members as one text."""
    return "".join(entry.member.decode() for entry in entries)


def test_a_batch_is_queued() -> None:
    """An offered entry is leased, checked and pushed, and its lease ends."""
    played = Played()
    played.offer("a", "b")
    played.work()
    assert [names(each.leases) + ">" + names(each.pushes) for each in played.syncs] == ["ab>", ">ab"]
    assert played.memory.queue == {b"a": 0, b"b": 0}
    assert played.memory.leases == {"one": {}}
    assert played.worker.is_idle


def test_batches_are_bounded() -> None:
    """A sync is bounded in requests and in bytes; a larger request goes alone."""
    played = Played(batch_size=3)
    played.offer(*"abcdefg")
    played.work()
    assert [names(each.leases) for each in played.syncs] == ["abc", "def", "g", ""]
    played = Played()
    played.offer(*"abcd", size=200_000)
    played.offer("e", size=1_000_000)
    played.offer("f")
    played.work()
    assert [len(each.leases) for each in played.syncs if each.leases] == [2, 2, 1, 1]
    for each in played.syncs:
        entries = (*each.leases, *each.pushes)
        assert len(entries) == 1 or sum(len(entry.member) for entry in entries) <= 512 * 1024


def test_one_of_equal_requests_is_new_after_a_doubt() -> None:
    """Once an unsure entry is new, the filter's "seen" counts for the worker's other requests of its page."""
    played = Played(batch_size=1)
    for name in ("leased", "waiting", "later"):
        played.worker.offer(OutboxEntry(name.encode(), 0, b"page"))
    played.worker.offer(OutboxEntry(b"other", 0, b"other page"))
    while not played.worker.state.to_check:
        played.step()
    played.expire_registration()
    doubts = []
    while played.worker.has_news:
        operation = played.worker.next_operation()
        if isinstance(operation, AskFilter):
            doubts += [(entry.member, entry.is_unsure) for entry in operation.entries]
        played.step()
    assert doubts == [(b"leased", True), (b"waiting", False), (b"later", False), (b"other", True)]


def test_new_ones_that_wait_stay_leased() -> None:
    """A new entry beyond the budget stays leased, although the sync acknowledges an equal request."""
    played = Played()
    played.offer("a", "b", size=200_000)
    while not played.worker.state.new:
        played.step()
    waiting = played.worker.state.new[-1].in_queue
    played.worker.state.window = AdaptiveWindow(max_bytes=1)
    played.worker.state.finished[waiting.member] = waiting
    played.worker.state.outbox.append(Finished(waiting.member))
    played.step()
    assert [entry.in_queue for entry in played.worker.state.new] == [waiting]
    assert waiting.member in played.memory.leases["one"]
    played.work()
    assert played.memory.leases["one"] == {}


def test_a_batch_that_does_not_get_through_is_halved() -> None:
    """A sync whose reply is lost is halved until a reply arrives."""
    played = Played()
    played.offer(*"abcdefgh", size=100_000)
    sizes = []
    for _ in range(4):
        operation = played.worker.next_operation()
        assert isinstance(operation, Sync)
        sizes.append(len(operation.leases))
        played.worker.lose_reply(operation)
        assert isinstance(played.step(), ResolveInDoubt)
    assert sizes == [5, 2, 1, 1]
    played.work()
    assert len(played.memory.queue) == 8


def test_a_batch_that_got_through_too_late_is_halved_too() -> None:
    """A sync that is executed after the socket timeout halves the next one, too."""
    played = Played()
    played.offer(*"abcdefgh", size=100_000)
    while not played.worker.state.to_check:
        operation = played.worker.next_operation()
        assert isinstance(operation, Sync | ResolveInDoubt)
        played.memory.apply(operation)
        played.worker.lose_reply(operation)
        assert isinstance(played.step(), ResolveInDoubt)
    assert played.worker.state.window.max_bytes == 256 * 1024
    played.work()
    assert len(played.memory.queue) == 8


def test_all_that_an_exchange_carries_is_bounded() -> None:
    """Finished requests, repeats, unreadable and returned requests count, too.

    A sync carries an unreadable request twice: as a dead letter and as an acknowledgement.
    """
    played = Played(batch_size=100)
    for score, kind in enumerate("abcd"):
        played.offer(*(f"{kind}{number}" for number in range(10)), size=10_000, score=score)
    played.work()
    while len(played.worker.state.running) < 30:
        played.work(want=8)
        while played.worker.take():
            pass
    played.work(want=8)
    members = list(played.worker.state.running)
    for member in members[:10]:
        played.worker.finish(member)
    for member in members[10:20]:
        played.worker.dead_letter(member)
    played.worker.state.repeats = tuple(
        OutboxEntry(member, played.worker.state.running.pop(member).score, member) for member in members[20:]
    )
    played.offer("urgent", score=-1)
    assert played.worker.state.ready
    played.worker.state.window = AdaptiveWindow(max_bytes=40_000, max_window=40_000)
    played.syncs.clear()
    played.work()
    assert max(sync.size for sync in played.syncs) <= 2 * 40_000
    assert [*played.worker.state.finished, *played.worker.state.unreadable, *played.worker.state.repeats] == []
    assert len(played.memory.dead_letters) == 10


def test_what_is_given_back_is_bounded() -> None:
    """The last requests are returned first; a stopping worker returns the others."""
    played = Played()
    for score, name in enumerate("abcdefghij"):
        played.offer(name, size=10_000, score=score)
    played.work()
    played.work(want=8)
    assert len(played.worker.state.ready) == 5
    played.worker.state.window = AdaptiveWindow(max_bytes=20_000, max_window=20_000)
    played.offer("first", score=-1)
    played.work()
    assert [entry.score for entry in played.worker.state.ready] == [0, 1, 2]
    played.worker.stop()
    played.work()
    assert not played.memory.leases["one"]
    assert len(played.memory.queue) == 11


def test_fewer_are_taken_over_a_slow_link() -> None:
    """A late reply may have been too large: the next sync wants half as many requests."""
    played = Played()
    played.offer(*"abcdefghijklmnopqrstuvwxyz")
    played.work()
    wanted = []
    for _ in range(5):
        operation = played.worker.next_operation(8)
        assert isinstance(operation, Sync)
        wanted.append(operation.want)
        played.memory.apply(operation)
        played.worker.lose_reply(operation)
        assert isinstance(played.step(8), ResolveInDoubt)
        assert not played.memory.leases["one"]
    assert wanted == [8, 4, 2, 1, 1]
    played.work(want=8)
    assert names(played.worker.state.ready) == "a"


def test_settling_is_bounded() -> None:
    """A resolve lists the leases only of a sync that takes requests; a sync with many leases takes none."""
    played = Played(batch_size=1000)
    played.offer(*(str(number) for number in range(1000)))
    sync = played.worker.next_operation(8)
    assert isinstance(sync, Sync)
    assert (len(sync.leases), sync.want) == (1000, 0)
    played.worker.lose_reply(sync)
    assert played.worker.next_operation() == ResolveInDoubt("one", 1, None)
    played.work()
    played.offer("last")
    sync = played.worker.next_operation(8)
    assert isinstance(sync, Sync)
    assert sync.want == 4
    played.worker.lose_reply(sync)
    assert played.worker.next_operation() == ResolveInDoubt("one", sync.number, digests([b"last"]))


def test_fewer_are_asked_for_over_a_slow_link() -> None:
    """After a late reply the filter checks half as many requests at once."""
    played = Played()
    played.offer(*"abcdefghij")
    played.step()
    numbers = []
    for _ in range(5):
        question = played.worker.next_operation()
        assert isinstance(question, AskFilter)
        numbers.append(len(question.entries))
        played.worker.lose_reply(question)
    assert numbers == [10, 5, 2, 1, 1]


def test_undelivered_after_data_were_lost() -> None:
    """A request to lease again counts once, even if the filter is still to check it."""
    played = Played()
    played.offer(*"abcde")
    played.step()
    played.worker.receive_reply(ResolveInDoubt("one", 1, None), Reply(Status.EXPIRED))
    assert sorted(entry.member for entry in played.worker.undelivered()) == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("is_in_doubt", [False, True], ids=["before the exchange", "its reply is lost"])
def test_undelivered_after_the_filter_has_answered(is_in_doubt: bool) -> None:
    """A new request that is not queued yet is undelivered, and unsure: the filter knows it."""
    played = Played()
    played.offer("a")
    while not played.worker.state.new:
        played.step()
    if is_in_doubt:
        sync = played.worker.next_operation()
        assert isinstance(sync, Sync)
        played.worker.lose_reply(sync)
    played.offer("b")
    assert [(entry.member, entry.is_unsure) for entry in played.worker.undelivered()] == [(b"a", True), (b"b", False)]


def test_undelivered_after_a_question_without_reply() -> None:
    """A request under check is undelivered, and unsure if the reply was lost."""
    played = Played()
    played.offer("a")
    played.step()
    question = played.worker.next_operation()
    assert isinstance(question, AskFilter)
    assert [entry.is_unsure for entry in played.worker.undelivered()] == [False]
    played.worker.doubt({entry.fingerprint or b"" for entry in question.entries})
    assert [(entry.member, entry.is_unsure) for entry in played.worker.undelivered()] == [(b"a", True)]


def test_only_entries_in_doubt_are_unsure() -> None:
    """After a check that failed, entries are unsure if their item may be marked, also those behind the batch."""
    played = Played(batch_size=3)
    entries = [("known", b"known"), ("marked", b"page"), ("equal", b"page"), ("waiting", b"page"), ("other", b"other")]
    for name, fingerprint in entries:
        played.worker.offer(OutboxEntry(name.encode(), 0, fingerprint))
    while not played.worker.state.to_check:
        played.step()
    question = played.worker.next_operation()
    assert isinstance(question, AskFilter)
    assert [entry.member for entry in question.entries] == [b"known", b"marked", b"equal"]
    played.worker.doubt({b"page"})
    played.worker.lose_reply(question)
    assert {entry.member.decode(): entry.is_unsure for entry in played.worker.undelivered()} == {
        name: fingerprint == b"page" for name, fingerprint in entries
    }


def test_what_goes_first() -> None:
    """A request that precedes the ready ones sends these back; one of equal score does not."""
    played = Played()
    played.offer(*"abcdef", score=0)
    played.work(want=3)
    played.work(want=3)
    assert names(played.worker.state.ready) == "abc"
    played.offer("g", score=0)
    assert not played.worker.is_urgent
    played.offer("h", score=-1)
    assert played.worker.is_urgent
    played.work()
    assert played.worker.state.ready == ()
    assert set(played.memory.queue) == {b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"}
    played.work(want=1)
    assert names(played.worker.state.ready) == "h"


def test_finished_after_its_children() -> None:
    """A request is acknowledged with the sync that leases its last child."""
    played = Played(batch_size=2)
    played.offer("a")
    played.work(want=1)
    played.work(want=1)
    assert played.worker.take() == QueueEntry(0, b"a")
    played.offer(*"bcd")
    played.worker.finish(b"a")
    played.syncs.clear()
    played.work()
    assert [(names(each.leases), each.acks) for each in played.syncs] == [("bc", ()), ("d", (b"a",)), ("", ())]


def test_receipts() -> None:
    """A receipt is due once all requests offered before it are in Redis, and not earlier."""
    played = Played()
    told: list[str] = []
    played.offer("a")
    played.worker.ask_for_receipt(lambda: told.append("a"))
    assert played.worker.take_receipts() == []
    played.step()
    (receipt,) = played.worker.take_receipts()
    receipt.call()
    assert told == ["a"]
    assert b"a" in played.memory.leases["one"]
    played.work()
    assert played.worker.take_receipts() == []


def test_share() -> None:
    """A worker takes at most its share, and leaves one for a starting worker."""
    played = Played()
    played.offer(*"abcdefghij")
    played.work()
    played.work(want=8)
    assert names(played.worker.state.ready) == "abcde"


@pytest.mark.parametrize("ending", Ending)
def test_end(ending: Ending) -> None:
    """The last worker closes the queue, or keeps it."""
    played = Played()
    played.offer("a")
    played.work()
    played.worker.leave(ending)
    operations = []
    while played.worker.phase is not Phase.GONE:
        operations.append(type(played.step()))
    assert operations[0] is Leave
    assert (ReleaseFilter in operations) == (ending is Ending.STOPPED)
    assert played.memory.workers == {}
    assert set(played.memory.queue) == (set() if ending is Ending.STOPPED else {b"a"})


def test_waits_while_another_closes() -> None:
    """A starting worker tries to join until the queue is closed."""
    memory = QueueMemory()
    memory.workers["other"] = "5 0 0 closing"
    worker = QueueWorker("one", "5", 10)
    phases = []
    for _ in range(3):
        operation = worker.next_operation()
        assert isinstance(operation, Join)
        worker.receive_reply(operation, memory.apply(operation))
        phases.append(worker.phase)
        if len(phases) == 2:
            del memory.workers["other"]
    assert phases == [Phase.JOINING, Phase.JOINING, Phase.JOINED]


@pytest.mark.parametrize("max_deliveries", [0, 3], ids=["no bound", "a death before the last"])
def test_suspects_run_one_at_a_time(max_deliveries: int) -> None:
    """A suspect is started in Redis before it runs, one at a time; other requests run beside it."""
    played = Played(max_deliveries=max_deliveries)
    played.put(a=1, b=1, c=0)
    for _ in range(3):
        played.step(1)
    worker = played.worker
    assert names(worker.state.ready) == "abc"
    assert [each.starts for each in played.syncs] == [(), (b"a",), ()]
    first = worker.take()
    assert first is not None
    assert first.member == b"a"
    beside = worker.take()
    assert beside is not None
    assert beside.member == b"c"
    assert worker.take() is None
    assert not worker.needs_start
    worker.finish(b"a")
    assert worker.take() is None
    for _ in range(2):
        played.step(1)
    second = worker.take()
    assert second is not None
    assert second.member == b"b"
    assert played.memory.deliveries == {b"b": (1, "one")}


def test_suspect_on_its_last_delivery_runs_alone() -> None:
    """It waits until running requests are acknowledged; later ones wait until it is itself."""
    played = Played(max_deliveries=3)
    played.put(a=0, b=2, c=0, d=0, e=0, f=0)
    played.step(8)
    worker = played.worker
    assert names(worker.state.ready) == "abc"
    assert played.take() == "a"
    assert played.take() == ""
    # The worker sends nothing meanwhile.
    assert worker.next_operation(8) is None
    played.offer("g", score=9)
    worker.finish(b"a")
    assert not worker.needs_start
    played.work()
    assert worker.needs_start
    assert played.memory.deliveries == {b"b": (2, "")}
    played.step(8)
    assert played.syncs[-1].starts == (b"b",)
    assert played.syncs[-1].want == 0
    assert played.memory.deliveries == {b"b": (2, "one")}
    assert played.take() == "b"
    assert played.take() == ""
    assert worker.next_operation(8) is None
    worker.finish(b"b")
    assert played.take() == ""
    played.work()
    assert played.memory.deliveries == {}
    assert played.take() == "c"


def test_suspect_that_runs_alone_waits_for_unreadable_ones() -> None:
    """An unreadable request is a dead letter in Redis before a suspect runs alone."""
    played = Played(max_deliveries=2)
    played.put(a=0, b=1)
    played.work(2)
    played.work(2)
    assert played.take() == "a"
    played.worker.dead_letter(b"a")
    assert not played.worker.needs_start
    played.step(2)
    assert played.worker.needs_start


def test_started_suspect_behind_one_that_runs_alone() -> None:
    """A started suspect goes first, although the same sync took another that runs alone."""
    played = Played(max_deliveries=3)
    played.put(b=1)
    played.step(1)
    played.memory.queue, played.memory.deliveries[b"a"] = {b"a": -1.0}, (2, "")
    played.step(1)
    assert names(played.worker.state.ready) == "ab"
    assert played.take() == "b"
    assert played.take() == ""
    played.worker.finish(b"b")
    played.work()
    assert played.worker.needs_start


def test_expired_while_a_suspect_runs_alone() -> None:
    """A worker presumed dead continues to run the suspect alone."""
    played = Played(max_deliveries=2)
    played.put(a=1, b=0, c=0)
    for _ in range(2):
        played.step(2)
    played.step(2)
    assert names(played.worker.state.ready) == "a"
    assert played.take() == "a"
    played.expire()
    assert played.memory.dead_letters == {b"a": 0.0}
    assert played.worker.next_operation(8) is None
    played.worker.finish(b"a")
    played.step(8)
    assert played.syncs[-1].acks == (b"a",)
    assert names(played.worker.state.ready) == "b"


def test_deaths_that_an_expired_worker_does_not_know() -> None:
    """Other workers may have died with its leases: its ready suspect runs alone from then on."""
    played = Played(max_deliveries=5)
    played.put(a=0, b=1, c=1)
    while len(played.worker.state.ready) < 3:
        played.step(1)
    assert (played.take(), played.take()) == ("a", "")
    assert played.worker.needs_start
    played.expire()
    assert not played.worker.needs_start
    played.worker.finish(b"a")
    played.work()
    assert played.worker.needs_start


def test_suspect_that_leads_to_itself() -> None:
    """It runs alone until its acknowledgement, which waits until the filter has checked an equal request."""
    played = Played(max_deliveries=2)
    played.put(a=1, b=0, c=0, d=0)
    for _ in range(2):
        played.step(2)
    assert names(played.worker.state.ready) == "ab"
    assert played.take() == "a"
    played.offer("a")
    played.worker.finish(b"a")
    played.step()
    assert played.worker.state.finished == {}
    assert played.memory.deliveries == {b"a": (1, "one")}
    assert played.take() == ""
    played.worker.receive_filter_reply(AskFilter(played.worker.state.to_check), [False])
    assert played.take() == ""
    played.work()
    assert played.memory.deliveries == {}
    assert played.take() == "b"


def test_start_whose_reply_is_lost() -> None:
    """No request runs until the worker knows whether a suspect that runs alone was started."""
    played = Played(max_deliveries=2)
    played.put(a=1, b=0, c=0, d=0)
    played.step(2)
    assert names(played.worker.state.ready) == "ab"
    sync = played.worker.next_operation(2)
    assert isinstance(sync, Sync)
    assert sync.starts == (b"a",)
    played.memory.apply(sync)
    played.worker.lose_reply(sync)
    assert played.take() == ""
    assert isinstance(played.step(2), ResolveInDoubt)
    assert (played.take(), played.take()) == ("a", "")


def test_suspect_goes_back_unstarted() -> None:
    """A stopping worker starts no request, and returns the ready ones."""
    played = Played()
    played.memory.queue, played.memory.deliveries = {b"a": 0.0}, {b"a": (1, "")}
    played.step(1)
    assert played.worker.needs_start
    played.worker.stop()
    played.work()
    assert played.memory.queue == {b"a": 0.0}
    assert played.memory.deliveries == {b"a": (1, "")}
    assert not played.worker.has_news


def test_started_suspect_that_is_outranked() -> None:
    """A started suspect that goes back before it runs is started again later."""
    played = Played()
    played.memory.queue, played.memory.deliveries = {b"a": 1.0}, {b"a": (1, "")}
    for _ in range(2):
        played.step(1)
    assert played.syncs[-1].starts == (b"a",)
    played.offer("first", score=0)
    played.work()
    assert played.memory.queue == {b"a": 1.0, b"first": 0.0}
    # A suspect taken again is not started: a death by another request does not count for it.
    played.step(2)
    played.step(2)
    assert (played.memory.leases["one"], played.memory.deliveries) == ({b"a": 1.0, b"first": 0.0}, {b"a": (1, "")})
    runs: list[bytes] = []
    while len(runs) < 2:
        played.step(1)
        entry = played.worker.take()
        if entry is not None:
            runs.append(entry.member)
            played.worker.finish(entry.member)
    assert runs == [b"first", b"a"]


def test_suspect_waits_for_the_acknowledgement_of_another() -> None:
    """A suspect is started once the last one is acknowledged, not finished: one death, one count."""
    played = Played(batch_size=1)
    played.memory.queue = {b"a": 0.0, b"b": 1.0}
    played.memory.deliveries = {b"a": (1, ""), b"b": (1, "")}
    while not played.worker.can_take:
        played.step(2)
    played.worker.take()
    for child in ("c", "d", "e"):
        played.offer(child, score=5)
    played.worker.finish(b"a")
    while (b"b", (1, "one")) not in played.memory.deliveries.items():
        played.step(2)
        started = [member for member, (_, starter) in played.memory.deliveries.items() if starter]
        assert len(started) <= 1


def test_dead_letter_that_was_fetched_after_all() -> None:
    """A dead letter that a link queues again ceases to be one when it is acknowledged."""
    played = Played()
    played.memory.queue, played.memory.dead_letters = {b"a": 0.0}, {b"a": 0.0}
    played.memory.deliveries = {b"a": (5, "")}
    while not played.worker.can_take:
        played.step(1)
    played.worker.take()
    played.worker.finish(b"a")
    played.work()
    assert played.memory.dead_letters == {}
    assert played.memory.deliveries == {}


def test_leave_whose_reply_was_lost() -> None:
    """A worker that repeats its leave is gone, and no loss is recorded."""
    played = Played()
    played.worker.leave(Ending.KEEP)
    leave = played.worker.next_operation()
    assert isinstance(leave, Leave)
    played.memory.apply(leave)
    played.worker.lose_reply(leave)
    played.step()
    assert played.worker.phase is Phase.GONE
    assert played.memory.audit.loss == 0
