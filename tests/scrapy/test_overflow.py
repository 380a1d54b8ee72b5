"""Requests yielded while Redis is unreachable: beyond some thousands they wait on disk."""

import errno
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from scrapy import Request

from devtools.waiting import until
from scrapy_bloom import BloomScheduler
from scrapy_bloom._runtime import TUNING
from scrapy_bloom.queue.operations import AskFilter
from scrapy_bloom.spool import file as spool_file
from scrapy_bloom.spool.directory import SpoolDirectory
from tests.support import crawling
from tests.support.in_process import start
from tests.support.servers import Server, running

IN_MEMORY = 20
MANY = 120


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of this test's own that keeps all data when it is killed."""
    with running("valkey", "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def settings(server: Server, key: str, tmp_path: Path) -> dict[str, object]:
    """The settings of a crawl with a job directory."""
    return {
        "DUPEFILTER_CLASS": crawling.BLOOM,
        "REDIS_URL": server.url,
        "SCHEDULER_DUPEFILTER_KEY": key,
        "SCHEDULER_QUEUE_KEY": f"{key}:queue",
        "BLOOMFILTER_CAPACITY": 5000,
        "BLOOMFILTER_ERROR_RATE": 1e-12,
        "BLOOMFILTER_BATCH_SIZE": 10,
        "SCHEDULER_PERSIST": True,
        "JOBDIR": str(tmp_path),
    }


@pytest.fixture
def opened(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> Iterator[BloomScheduler]:
    """A scheduler that keeps few requests in memory."""
    tuning = replace(TUNING, requests_in_memory=IN_MEMORY, disk_batch=7, reactor_seconds=math.inf)
    monkeypatch.setattr(BloomScheduler, "_tuning", tuning)
    scheduler = open_one(settings)
    yield scheduler
    scheduler.close("finished")


def open_one(settings: dict[str, object]) -> BloomScheduler:
    """Open a scheduler."""
    crawler = start(settings)
    scheduler: BloomScheduler = BloomScheduler.from_crawler(crawler)
    assert crawler.spider is not None
    scheduler.open(crawler.spider)
    return scheduler


def enqueue(scheduler: BloomScheduler, *numbers: int) -> None:
    """Yield pages."""
    for number in numbers:
        assert scheduler.enqueue_request(Request(f"https://example.com/{number}"))


def taken_from(scheduler: BloomScheduler) -> set[str]:
    """Take all requests."""
    found: set[str] = set()
    while (request := scheduler.next_request()) is not None:
        found.add(request.url.rpartition("/")[2])
    return found


def files(directory: Path) -> list[Path]:
    """The files of undelivered requests."""
    return list(directory.glob("undelivered-*.jsonl"))


def test_back_from_the_disk(opened: BloomScheduler, server: Server, tmp_path: Path) -> None:
    """Requests from the disk are queued when Redis is back, and their file is deleted."""
    server.kill()
    enqueue(opened, *range(MANY))
    assert len(opened) == MANY
    assert len(opened._worker.state.outbox) == IN_MEMORY
    assert len(files(tmp_path)) == 1
    server.start()
    until(lambda: not opened._dispatcher.breaker.is_open)
    opened.deliver()
    assert files(tmp_path) == []
    assert taken_from(opened) == {str(number) for number in range(MANY)}


def test_finished_when_all_is_in_redis(opened: BloomScheduler, server: Server) -> None:
    """A page is not acknowledged while its links are only on this worker's disk."""
    enqueue(opened, 1000)
    page = opened.next_request()
    assert page is not None
    with server.client() as client:
        leases = opened._requests.keys.leases(opened._worker.name)
        server.kill()
        enqueue(opened, *range(MANY))
        # The engine is done with the page: the tick notices.
        opened._tick()
        assert not opened._worker.state.finished
        server.start()
        until(lambda: not opened._dispatcher.breaker.is_open)
        assert client.zcard(leases) == 1
        opened.deliver()
        opened._tick()
        assert client.zcard(leases) == 0
        assert client.zcard(opened.queue.key) == MANY


def test_not_idle_while_something_is_on_the_disk(
    settings: dict[str, object], server: Server, opened: BloomScheduler
) -> None:
    """A worker is not idle between two portions, even if the last portion held only repeats."""
    other = open_one(settings)
    other.df.filter.add_many(
        [other.df.fingerprint_of(Request(f"https://example.com/{number}")) for number in range(MANY)]
    )
    server.kill()
    enqueue(opened, *range(MANY))
    server.start()
    until(lambda: not opened._dispatcher.breaker.is_open)
    # One step a call, as on a slow link.
    opened._dispatcher._tuning = replace(opened._tuning, reactor_seconds=0)
    until(lambda: not opened.has_pending_requests())
    assert opened._dispatcher.disk_buffer.is_empty
    other.close("finished")


def test_kept_for_a_later_start(
    settings: dict[str, object],
    server: Server,
    tmp_path: Path,
    opened: BloomScheduler,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker that ends in an outage leaves one file, which the next start reads."""
    server.kill()
    enqueue(opened, *range(MANY))
    opened.close("shutdown")
    (file,) = files(tmp_path)
    assert f"Saved {MANY:,} undelivered requests in {file}" in caplog.text
    assert len(file.read_text().splitlines()) == 1 + MANY
    server.start()
    following = open_one(settings)
    assert files(tmp_path) == []
    assert taken_from(following) == {str(number) for number in range(MANY)}
    following.close("finished")


def links_on_the_disk(scheduler: BloomScheduler, server: Server, *links: int) -> None:
    """Yield pages while Redis is unreachable, and then the same links from each of many pages."""
    server.kill()
    enqueue(scheduler, *range(100 * links[0], 100 * links[0] + IN_MEMORY))
    for page in range(30):
        for link in links:
            assert scheduler.enqueue_request(Request(f"https://example.com/{link}", meta={"found on": page}))
    assert len(scheduler._dispatcher.disk_buffer) == 30 * len(links)


def in_order_from(scheduler: BloomScheduler) -> list[int]:
    """Take all requests in order, with repetitions."""
    requests = iter(scheduler.next_request, None)
    return sorted(int(request.url.rpartition("/")[2]) for request in requests)


def test_links_of_every_page_after_a_kill(
    settings: dict[str, object], server: Server, opened: BloomScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link of many pages is fetched once after a kill of the worker with the file."""
    links_on_the_disk(opened, server, 1, 2, 3)
    file = opened._dispatcher.disk_buffer._file
    assert file is not None
    # As a kill does: the lock goes with the process.
    file.close()
    monkeypatch.setattr(opened._dispatcher.disk_buffer, "_file", None)
    server.start()
    following = open_one(settings)
    assert in_order_from(following) == [1, 2, 3]
    following.close("finished")


def test_links_of_every_page_after_an_end(
    settings: dict[str, object], server: Server, opened: BloomScheduler, tmp_path: Path
) -> None:
    """As above, but the worker ends in order, with one link in doubt."""
    opened._heartbeats.stop()
    enqueue(opened, 0)
    opened._dispatcher._executor.execute_next()
    asked = opened._worker.next_operation()
    assert isinstance(asked, AskFilter)
    # The filter's reply is lost.
    fingerprints = [entry.fingerprint or b"" for entry in asked.entries]
    opened.df.filter.add_many(fingerprints)
    opened._worker.doubt({*fingerprints})
    links_on_the_disk(opened, server, 1, 2, 3)
    opened.close("shutdown")
    server.start()
    (file,) = files(tmp_path)
    with server.client() as client:
        # The next worker is to have the page from the file.
        client.delete(opened.queue_keys.leases(opened.worker_name))
    following = open_one(settings)
    assert not file.exists()
    assert in_order_from(following) == [0, 1, 2, 3, *range(100, 100 + IN_MEMORY)]
    following.close("finished")


def test_known_pages_after_an_expiry(
    settings: dict[str, object], server: Server, opened: BloomScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """Known pages on disk are not fetched again, even after others have taken the worker for dead."""
    outages = (range(1, 1001), range(1001, 2001))
    other = open_one(settings)
    urls = (f"https://example.com/{number}" for known in outages for number in known)
    other.df.filter.add_many([other.df.fingerprint_of(Request(url)) for url in urls])
    with server.client() as client:
        client.hdel(opened.queue_keys.workers, opened.worker_name)
    fetched = []
    for known in outages:
        server.kill()
        enqueue(opened, *range(100 * known[-1], 100 * known[-1] + IN_MEMORY), *known)
        assert len(opened._dispatcher.disk_buffer) == len(known)
        server.start()
        until(lambda: not opened._dispatcher.breaker.is_open)
        until(lambda: opened.has_pending_requests() and opened._dispatcher.is_idle)
        fetched.append(len({*in_order_from(opened)} & {*known}))
    assert fetched == [0, 0]
    assert "Other workers presumed this one dead" in caplog.text
    other.close("finished")


def test_portion_that_was_not_delivered(server: Server, opened: BloomScheduler, tmp_path: Path) -> None:
    """A worker killed with a portion of its file in memory leaves that portion in the file."""
    server.kill()
    enqueue(opened, *range(MANY))
    (path,) = files(tmp_path)
    disk_buffer = opened._dispatcher.disk_buffer
    assert disk_buffer._file is not None
    first = disk_buffer.next_batch()
    assert len(first) == 7
    # As a kill does: the lock goes with the process.
    disk_buffer._file.close()
    left = [entry for portion in SpoolDirectory(opened.queue_keys.queue, tmp_path).load_file(path) for entry in portion]
    assert left[:7] == first
    assert len(left) == MANY - IN_MEMORY


def test_what_is_called_afterwards(server: Server, opened: BloomScheduler) -> None:
    """Callbacks of `when_queued` run once, when all requests on disk are in Redis."""
    told: list[int] = []
    with server.client() as client:
        for outage in (1, 2):
            server.kill()
            enqueue(opened, *range(MANY * outage, MANY * (outage + 1)))
            opened.when_queued(lambda: told.append(client.zcard(opened.queue.key)))
            server.start()
            until(lambda: not opened._dispatcher.breaker.is_open)
            assert len(told) == outage - 1
            opened.deliver()
            assert len(told) == outage
    assert told == [MANY, 2 * MANY]


def test_file_is_on_the_disk_at_the_end(
    server: Server, opened: BloomScheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut after a worker's end loses no request: the whole file was synced."""
    server.kill()
    enqueue(opened, *range(MANY))
    sizes: list[int] = []
    fsync = os.fsync

    def sync(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    opened.close("shutdown")
    (file,) = files(tmp_path)
    assert sizes == [file.stat().st_size]


def test_no_room_on_the_disk(
    opened: BloomScheduler,
    server: Server,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If no file can be written, all requests stay in memory, and one error is logged."""

    def fail(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("scrapy_bloom.spool.directory.os.open", fail)
    server.kill()
    enqueue(opened, *range(MANY))
    assert len(opened._worker.state.outbox) == MANY
    assert sum("kept in memory" in record.getMessage() for record in caplog.records) == 1
    monkeypatch.undo()
    server.start()
    until(lambda: not opened._dispatcher.breaker.is_open)
    opened.deliver()
    assert files(tmp_path) == []


def test_disk_full_later(
    opened: BloomScheduler,
    server: Server,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the file cannot grow any more, one error names it, and the rest is saved in another file at the end."""
    server.kill()
    enqueue(opened, *range(MANY))
    (buffered,) = files(tmp_path)
    write = spool_file.write

    def fail(descriptor: int, data: bytes, at: int) -> None:
        if os.fstat(descriptor).st_ino == buffered.stat().st_ino:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(descriptor, data, at)

    monkeypatch.setattr(spool_file, "write", fail)
    enqueue(opened, *range(MANY, 3 * MANY))
    opened.close("shutdown")
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert sum("kept in memory" in error and str(buffered) in error for error in errors) == 1
    saved = {error.split(" in ")[1].split(";")[0]: int(error.split()[1]) for error in errors if "Saved" in error}
    assert {Path(path) for path in saved} == set(files(tmp_path))
    assert (len(saved), sum(saved.values())) == (2, 3 * MANY)
