"""A worker on the scripts in memory: the sizes of its calls, its share, its rounds, and what a reply tells.

The search in `tests/queue` covers the promises.
"""

from collections.abc import Callable
from typing import Any

import pytest

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.messages import Call, Offer, Outcome
from scrapy_bloom.queue.queue import MAX_BYTES
from scrapy_bloom.queue.worker import SETTLING
from tests.support.driven import Driven, in_memory
from tests.support.script_server import ScriptServer

KEYS = QueueKeys("queue")
HEARTBEAT = Call("heartbeat", (0,))


@pytest.fixture
def server() -> ScriptServer:
    """A server in memory."""
    return ScriptServer()


@pytest.fixture
def driven(server: ScriptServer) -> Driven:
    """A worker."""
    return Driven("one", in_memory(server))


def leased(server: ScriptServer, worker: str = "one", queue: str = "queue") -> int:
    """Return the number of a worker's leases."""
    return sum(server.call("ZCARD", name) for name in QueueKeys(queue).of_worker(worker))


def rejoins(driven: Driven) -> list[str]:
    """Execute calls until there is no news; return the reasons of rejoins."""
    return [received.rejoin for received in driven.work_off() if received.rejoin]


def queued(driven: Driven, server: ScriptServer) -> list[int]:
    """Execute calls until there is no news; return the length of the queue after each."""
    return [server.call("ZCARD", "queue") for _ in iter(driven.step, [])]


# The sizes of calls.


