"""A worker's plans: what one exchange carries, and in which order requests go. The rest is searched."""

import pytest

from scrapy_bloom.queue.entries import Finished, OutboxEntry, QueueEntry
from scrapy_bloom.queue.operations import Ending, Join, Leave, Reply, Requeue, ResolveInDoubt, Status, Sync, digests
from scrapy_bloom.queue.sync import AdaptiveWindow, AskFilter, ReleaseFilter, UseFilter
from scrapy_bloom.queue.worker import QueueWorker
from scrapy_bloom.queue.worker_state import Phase
from tests.support.queue_memory import QueueMemory


class Played:
    """A worker over a queue in memory, and a filter that takes everything for new."""

    def __init__(self, batch_size: int = 10, max_deliveries: int = 0) -> None:
        self.memory = QueueMemory()
        self.worker = QueueWorker("one", "5", batch_size, max_deliveries=max_deliveries)
        self.syncs: list[Sync] = []
        self.work()

    def step(self, want: int = 0) -> object:
        """Carry out what the worker does next."""
        operation = self.worker.next_operation(want)
        match operation:
            case None:
                pass
            case AskFilter():
                self.worker.receive_filter_reply(operation, [True] * len(operation.entries))
            case UseFilter() | ReleaseFilter():
                self.worker.receive_reply(operation, Reply(Status.OK))
            case _:
                if isinstance(operation, Sync):
                    self.syncs.append(operation)
                self.worker.receive_reply(operation, self.memory.apply(operation))
        return operation

    def work(self, want: int = 0) -> None:
        """Carry out all that there is to do."""
        while self.worker.has_news or want:
            self.step(want)
            want = 0

    def put(self, **deaths: int) -> None:
        """Have requests in the queue, in this order, with which so many workers have died."""
        self.memory.queue = {name.encode(): float(score) for score, name in enumerate(deaths)}
        self.memory.deliveries = {name.encode(): (number, "") for name, number in deaths.items() if number}

    def take(self) -> str:
        """Return what the engine gets now, if anything."""
        entry = self.worker.take()
        return "" if entry is None else entry.member.decode()

    def expire(self) -> None:
        """Have others take the worker for dead, and let it go on."""
        self.memory.apply(Join("other", "5", 0, is_new=True))
        self.memory.apply(
            Requeue("other", "one", self.memory.workers["one"], "5", 0, self.worker.state.suspects.max_deliveries)
        )
        self.worker.receive_reply(ResolveInDoubt("one", 1, None), Reply(Status.EXPIRED))
        self.work()

    def offer(self, *names: str, score: float = 0, size: int = 1) -> None:
        """Offer requests of so many bytes."""
        for name in names:
            self.worker.offer(OutboxEntry(name.encode().ljust(size, b"."), score, name.encode()))


def names(entries: tuple[QueueEntry, ...]) -> str:
    """Return members, as one text."""
    return "".join(entry.member.decode() for entry in entries)


def test_a_batch_is_queued() -> None:
    """An entry that is offered is leased, asked for, and pushed, and leased no more."""
    played = Played()
    played.offer("a", "b")
    played.work()
    assert [names(each.leases) + ">" + names(each.pushes) for each in played.syncs] == ["ab>", ">ab"]
    assert played.memory.queue == {b"a": 0, b"b": 0}
    assert played.memory.leases == {"one": {}}
    assert played.worker.is_idle


def test_batches_are_bounded() -> None:
    """By their number, and by their bytes; a larger request goes alone."""
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


