"""A worker on the scripts in memory: the sizes of its batches, what waits, and the losses that it reports.

The searches in `tests/queue` cover the promises.
"""

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


def queued(driven: Driven, server: ScriptServer) -> list[int]:
    """Execute calls until there is no news; return the length of the queue after each."""
    return [server.call("ZCARD", "queue") for _ in iter(driven.step, None)]


def test_batches_are_bounded(server: ScriptServer) -> None:
    """An exchange offers a batch at most, and hardly more than a megabyte; a large request goes alone."""
    driven = Driven("one", in_memory(server), batch=3)
    driven.work_off()
    driven.offer(*(b"%d" % number for number in range(7)))
    assert queued(driven, server) == [3, 6, 7]
    driven.offer(*(name * (MAX_BYTES // 2 + 1) for name in (b"a", b"b", b"c")), b"d" * (2 * MAX_BYTES), b"e")
    assert queued(driven, server) == [8, 9, 10, 11, 12]


def test_a_batch_that_does_not_get_through_is_halved(driven: Driven, server: ScriptServer) -> None:
    """After each lost reply less is offered; each reply lets it grow again."""
    driven.work_off()
    driven.offer(*(b"%d" % number + b"x" * (MAX_BYTES // 8) for number in range(8)))
    sizes = []
    for _ in range(5):
        call = driven.worker.next_call(16)
        assert call
        sizes.append(sum(len(each) for each in call.arguments if isinstance(each, bytes)) // (MAX_BYTES // 8))
        driven.worker.lose()
    assert sizes == [7, 3, 1, 1, 1]
    assert queued(driven, server)[-1] == 8


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
    """While a local request is left nothing is acknowledged; once a batch waits for it, only local requests begin."""
    driven = Driven("one", in_memory(server), batch=2)
    driven.offer(b"a", b"b", b"c", b"d")
    worker, leases = driven.worker, KEYS.of_worker("one")
    assert driven.take(2) == [b"a", b"b"]
    driven.step(2)
    worker.offer(Offer(9.0, b"local", b"local", "a request"))
    for name, is_full in ((b"a", False), (b"b", True)):
        worker.finish(name)
        assert (worker.is_held_back, worker.has_room) == (is_full, not is_full)
    driven.work_off()
    assert sum(server.call("ZCARD", name) for name in leases) == 3
    assert [worker.take(), worker.take()] == [(9.0, b"local"), None]
    assert not worker.offer(Offer(9.0, b"again", b"local", "a request"))
    driven.offer(b"link")
    worker.finish(b"local")
    driven.work_off()
    assert (worker.is_held_back, worker.has_room) == (False, True)
    assert sum(server.call("ZCARD", name) for name in leases) == 1
    assert worker.take() == (0.0, b"c")


@pytest.mark.parametrize("trouble", [Trouble.FLUSHED, Trouble.LOST])
def test_a_crawl_that_is_gone(trouble: Trouble, driven: Driven, server: ScriptServer) -> None:
    """A worker reports a crawl that began anew as such, also as it leaves, and any other loss as a loss.

    A server that goes back to an earlier crawl has lost this one, even if that one began with a flush.
    """
    Driven("earlier", in_memory(server), flush=True).work_off()
    earlier = server.copy()
    driven = Driven("one", in_memory(server), flush=True)
    driven.work_off()
    if trouble is Trouble.FLUSHED:
        Driven("two", in_memory(server), flush=True).work_off()
    else:
        driven._send = in_memory(earlier)
    driven.worker.leave("stopped")
    driven.step()
    assert driven.worker.troubles == [trouble]


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


def test_share(server: ScriptServer) -> None:
    """A worker takes its share, rounded up; one share is left for a worker that joins."""
    one, other = (Driven(name, in_memory(server)) for name in ("one", "other"))
    one.offer(*(b"%d" % number for number in range(10)))
    other.work_off()
    taken = [(one, 16), (other, 16), (one, 2), (one, 16), (one, 16)]
    assert [len(driven.take(number)) for driven, number in taken] == [4, 2, 2, 1, 1]


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
