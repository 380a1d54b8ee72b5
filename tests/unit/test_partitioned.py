"""A worker over two partitions, on the scripts in memory. Searches cover the other properties."""

from typing import Any

import pytest

from scrapy_bloom.queue.keys import partition_of
from scrapy_bloom.queue.partitioned import PartitionedWorker
from scrapy_bloom.queue.values import Offer, Trouble
from scrapy_bloom.queue.worker import Worker
from tests.support.driven import SMALL, Send, Source, in_memory
from tests.support.script_server import ScriptServer


class Driven:
    """A worker whose rounds a test sends."""

    def __init__(self, name: str, sends: list[Send], **options: Any) -> None:
        source = Source(SMALL.of_partition(2))
        parts = [Worker(name, 60, "project.Shop", source, lambda member: member, **options) for _ in sends]
        self.worker, self._sends = PartitionedWorker(parts), sends

    def step(self, want: int = 0) -> int:
        """Execute a round, if there is one, and return the number of its calls."""
        calls = self.worker.next_calls(want)
        for index, call in calls:
            self.worker.receive(self._sends[index](self.worker.name, call), index)
        return len(calls)

    def work_off(self) -> None:
        """Execute rounds until there is no news."""
        while self.step():
            pass


@pytest.fixture
def servers() -> list[ScriptServer]:
    return [ScriptServer(), ScriptServer()]


@pytest.fixture
def sends(servers: list[ScriptServer]) -> list[Send]:
    """Execute calls of two partitions on servers in memory."""
    return [in_memory(server) for server in servers]


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_worker_that_finishes_finds_what_only_a_dead_one_knew(
    is_lost: bool, servers: list[ScriptServer], sends: list[Send]
) -> None:
    """A partition went back in time when a worker died; the other worker had changed nothing there meanwhile."""
    dead, alive = (Driven(name, sends) for name in ("dead", "alive"))
    page, link = (next(m for m in (b"%d" % n for n in range(99)) if partition_of(m, 2) == index) for index in (0, 1))
    alive.work_off()
    dead.worker.offer(Offer(0, page, page))
    dead.work_off()
    dead.step(want=1)
    taken = dead.worker.take()
    assert taken is not None
    assert taken.member == page
    before = servers[1].copy()
    dead.worker.offer(Offer(0, link, link))
    dead.worker.finish(page)
    dead.work_off()
    if is_lost:
        servers[1].__dict__.update(before.__dict__)
    crawled = []
    while not alive.worker.may_finish:
        for server in servers:
            server.time += 25_000_000
        alive.step(want=2)
        while entry := alive.worker.take():
            crawled.append(entry.member)
            alive.worker.finish(entry.member)
    assert crawled == ([] if is_lost else [link])
    assert [part.losses for part in alive.worker.parts] == [0, int(is_lost)]


def test_nothing_is_wanted_beside_a_silent_partition(sends: list[Send]) -> None:
    """Each round calls a partition that was silent, until it answers; meanwhile no request is taken from others."""
    driven = Driven("one", sends)
    members = [b"%d" % number for number in range(40)]
    for member in members:
        driven.worker.offer(Offer(0, member, member))
    driven.work_off()
    (index, _), *_ = driven.worker.next_calls(1)
    driven.worker.lose(index)
    for _ in range(3):
        assert [silent for silent, _ in driven.worker.next_calls(16)] == [index]
        driven.worker.lose(index)
    assert driven.worker.take() is None
    driven.step(16)
    driven.step(16)
    assert driven.worker.take()


def test_a_partition_that_went_back_alone_is_a_loss(servers: list[ScriptServer], sends: list[Send]) -> None:
    """Its links of pages that another partition has acknowledged are gone, and no page leads to them again."""
    driven = Driven("one", sends)
    driven.work_off()
    earlier = servers[1].copy()
    for member in (b"0", b"1"):  # one in each partition
        driven.worker.offer(Offer(0, member, member))
    driven.work_off()
    sends[1] = in_memory(earlier)
    driven.worker.offer(Offer(0, b"2", b"2"))
    driven.work_off()
    assert [part.troubles for part in driven.worker.parts] == [[], [Trouble.ROLLED_BACK, Trouble.LINKS_LOST]]