def test_new_ones_that_wait_stay_leased() -> None:
    """A new entry that does not fit stays leased, although an equal request is acknowledged in that exchange."""
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
    """Until it gets through; then batches grow again."""
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
    """Its reply was not waited for: the next ones are small enough, though it was carried out."""
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
    """Requests that are finished, repeats, those that nobody can read and those given back count, too.

    A request that nobody can read goes over the link twice, as one to set aside and as one that is over.
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
    """Those that go last are given back first; a worker that stops goes on with that."""
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
    """A reply that does not come in time may have been too large: half as many are taken the next time."""
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
    """It names what is leased only if the exchange took something, and one that leaves much leased takes nothing."""
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
    """The filter is asked for half as many after a reply that did not come in time."""
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
    """Each request counts once that is to be leased again, also if the filter is to be asked for it, too."""
    played = Played()
    played.offer(*"abcde")
    played.step()
    played.worker.receive_reply(ResolveInDoubt("one", 1, None), Reply(Status.EXPIRED))
    assert sorted(entry.member for entry in played.worker.undelivered()) == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("is_in_doubt", [False, True], ids=["before the exchange", "its reply is lost"])
def test_undelivered_after_the_filter_has_answered(is_in_doubt: bool) -> None:
    """A request that the filter called new and that is not queued yet is undelivered, and the filter may know it."""
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
    """A request that the filter was asked for is undelivered, and unsure if the reply was lost."""
    played = Played()
    played.offer("a")
    played.step()
    question = played.worker.next_operation()
    assert isinstance(question, AskFilter)
    assert [entry.is_unsure for entry in played.worker.undelivered()] == [False]
    played.worker.lose_reply(question)
    assert [(entry.member, entry.is_unsure) for entry in played.worker.undelivered()] == [(b"a", True)]


def test_what_goes_first() -> None:
    """A request that goes before what was taken ahead has that given back; an equal one does not."""
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
    """A request is acknowledged with the exchange that leases the last of what it led to."""
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
    """Somebody who asks for it is told when what was offered before is in Redis, and not earlier."""
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
    """A worker takes no more than its share, one of which is left for a worker that begins."""
    played = Played()
    played.offer(*"abcdefghij")
    played.work()
    played.work(want=8)
    assert names(played.worker.state.ready) == "abcde"


@pytest.mark.parametrize("ending", Ending)
def test_end(ending: Ending) -> None:
    """The last worker closes the queue, or leaves it as it is."""
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
    """A worker that begins asks again until the queue is closed."""
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
    """A suspect is started in Redis before it runs, and the next one behind it; other requests run beside them."""
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
    """It waits for what runs and for its acknowledgement, and all that is behind it waits for its own."""
    played = Played(max_deliveries=3)
    played.put(a=0, b=2, c=0, d=0, e=0, f=0)
    played.step(8)
    worker = played.worker
    assert names(worker.state.ready) == "abc"
    assert played.take() == "a"
    assert played.take() == ""
    # Nothing is asked of Redis meanwhile.
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
    """A request that is set aside is known as a dead letter before a suspect runs alone."""
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
    """A suspect that was started goes first, although one that is to run alone was taken with that exchange."""
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
    """A worker that was taken for dead goes on with it alone."""
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
    """Others may have died with what it held: a suspect that was ready runs alone then."""
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
    """It runs alone until it is acknowledged, which an equal request that waits for the filter puts off."""
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
    """Nothing runs until it is known whether a suspect that is to run alone was started."""
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
    """A worker that stops starts nothing, and gives back what it had taken."""
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
    """A suspect that was started, and goes back before it runs, is started again when it is taken again."""
    played = Played()
    played.memory.queue, played.memory.deliveries = {b"a": 1.0}, {b"a": (1, "")}
    for _ in range(2):
        played.step(1)
    assert played.syncs[-1].starts == (b"a",)
    played.offer("first", score=0)
    played.work()
    assert played.memory.queue == {b"a": 1.0, b"first": 0.0}
    # Taken again, it is not started: the death of this worker by another request does not count for it.
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
    """The next suspect is started when the one before it is acknowledged, not when it is done: one death, one count."""
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
    """A request that is queued again by a link, and is acknowledged, is no dead letter any more."""
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
    """A worker that has left, and asks again, is gone: nothing was lost with its registration."""
    played = Played()
    played.worker.leave(Ending.KEEP)
    leave = played.worker.next_operation()
    assert isinstance(leave, Leave)
    played.memory.apply(leave)
    played.worker.lose_reply(leave)
    played.step()
    assert played.worker.phase is Phase.GONE
    assert played.memory.audit.loss == 0
