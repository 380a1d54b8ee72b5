"""The calls of a worker: contents, sizes and order, on the scripts in memory. Searches cover the other properties."""

import pytest

from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.values import Offer, Outcome, Phase, Trouble
from scrapy_bloom.queue.worker import MAX_BYTES
from tests.support.driven import Driven, in_memory
from tests.support.script_server import ScriptServer

KEYS = QueueKeys("queue")


@pytest.fixture
def server() -> ScriptServer:
    """A server in memory."""
    return ScriptServer()


@pytest.fixture
def driven(server: ScriptServer) -> Driven:
    """A worker."""
    return Driven("one", in_memory(server))


def test_batches_are_bounded(server: ScriptServer) -> None:
    """An exchange offers a batch at most, and hardly more than a megabyte; a large request goes alone."""
    driven = Driven("one", in_memory(server), batch=3)
    driven.work_off()
    driven.offer(*(b"%d" % number for number in range(7)))
    assert [call.arguments[8] for call in driven.work_off()] == [3, 3, 1]
    for name in (b"a", b"b", b"c"):
        driven.offer(name * (MAX_BYTES // 2 + 1))
    driven.offer(b"d" * (2 * MAX_BYTES), b"e")
    assert [call.arguments[8] for call in driven.work_off()] == [1, 1, 1, 1, 1]
    assert server.call("ZCARD", "queue") == 12


def test_a_batch_that_does_not_get_through_is_halved(driven: Driven, server: ScriptServer) -> None:
    """After each lost reply less is offered and wanted; each reply lets it grow again."""
    driven.work_off()
    driven.offer(*(b"%d" % number + b"x" * (MAX_BYTES // 8) for number in range(8)))
    found = []
    for _ in range(6):
        call = driven.worker.next_call(16)
        assert call
        found.append((call.arguments[8], call.arguments[5]))
        driven.worker.lose()
    assert found == [(7, 16), (3, 8), (1, 4), (1, 2), (1, 1), (1, 1)]
    driven.work_off()
    assert server.call("ZCARD", "queue") == 8


def test_finished_after_its_links(server: ScriptServer) -> None:
    """A page is acknowledged in the exchange with its last link, and no earlier."""
    driven = Driven("one", in_memory(server), batch=1)
    driven.offer(b"page")
    assert driven.take() == [b"page"]
    driven.offer(b"first", b"last")
    driven.worker.finish(b"page")
    driven.offer(b"another")
    assert [call.ended for call in driven.work_off()] == [(), (b"page",), ()]


def test_receipts(server: ScriptServer) -> None:
    """Who waits for requests to be queued is called once all are answered."""
    driven = Driven("one", in_memory(server), batch=2)
    driven.work_off()
    driven.offer(b"a", b"b")
    driven.worker.call_when_queued(list)
    driven.offer(b"c")
    driven.worker.call_when_queued(dict)
    assert driven.worker.take_receipts() == []
    driven.step()
    assert driven.worker.take_receipts() == [list]
    driven.step()
    assert (driven.worker.take_receipts(), driven.worker.take_receipts()) == ([dict], [])


def test_local_requests_go_first(server: ScriptServer) -> None:
    """While one is left nothing is acknowledged or marked; once a batch waits for it, only local requests begin."""
    driven = Driven("one", in_memory(server), batch=2)
    driven.offer(b"a", b"b", b"c", b"d")
    worker = driven.worker
    assert driven.take(2) == [b"a", b"b"]
    assert driven.step(2)
    worker.offer(Offer(9.0, b"local", b"local", "a request"))
    worker.finish(b"a")
    assert (worker.is_held_back, worker.has_room) == (False, True)
    worker.finish(b"b")
    assert (worker.is_held_back, worker.has_room) == (True, False)
    assert [call.ended for call in driven.work_off()] == [()]
    assert driven.worker.next_call(16) is None
    assert worker.take() == (9.0, b"local")
    assert worker.take() is None
    assert not worker.offer(Offer(9.0, b"again", b"local", "a request"))
    worker.offer(Offer(0.0, b"link", b"link"))
    worker.finish(b"local")
    assert (worker.is_held_back, worker.has_room) == (False, True)
    (call,) = driven.work_off()
    assert (call.ended, call.marks) == ((b"a", b"b"), (b"local",))
    assert worker.take() == (0.0, b"c")


def test_receipts_wait_for_local_requests(driven: Driven) -> None:
    """Who waits for requests to be queued is called once local ones are done, and their links are answered."""
    driven.work_off()
    driven.worker.offer(Offer(0.0, b"local", b"local", "a request"))
    driven.worker.call_when_queued(list)
    driven.work_off()
    assert driven.worker.take()
    assert driven.worker.take_receipts() == []
    driven.offer(b"link")
    driven.worker.finish(b"local")
    assert driven.worker.take_receipts() == []
    driven.work_off()
    assert driven.worker.take_receipts() == [list]


def test_start_waits_for_local_requests(server: ScriptServer) -> None:
    """start() pauses while a batch of local requests waits for the engine."""
    driven = Driven("one", in_memory(server), batch=2)
    driven.work_off()
    for name in (b"a", b"b"):
        assert driven.worker.has_room
        driven.worker.offer(Offer(0.0, name, name, "a request"))
        driven.work_off()
    assert not driven.worker.has_room
    assert driven.worker.take()
    assert driven.worker.has_room


def test_repeats_stay_in_the_process(driven: Driven) -> None:
    """A link that is in the outbox, or that the filter has answered, is not offered again."""
    driven.offer(b"a")
    assert not driven.worker.offer(Offer(0, b"a", b"a"))
    driven.work_off()
    assert not driven.worker.offer(Offer(0, b"a", b"a"))
    assert driven.worker.offer(Offer(0, b"a", None))


def test_order(driven: Driven) -> None:
    """The lowest score goes first, also before requests taken ahead."""
    driven.offer(b"late", b"later", score=5)
    driven.offer(b"soon", score=-1)
    driven.work_off()
    driven.step(2)
    assert [entry.member for entry in driven.worker.ready] == [b"soon", b"late"]
    driven.offer(b"first", score=-7)
    driven.step(1)
    assert [entry.member for entry in driven.worker.ready] == [b"first", b"soon", b"late"]


def test_share(server: ScriptServer) -> None:
    """A worker takes its share, rounded up; one share is left for a worker that joins."""
    one, other = (Driven(name, in_memory(server)) for name in ("one", "other"))
    one.offer(*(b"%d" % number for number in range(10)))
    other.work_off()
    taken = [(one, 16), (other, 16), (one, 2), (one, 16), (one, 16)]
    assert [len(driven.take(number)) for driven, number in taken] == [4, 2, 2, 1, 1]


def test_stop_returns_what_has_not_begun(driven: Driven, server: ScriptServer) -> None:
    """A stopped worker takes nothing, and returns the requests it has taken ahead."""
    driven.offer(*(b"%d" % number for number in range(10)))
    driven.work_off()
    driven.step(4)
    assert driven.worker.take()
    driven.worker.stop()
    assert driven.worker.take() is None
    driven.work_off()
    assert server.call("ZCARD", "queue") == 9


def test_stop_forgets_local_requests(driven: Driven, server: ScriptServer) -> None:
    """A stopped worker returns the pages that may have led to the local requests that it forgets."""
    driven.offer(b"before", b"page", b"other")
    assert [*driven.take(2), *driven.take(1)] == [b"before", b"other", b"page"]
    driven.worker.finish(b"before")
    driven.work_off()
    driven.worker.offer(Offer(0.0, b"local", b"local", "a request"))
    driven.worker.finish(b"page")
    driven.work_off()
    driven.worker.stop()
    driven.work_off()
    assert (driven.worker.forgotten_local, driven.worker.unmarked) == (1, {})
    assert server.call("ZRANGE", "queue", 0, -1) == [b"other", b"page"]


@pytest.mark.parametrize("is_executed", [False, True])
def test_a_leave_whose_reply_was_lost(driven: Driven, server: ScriptServer, is_executed: bool) -> None:
    """It is sent again, and its second reply is no loss."""
    driven.work_off()
    driven.worker.leave("finished")
    call = driven.worker.next_call(0)
    assert call
    if is_executed:
        in_memory(server)("one", call)
    driven.worker.lose()
    driven.step()
    assert (driven.worker.phase, driven.worker.troubles) == (Phase.LEFT, [])
    assert driven.worker.is_deleted is not is_executed


def test_kept_requests_are_queued_by_the_first_worker(driven: Driven, server: ScriptServer) -> None:
    """A failed request is kept with its fingerprint, beyond the crawl, and queued again once."""
    driven.offer(b"a")
    assert driven.take() == [b"a"]
    driven.worker.finish(b"a", Outcome.FAILED)
    driven.leave()
    assert server.call("HGETALL", KEYS.failed) == [b"a", driven.worker.run + b" 0.0 a"]
    both = [Driven(name, in_memory(server)) for name in ("two", "three")]
    for each in both:
        each.worker.queue_again([Offer(0.0, b"a", b"a")])
        each.work_off()
    assert server.call("ZRANGE", "queue", 0, -1) == [b"a"]
    assert not server.call("EXISTS", KEYS.failed)


def test_a_worker_that_joins_tries_unreadable_requests_again(server: ScriptServer) -> None:
    """A request that a worker cannot read is a dead letter, which the next worker finds in the queue."""
    one, other = (Driven(name, in_memory(server)) for name in ("one", "other"))
    one.offer(b"a")
    one.take()
    one.worker.finish(b"a", Outcome.UNREADABLE)
    one.work_off()
    assert server.call("ZRANGE", KEYS.dead_letters, 0, -1) == [b"a"]
    assert other.take() == [b"a"]
    assert not server.call("EXISTS", KEYS.dead_letters)


def test_a_queue_that_others_take_from(driven: Driven, server: ScriptServer) -> None:
    """Each request that another client takes is lost for the workers, and counted once."""
    driven.offer(b"a", b"b", b"c")
    driven.work_off()
    server.call("ZREM", "queue", "b")
    driven.offer(b"d")
    driven.work_off()
    assert (driven.worker.losses, driven.worker.lost) == (1, 1)
    server.call("DEL", "queue")
    driven.step(1)
    assert (driven.worker.losses, driven.worker.lost) == (2, 4)


def test_a_queue_that_another_scheduler_has_emptied(driven: Driven, server: ScriptServer) -> None:
    """Without the note of waiting requests, which the dupefilter of scrapy-redis's scheduler deletes, none is lost."""
    driven.offer(b"a", b"b")
    driven.leave("keep")
    server.call("HDEL", KEYS.crawl, "waiting")
    server.call("DEL", "queue")
    other = Driven("other", in_memory(server))
    other.offer(b"c")
    other.work_off()
    assert (other.worker.losses, other.worker.waiting) == (0, 1)


def test_lost_leases(driven: Driven, server: ScriptServer) -> None:
    """Leases that vanish are no loss while their worker lives, which leases them again."""
    driven.offer(b"a", b"b", b"c", b"d")
    assert driven.take(2) == [b"a", b"b"]
    server.call("DEL", *KEYS.of_worker("one"))
    driven.worker.finish(b"a")
    driven.work_off()
    assert (driven.worker.losses, driven.worker.troubles) == (0, [])
    assert server.call("ZRANGE", KEYS.of_worker("one")[0], 0, -1) == [b"b"]


def test_another_spider_flushes(driven: Driven, server: ScriptServer) -> None:
    """A flush by another worker is told as such, and running requests are offered again."""
    driven.offer(b"a", b"b")
    assert driven.take() == [b"a"]
    Driven("other", in_memory(server), flush=True).work_off()
    driven.offer(b"c")
    driven.work_off()
    assert driven.worker.troubles == [Trouble.FLUSHED]
    assert server.call("ZRANGE", "queue", 0, -1) == [b"c"]


def test_after_an_outage_nobody_is_presumed_dead(server: ScriptServer) -> None:
    """A worker whose own lease has ended presumes no other dead for a lease more: after an outage all leases have."""
    one, two = (Driven(name, in_memory(server), lease=1) for name in ("one", "two"))
    two.offer(b"page")
    assert two.take() == [b"page"]
    one.work_off()
    server.time += 5_000_000
    one.step(1)
    server.time += 900_000
    one.step(1)
    assert one.worker.reaped == []
    # Now the other one is silent, and this one is not.
    server.time += 900_000
    one.step(1)
    assert [dead.worker for dead in one.worker.reaped] == ["two"]
    assert server.call("ZCARD", "queue") == 1


def test_a_dropped_link_is_relied_on(driven: Driven, server: ScriptServer) -> None:
    """A page is fetched again if the cache dropped one of its links, and the filter is lost."""
    driven.offer(b"known", b"page")
    assert [*driven.take(2), *driven.take(2)] == [b"known", b"page"]
    driven.worker.finish(b"known")
    driven.work_off()
    assert driven.worker.is_repeat(b"known")
    server.call("DEL", KEYS.dupefilter)
    driven.worker.finish(b"page")
    driven.work_off()
    assert driven.worker.troubles == [Trouble.FILTER_LOST]
    assert server.call("ZCARD", "queue") == 1


@pytest.mark.parametrize("trouble", [Trouble.FLUSHED, Trouble.LOST])
def test_a_leave_after_the_crawl_is_gone(trouble: Trouble, driven: Driven, server: ScriptServer) -> None:
    """At its end a worker reports a crawl that began anew as such, and any other loss as a loss."""
    driven.work_off()
    if trouble is Trouble.FLUSHED:
        Driven("two", in_memory(server), flush=True).work_off()
    else:
        server.call("DEL", KEYS.crawl)
    driven.worker.leave("stopped")
    driven.step()
    assert driven.worker.troubles == [trouble]


def test_start_requests_of_before_the_last_ones(server: ScriptServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rollback a worker offers the last start requests again, and says so if it remembers too few."""
    monkeypatch.setattr("scrapy_bloom.queue.worker.MAX_STARTS", 2)
    driven = Driven("one", in_memory(server), batch=1)
    driven.work_off()
    earlier = server.copy()
    for member in (b"0", b"1", b"2"):
        driven.worker.offer(Offer(0, member, member), is_start=True)
    driven.work_off()
    driven._send = in_memory(earlier)
    driven.offer(b"link")
    driven.work_off()
    assert driven.worker.troubles == [Trouble.ROLLED_BACK, Trouble.STARTS_LOST]
    assert earlier.call("ZRANGE", "queue", "0", "-1") == [b"1", b"2", b"link"]


def test_an_earlier_crawl_is_no_flush(server: ScriptServer) -> None:
    """A server that goes back to an earlier crawl has lost this one, even if that one began with a flush."""
    Driven("earlier", in_memory(server), flush=True).work_off()
    earlier = server.copy()
    driven = Driven("one", in_memory(server), flush=True)
    driven.work_off()
    driven._send = in_memory(earlier)
    driven.offer(b"link")
    driven.work_off()
    assert driven.worker.troubles == [Trouble.LOST]