def test_batches_are_bounded(server: ScriptServer) -> None:
    """A sync offers a batch at most, and a megabyte at most; a larger request goes alone."""
    driven = Driven("one", in_memory(server), batch=3)
    driven.work_off()
    driven.offer(*(b"%d" % number for number in range(7)))
    assert queued(driven, server) == [3, 6, 7]
    driven.offer(*(name * (MAX_BYTES // 2 + 1) for name in (b"a", b"b", b"c")), b"d" * (2 * MAX_BYTES), b"e")
    assert queued(driven, server) == [8, 9, 10, 11, 12]


def size_of(driven: Driven, want: int = 0) -> int:
    """Return the bytes of the next call, and execute it."""
    ((index, call),) = driven.worker.next_calls(want, driven.now)
    driven.worker.receive(index, call, driven._send("one", index, call))
    return sum(len(each) for each in call.arguments if isinstance(each, bytes))


def test_all_lists_share_the_bytes(driven: Driven) -> None:
    """So do the requests that a sync requeues, acknowledges and takes."""
    large = [name * (MAX_BYTES // 2 + 1) for name in (b"a", b"b", b"c", b"d")]
    driven.offer(*large)
    driven.work_off()
    sizes = [size_of(driven, 4) for _ in large]
    taken = [entry.member for entry in iter(driven.worker.take, None)]
    assert (len(taken), max(sizes) < 1000) == (4, True)
    for member in taken[:2]:
        driven.worker.finish(member)
    assert all(
        size < 0.6 * MAX_BYTES for size in iter(lambda: size_of(driven) if driven.worker.queues[0].finished else 0, 0)
    )
    driven.offer(b"e" * MAX_BYTES)
    driven.worker.stop()
    for member in taken[2:]:
        driven.worker.queues[0].requeued.append(driven.worker.running[member].entry)
    assert [size_of(driven) < 1.1 * MAX_BYTES for _ in range(3)] == [True] * 3
    assert driven.work_off() == []


def test_a_batch_that_does_not_get_through_is_halved(driven: Driven, server: ScriptServer) -> None:
    """After each lost reply less is offered; each reply lets it grow again."""
    driven.work_off()
    driven.offer(*(b"%d" % number + b"x" * (MAX_BYTES // 8) for number in range(8)))
    sizes = []
    for _ in range(5):
        ((_, call),) = driven.lose(16, is_executed=False)
        sizes.append(sum(len(each) for each in call.arguments if isinstance(each, bytes)) // (MAX_BYTES // 8))
    assert sizes == [7, 3, 1, 1, 1]
    assert queued(driven, server)[-1] == 8


def test_share(server: ScriptServer) -> None:
    """A worker holds no more than its share of all that wait or are leased, rounded up, with any number of calls."""
    one, two, three = (Driven(name, in_memory(server)) for name in ("one", "two", "three"))
    for driven in (one, two, three):
        assert driven.take() == []  # one that takes nothing for three seconds has no share
    one.offer(*(b"%d" % number for number in range(41)))
    one.work_off()
    assert [len(driven.take(want)) for driven in (one, two) for want in (5, 16, 16)] == [5, 9, 0, 5, 9, 0]
    for member in [*one.worker.running][:12]:
        one.worker.finish(member)
    assert len(one.take(16)) == 8  # of 29 at three workers, and it holds two
    assert one.take(16) == []
    server.time += 3_100_000
    assert len(one.take(16)) == 5  # the others are silent


# Lost replies.


@pytest.mark.parametrize("is_executed", [False, True])
def test_a_sync_whose_reply_was_lost(driven: Driven, is_executed: bool) -> None:
    """It is executed once; the next one, which may carry less, gets its reply or does its work."""
    driven.work_off()
    driven.offer(b"a", b"b")
    driven.lose(1, is_executed=is_executed)
    driven.offer(b"c")
    found = [(offer.member, is_new) for received in driven.work_off() for offer, is_new in received.offers]
    assert found == [(b"a", True), (b"b", True), (b"c", True)]
    assert [entry.member for entry, _ in driven.worker.ready] == [b"a"] * is_executed


@pytest.mark.parametrize("is_executed", [False, True])
def test_a_local_request_whose_reply_was_lost(driven: Driven, server: ScriptServer, is_executed: bool) -> None:
    """It runs once, also if the server has lost the worker's record meanwhile."""
    driven.work_off()
    driven.worker.offer(Offer(9.0, b"local", b"local", "a request"))
    driven.lose(is_executed=is_executed)
    server.call("DEL", KEYS.workers)
    driven.work_off()
    assert [entry.member for entry in iter(driven.worker.take, None)] == [b"local"]
    assert not server.call("EXISTS", "queue")


@pytest.mark.parametrize("is_executed", [False, True])
def test_a_join_whose_reply_was_lost(server: ScriptServer, is_executed: bool) -> None:
    """It is sent again, and flushes once."""
    Driven("earlier", in_memory(server)).work_off()
    driven = Driven("one", in_memory(server), flush=True)
    driven.lose(is_executed=is_executed)
    server.call("ZADD", "queue", 0, "queued by another worker")
    driven.step()
    assert (driven.worker.queues[0].crawl.origin, driven.worker.queues[0].news.waiting) == (b"flush", int(is_executed))


@pytest.mark.parametrize("is_executed", [False, True])
def test_a_leave_whose_reply_was_lost(driven: Driven, is_executed: bool) -> None:
    """It is sent again, and the crawl is gone."""
    driven.work_off()
    driven.worker.leave("finished")
    driven.lose(is_executed=is_executed)
    driven.step()
    assert (driven.worker.has_left, driven.worker.queues[0].is_gone) == (True, True)


# What a rejoin says, and what is done about it.


def flushed(server: ScriptServer) -> None:
    """Another worker starts over."""
    Driven("two", in_memory(server), flush=True).work_off()


def reaped(server: ScriptServer, **terms: Any) -> Driven:
    """Another worker presumes this one dead; return it."""
    other = Driven("two", in_memory(server), lease=1000, **terms)
    other.work_off()
    server.time += 61_000_000
    for index in range(len(other.queues)):
        in_memory(server)("two", index, HEARTBEAT)
    return other


def end(server: ScriptServer, mode: str = "finished", **terms: Any) -> None:
    """Another worker presumes this one dead, and ends the crawl."""
    other = reaped(server, **terms)
    while taken := other.take(9):
        for member in taken:
            other.worker.finish(member)
        other.now += SETTLING
    other.leave(mode)
    assert not server.call("EXISTS", KEYS.crawl)


def lose(*names: str) -> Callable[[ScriptServer], None]:
    """Return a function that deletes keys."""
    return lambda server: server.call("DEL", *names)


REASONS: dict[str, Callable[[ScriptServer], object]] = {
    "flush": flushed,
    "dead": reaped,
    "ended": end,
    "behind": lose(KEYS.workers),
    "gone": lose(KEYS.crawl),
    "leases": lose(*KEYS.of_worker("one")),
    "filter": lose(KEYS.dupefilter),
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_rejoin(reason: str, driven: Driven, server: ScriptServer) -> None:
    """A worker learns why it must join again, and requeues all that it holds: of these nothing is lost."""
    driven.offer(b"ready", b"running", b"finished", b"last")
    assert len(driven.take(2)) == 2
    driven.step(2)
    taken = [*driven.worker.running]
    driven.worker.finish(taken[0])
    REASONS[reason](server)
    driven.offer(b"link")
    assert rejoins(driven) == [reason]
    held = set(server.call("ZRANGE", "queue", 0, -1)) | {entry.member for entry, _ in driven.worker.ready}
    assert held >= {b"link", *taken, *([] if reason == "flush" else [b"ready", b"last"])}
    driven.worker.finish(taken[1])  # it waits in the queue again, and is not acknowledged
    driven.work_off()
    assert taken[1] in server.call("ZRANGE", "queue", 0, -1)


def test_presumed_dead_without_its_leases(driven: Driven, server: ScriptServer) -> None:
    """Nothing waits for it in the queue: it requeues what it holds."""
    driven.offer(b"a", b"b")
    assert sorted(driven.take(2)) == [b"a", b"b"]
    driven.step()
    lose(*KEYS.of_worker("one"))(server)
    reaped(server)
    driven.offer(b"link")
    assert rejoins(driven) == ["dead"]
    assert {*server.call("ZRANGE", "queue", 0, -1)} >= {b"a", b"b"}


def stopped(server: ScriptServer) -> None:
    end(server, "stopped")


def lost_requests(server: ScriptServer) -> None:
    """Redis loses the queue while another worker runs, which finishes the crawl."""
    server.call("DEL", "queue")
    end(server)


def lost_by_another(server: ScriptServer) -> None:
    """A worker that finds a loss leaves when the crawl is finished, and the last one has not heard of it."""
    last, other = reaped(server), Driven("three", in_memory(server))
    while taken := last.take(9):
        for member in taken:
            last.worker.finish(member)
    last.work_off()
    other.offer(b"c")
    other.work_off()
    server.call("DEL", "queue")
    other.leave()
    last.leave()
    assert not server.call("EXISTS", KEYS.crawl)


def lost_all(server: ScriptServer) -> None:
    """Redis loses all data, and another crawl with as many calls of a worker of this name ends."""
    server.call("DEL", *server._values)
    namesake = Driven("one", in_memory(server))
    for _ in range(9):
        namesake.offer(b"a")
        namesake.work_off()
    end(server)
    assert server.call("EXISTS", KEYS.ended)


@pytest.mark.parametrize("lose", [stopped, lost_requests, lost_by_another, lost_all])
def test_a_crawl_that_others_ended_with_a_loss(
    lose: Callable[[ScriptServer], None], driven: Driven, server: ScriptServer
) -> None:
    """A worker that was presumed dead cannot know that nothing is lost."""
    driven.offer(b"a", b"b")
    assert driven.take() == [b"a"]
    lose(server)
    driven.offer(b"c")
    assert rejoins(driven) == ["gone"]


def test_a_crawl_that_others_ended_after_a_failover(driven: Driven, server: ScriptServer) -> None:
    """So if the server has lost calls of the worker."""
    driven.work_off()
    earlier = server.copy()
    driven.offer(b"a")
    driven.work_off()
    end(earlier)
    driven._send = in_memory(earlier)
    assert earlier.call("EXISTS", KEYS.ended)
    driven.offer(b"b")
    assert rejoins(driven) == ["gone"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_crawl_in_partitions_that_others_ended(is_lost: bool, server: ScriptServer) -> None:
    """The first partition tells of a loss of the second one, too."""
    driven = Driven("one", in_memory(server), queues=2)
    driven.offer(*(b"%d" % number for number in range(9)))
    driven.take()
    if is_lost:
        server.call("DEL", "queue1")
    end(server, queues=2)
    driven.step(9)
    assert server.call("EXISTS", KEYS.ended) == 0**is_lost


def test_start_requests_after_a_rollback(server: ScriptServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones are offered again, and the worker knows if it remembers too few."""
    monkeypatch.setattr("scrapy_bloom.queue.worker.MAX_STARTS", 2)
    driven = Driven("one", in_memory(server))
    driven.work_off()
    earlier = server.copy()
    for member in (b"0", b"1", b"2"):
        driven.worker.offer(Offer(0, member, member), is_start=True)
    driven.work_off()
    driven._send = in_memory(earlier)
    driven.offer(b"link")
    assert rejoins(driven) == ["behind"]
    assert driven.worker.forgets_starts
    assert earlier.call("ZRANGE", "queue", 0, -1) == [b"1", b"2", b"link"]


def test_start_requests_of_a_worker_that_was_presumed_dead(driven: Driven, server: ScriptServer) -> None:
    """They are not: the server has lost nothing."""
    driven.worker.offer(Offer(0, b"a", None), is_start=True)
    assert driven.take() == [b"a"]
    driven.worker.finish(b"a")
    driven.work_off()
    reaped(server)
    driven.offer(b"link")
    assert rejoins(driven) == ["dead"]
    assert server.call("ZRANGE", "queue", 0, -1) == [b"link"]


# Losses of the queue.


def test_a_queue_that_others_take_from(driven: Driven, server: ScriptServer) -> None:
    """Each request that another client takes is lost for the workers, and counted once."""
    driven.offer(b"a", b"b", b"c")
    driven.work_off()
    server.call("ZREM", "queue", "b")
    driven.offer(b"d")
    driven.work_off()
    assert driven.worker.queues[0].news[1:3] == (1, 1)
    server.call("DEL", "queue")
    driven.step(1)
    assert driven.worker.queues[0].news[1:3] == (2, 4)


def test_a_queue_that_another_scheduler_has_emptied(driven: Driven, server: ScriptServer) -> None:
    """Without the note of waiting requests, which the dupefilter of scrapy-redis's scheduler deletes, none is lost."""
    driven.offer(b"a", b"b")
    driven.leave("keep")
    server.call("HDEL", KEYS.crawl, "waiting")
    server.call("DEL", "queue")
    other = Driven("other", in_memory(server))
    other.offer(b"c")
    other.work_off()
    assert other.worker.queues[0].news[:2] == (1, 0)


def test_a_failed_request_is_kept(driven: Driven, server: ScriptServer) -> None:
    """It has its run, score and fingerprint, and stays beyond the crawl."""
    driven.offer(b"a")
    assert driven.take() == [b"a"]
    driven.worker.finish(b"a", Outcome.FAILED)
    driven.leave()
    assert server.call("HGETALL", KEYS.failed) == [b"a", driven.worker.queues[0].crawl.run + b" 0.0 a"]


def test_a_late_join_leaves_nothing_for_ever(driven: Driven, server: ScriptServer) -> None:
    """The keys of a join expire, until the shards of the filter are there, which do not, and until the first sync."""

    def lasting() -> set[str]:
        names = (KEYS.crawl, KEYS.workers, KEYS.dupefilter)
        return {name for name in names if server.call("PTTL", name) == -1}

    while not server.call("EXISTS", KEYS.workers):
        driven.step()
    assert lasting() == set()
    driven.step()
    assert lasting() == {KEYS.dupefilter}
    driven.offer(b"a")
    driven.work_off()
    assert lasting() == {KEYS.crawl, KEYS.workers, KEYS.dupefilter}


def test_a_filter_outlives_its_items(server: ScriptServer) -> None:
    """A filter with a TTL whose items have all expired is no lost one, while its worker beats."""
    driven = Driven("one", in_memory(server), lease=10, parameters=FilterParameters(1000, 1e-12, ttl=1.0))
    driven.offer(b"a")
    driven.work_off()
    for _ in range(9):
        server.time += 3_000_000
        in_memory(server)("one", 0, HEARTBEAT)
    driven.offer(b"b")
    assert rejoins(driven) == []


# A stop.


def test_what_has_not_begun_is_given_back(driven: Driven, server: ScriptServer) -> None:
    """It waits again after the next sync, is leased until then, and its end acknowledges nothing."""
    driven.offer(b"a", b"b")
    assert driven.take(2) == [b"a", b"b"]
    driven.worker.stop()
    driven.worker.give_back(b"a")
    assert (leased(server), server.call("ZCARD", "queue")) == (2, 0)
    driven.worker.finish(b"a")
    driven.worker.finish(b"b")
    driven.work_off()
    assert (leased(server), server.call("ZRANGE", "queue", 0, -1)) == (0, [b"a"])


@pytest.mark.parametrize("is_early", [False, True])
def test_given_back_by_a_worker_that_was_presumed_dead(driven: Driven, server: ScriptServer, is_early: bool) -> None:
    """The other worker has it, and gets it once, whether it was given back before or after the loss of the lease."""
    driven.offer(b"a")
    driven.take()
    if is_early:
        driven.worker.give_back(b"a")
    reaped(server)
    other = Driven("two", in_memory(server))
    assert other.take() == [b"a"]
    driven.worker.stop()
    driven.offer(b"link")
    driven.work_off()
    if not is_early:
        driven.worker.give_back(b"a")
    driven.worker.finish(b"a")
    driven.work_off()
    assert driven.worker.is_idle
    other.worker.finish(b"a")
    other.work_off()
    assert leased(server, "two") == 0


def test_a_local_request_that_was_given_back(driven: Driven) -> None:
    """It is dropped and counted, as one that was ready."""
    driven.worker.offer(Offer(9.0, b"local", b"local", "a request"))
    assert driven.take() == [b"local"]
    driven.worker.stop()
    driven.worker.give_back(b"local")
    driven.worker.finish(b"local")
    assert (driven.worker.dropped, driven.worker.is_idle) == (1, True)


# Several queues.


def test_rounds(server: ScriptServer) -> None:
    """A page is acknowledged in a round that begins two seconds after the one that followed its links."""
    driven = Driven("one", in_memory(server), queues=3)
    driven.offer(*(b"%d" % number for number in range(9)))
    driven.work_off()
    driven.step(9)
    taken = [entry.member for entry in iter(driven.worker.take, None)]
    driven.worker.finish(taken[0])
    held = sum(leased(server, queue=f"queue{index or ''}") for index in range(3))
    counts = []
    for _ in range(8):
        driven.now += 0.6
        driven.step()
        counts.append(sum(leased(server, queue=f"queue{index or ''}") for index in range(3)))
    when = counts.index(held - 1)
    assert counts == [held] * when + [held - 1] * (8 - when)
    assert 0.6 * when >= SETTLING


def test_a_stop_does_not_wait(server: ScriptServer) -> None:
    """A worker that stops acknowledges its pages at once, in all queues."""
    driven = Driven("one", in_memory(server), queues=3)
    driven.offer(*(b"%d" % number for number in range(9)))
    driven.work_off()
    driven.step(9)
    for member in [entry.member for entry in iter(driven.worker.take, None)]:
        driven.worker.finish(member)
    driven.worker.stop()
    driven.leave("keep")
    assert sum(server.call("ZCARD", f"queue{index or ''}") for index in range(3)) < 9
    assert sum(leased(server, queue=f"queue{index or ''}") for index in range(3)) == 0
