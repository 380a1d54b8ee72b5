"""Where the requests of a simulated crawl are: on the server, and in its processes."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.keys import QueueKeys, partition_of
from scrapy_bloom.queue.messages import Load
from scrapy_bloom.queue.queue import Queue
from scrapy_bloom.transport.connect import tagged
from scrapy_bloom.transport.scripts import FILTER, Script
from tests.simulation.plan import Site
from tests.simulation.process import QUEUES, Process, keys_of, page_of
from tests.simulation.server import Server

_HAS = Script("contains", *FILTER, "call").text
_NOTHING = Load(0, 0, ())


def pages_of(members: Iterable[bytes]) -> set[int]:
    """Return the pages of requests."""
    return set(map(page_of, members))


class Places:
    """The pages at each place, as sets of their numbers. `alive` returns the running processes."""

    def __init__(self, server: Server, site: Site, alive: Callable[[], Sequence[Process]], partitions: int) -> None:
        self._server, self._site, self._alive = server, site, alive
        # The queue and the filter of each partition, of all spiders.
        self.keys = [keys for spider in range(len(QUEUES)) for keys in keys_of(spider, partitions)]
        self.filters = [name for _, name in keys_of(0, partitions)]

    def in_partition(self, queue: str) -> set[int]:
        """Return the pages of a queue's partition."""
        count = len(self.filters)
        index = [each for each, _ in self.keys].index(queue) % count
        return {page for page in range(len(self._site.links)) if partition_of(b"%d" % page, count) == index}

    def filter_of(self, queue: str) -> str:
        """Return the filter of a queue's partition."""
        return dict(self.keys)[queue]

    def call(self, *arguments: Any) -> Any:
        return self._server.data.call(*arguments)

    def registrations(self, queue: str) -> dict[str, bytes]:
        """Return the registrations of a queue's workers."""
        return {name.decode(): text for name, text in self._hash(QueueKeys(queue).workers).items()}

    def records(self, queue: str) -> dict[str, bytes]:
        """Return the records of a queue's workers."""
        fields = self._hash(QueueKeys(queue).crawl).items()
        return {name[1:].decode(): text for name, text in fields if name[:1] == b"@"}

    def _hash(self, key: str) -> dict[bytes, bytes]:
        raw = self.call("HGETALL", key)
        return dict(zip(raw[::2], raw[1::2], strict=True))

    def leased(self, queue: str, worker: str) -> set[int]:
        return pages_of(m for key in QueueKeys(queue).of_worker(worker) for m in self.call("ZRANGE", key, 0, -1))

    def waiting(self, queue: str) -> set[int]:
        return pages_of(self.call("ZRANGE", queue, 0, -1))

    def leased_suspects(self, queue: str, worker: str) -> set[int]:
        """Return the requests of a worker that others have died with."""
        return self.leased(queue, worker) & pages_of(self._hash(QueueKeys(queue).deaths))

    def kept(self) -> set[int]:
        return {page for queue, _ in self.keys for page in pages_of(self._hash(QueueKeys(queue).failed))} | self.dead()

    def dead(self) -> set[int]:
        """Return the dead letters."""
        return {page for queue, _ in self.keys for page in self.waiting(QueueKeys(queue).dead_letters)}

    def stored(self, but: Collection[str] = ()) -> set[int]:
        """Return the requests that wait, are kept, or are leased by a known or live worker, but for some queues."""
        return set().union(self.kept(), *(self.stored_in(queue) for queue, _ in self.keys if queue not in but))

    def stored_in(self, queue: str) -> set[int]:
        """Return the requests that wait in a queue, or are leased from it by a known or live worker."""
        owners = {*self.registrations(queue), *self.records(queue), *(process.name for process in self._alive())}
        return self.waiting(queue).union(*(self.leased(queue, owner) for owner in sorted(owners)))

    def held(self, process: Process) -> set[int]:
        """Return the pages of a worker, but for those that a reply on its way takes from it."""
        worker = process.worker
        held = pages_of(entry.member for entry, _ in worker.ready)
        held |= pages_of(member for member, page in worker.running.items() if not page.is_requeued)
        for (queue, _), line in zip(keys_of(process.spider, len(worker.queues)), worker.queues, strict=True):
            record, _ = process.answers.get(queue) or (self.records(queue).get(process.name, b"dead"), set())
            told, flags = _told_by(record, line)
            held |= pages_of(line.finished.keys() - {*told.ended})
            held |= pages_of(entry.member for entry in [*line.requeued][told.requeued :])
            for at, (_, offer) in enumerate(line.outbox):
                is_on_its_way = offer.request is not None and flags[at : at + 1] == b"1"
                if is_on_its_way if at < told.offers else not self.is_known(offer.fingerprint):
                    held.add(page_of(offer.member))
        return held

    def held_by_all(self, but: Process | None = None) -> set[int]:
        return set().union(*(self.held(process) for process in self._alive() if process is not but))

    def is_known(self, fingerprint: bytes | None) -> bool:
        """Return whether the filter has a fingerprint."""
        if fingerprint is None:
            return False
        name = self.filters[partition_of(fingerprint, len(self.filters))]
        state, secret = self.call("HMGET", name, "state", "secret")
        if state is None:
            return False
        item = FilterParameters(fingerprint="scrapy-redis").hasher(secret)(fingerprint)
        return bool(self._server.data.eval(_HAS, [name], [state.partition(b" ")[0], item])[0] == b"1")

    def orphaned(self) -> set[int]:
        """Return leases of workers that neither live nor are known: both hashes are lost."""
        keys = [key.decode() for key in self._server.data._values if b":leases:" in key or b":taken:" in key]
        return set().union(*map(self.waiting, keys)) - self.stored()

    def left_keys(self, *, is_shared: bool = False) -> list[str]:
        data = self._server.data
        keys = [QueueKeys(queue) for queue, _ in self.keys]
        # These outlive a crawl.
        kept = {name.encode() for each in keys for name in (each.failed, each.dead_letters, each.deaths)}
        # A late join leaves keys that expire.
        left = [key.decode() for key in data._values if key not in kept and key not in data._expiries]
        if is_shared:
            of_filters = tuple(stem for name in self.filters for stem in (name, tagged(name)))
            fields = [field.decode() for name in self.filters for field in self._hash(name)]
            left = [key for key in left if not key.startswith(of_filters)]
            left += [field for field in fields if field.startswith("queue:")]
        return left


def _told_by(record: bytes, line: Queue) -> tuple[Load, bytes]:
    """Return what an unanswered sync has carried that is executed by a record, and the flags of its offers."""
    if record.startswith(b"dead") or record.split(b" ")[0] != line._steps.record.split(b" ")[0]:
        return _NOTHING, b""
    _, number, flags = record.split(b" ", 2)
    return line._sent.get(int(number), _NOTHING), flags
