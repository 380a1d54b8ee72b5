"""Where the requests of a simulated crawl are: on the server, and in its processes."""

from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.keys import QueueKeys, tagged
from scrapy_bloom.queue.values import Call
from scrapy_bloom.queue.worker import Worker
from scrapy_bloom.transport.scripts import FILTER, Script
from tests.simulation.plan import Site
from tests.simulation.process import QUEUES, Process, keys_of
from tests.simulation.server import Server

_HAS = Script("contains", *FILTER, "call").text


class Places:
    """The pages at each place, as sets of their numbers. `alive` returns the running processes."""

    def __init__(self, server: Server, site: Site, alive: Callable[[], Sequence[Process]], partitions: int) -> None:
        self._server, self._site, self._alive = server, site, alive
        # The queue and the filter of each partition, of all spiders.
        self.keys = [keys for spider in range(len(QUEUES)) for keys in keys_of(spider, partitions)]
        self.filters = [name for _, name in keys_of(0, partitions)]

    def pages_of(self, queue: str) -> set[int]:
        """Return the pages of a queue's partition."""
        count = len(self.filters)
        index = [each for each, _ in self.keys].index(queue) % count
        return {page for page in range(len(self._site.links)) if (crc32(b"%d" % page) >> 16) % count == index}

    def filter_of(self, queue: str) -> str:
        """Return the filter of a queue's partition."""
        return dict(self.keys)[queue]

    def call(self, *arguments: Any) -> Any:
        return self._server.data.call(*arguments)

    def registrations(self, queue: str) -> dict[str, list[int]]:
        raw = self.call("HGETALL", QueueKeys(queue).crawl)
        fields = zip(raw[::2], raw[1::2], strict=True)
        return {name[1:].decode(): list(map(int, text.split()[:-1])) for name, text in fields if name[:1] == b"@"}

    def leased(self, queue: str, worker: str) -> set[int]:
        return {int(member) for key in QueueKeys(queue).of_worker(worker) for member in self.call("ZRANGE", key, 0, -1)}

    def waiting(self, queue: str) -> set[int]:
        return set(map(int, self.call("ZRANGE", queue, 0, -1)))

    def kept(self) -> set[int]:
        keys = [QueueKeys(queue) for queue, _ in self.keys]
        failed = {int(member) for each in keys for member in self.call("HKEYS", each.failed)}
        return failed | self.dead_letters()

    def dead_letters(self) -> set[int]:
        return {int(m) for queue, _ in self.keys for m in self.call("ZRANGE", QueueKeys(queue).dead_letters, 0, -1)}

    def stored(self, *, but: str = "") -> set[int]:
        """Return the requests that wait, are kept, or are leased by a registered or live worker."""
        stored = self.kept()
        for queue, _ in self.keys:
            stored |= self.waiting(queue)
            owners = {*self.registrations(queue), *(process.name for process in self._alive())} - {but}
            stored |= set().union(*(self.leased(queue, owner) for owner in sorted(owners)))
        return stored

    def held(self, process: Process) -> set[int]:
        """Return the pages of a worker, but for links that the filter knows."""
        return set().union(*(self._held_in(process, part) for part in process.worker.parts))

    def _held_in(self, process: Process, worker: Worker) -> set[int]:
        held = {int(entry.member) for entry in (*worker.ready, *worker._returns)} | set(map(int, worker.finished))
        held |= {int(offer.member) for offer in worker._kept}
        held |= {int(member) for member, page in worker.running.items() if not page.is_tainted}
        held |= {int(entry.member) for entry in worker.local_ready}
        held |= {int(offer.member) for offer in worker.outbox if not self.is_known(offer.fingerprint)}
        # The pages that an answer on its way takes from it.
        is_told = process.is_executed and worker is process.worker.parts[process.partition]
        told = process.awaited if is_told else None
        return held - _told_of(told, worker) if told else held

    def held_by_all(self, but: Process | None = None) -> set[int]:
        return set().union(*(self.held(process) for process in self._alive() if process is not but))

    def is_known(self, fingerprint: bytes | None) -> bool:
        """Return whether the filter has a fingerprint."""
        if fingerprint is None:
            return False
        name = self.filters[(crc32(fingerprint) >> 16) % len(self.filters)]
        state, secret = self.call("HMGET", name, "state", "secret")
        if state is None:
            return False
        item = FilterParameters(fingerprint="scrapy-redis").hasher(secret)(fingerprint)
        return bool(self._server.data.eval(_HAS, [name], [state.partition(b" ")[0], item])[0] == b"1")

    def orphaned(self) -> set[int]:
        """Return leases of workers that neither live nor are registered, and links that only these had found."""
        data, there = self._server.data, self.stored()
        keys = [key for key in data._values if b":leases:" in key or b":taken:" in key]
        leases = {int(member) for key in keys for member in self.call("ZRANGE", key, 0, -1)} - there
        links = {target for page in leases for target, _ in self._site.links[page]}
        return leases | {page for page in links - there - self.held_by_all() if not self.is_known(b"%d" % page)}

    def left_keys(self, *, is_shared: bool = False) -> list[str]:
        data = self._server.data
        keys = [QueueKeys(queue) for queue, _ in self.keys]
        # These outlive a crawl.
        kept = {name.encode() for each in keys for name in (each.failed, each.dead_letters, each.deliveries)}
        # A late join leaves keys that expire.
        left = [key.decode() for key in data._values if key not in kept and key not in data._expiries]
        if is_shared:
            of_filters = tuple(stem for name in self.filters for stem in (name, tagged(name)))
            fields = [field.decode() for name in self.filters for field in self.call("HKEYS", name)]
            left = [key for key in left if not key.startswith(of_filters)]
            left += [field for field in fields if field.startswith("queue:")]
        return left


def offered(call: Call) -> int:
    """Return how many requests a call offers."""
    return int(call.arguments[8]) if call.script == "exchange" else 0


def _told_of(call: Call, worker: Worker) -> set[int]:
    """Return the requests that leave a worker with the reply to a call."""
    offers = {int(offer.member) for offer in list(worker.outbox)[: offered(call)] if offer.request is None}
    return offers | {int(entry.member) for entry in call.returns} | set(map(int, call.ended))
