"""The checks of a simulated crawl: of its data while it runs, of reported losses, and of its end."""

from typing import TYPE_CHECKING

from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.values import Phase
from scrapy_bloom.queue.worker import Worker
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

# Fields of a registration.
_HELD, _STAMP = 1, 8


def check_consistency(world: "World") -> None:
    """Check registrations, audit and filter of the store, and leases of workers between two calls."""
    places = world.places
    if world.has_lost:
        return
    for at, (queue, _) in enumerate(places.keys):
        table, waiting = places.registrations(queue), places.waiting(queue)
        noted = places.call("HGET", QueueKeys(queue).crawl, "waiting")
        if noted is not None and int(noted) != len(waiting):
            world.found("audit", f"{queue}: {noted.decode()} are noted, {len(waiting)} wait")
        for name, values in table.items():
            if values[_HELD] != len(leased := places.leased(queue, name)):
                world.found("leases", f"{name} holds {values[_HELD]}, and has leased {sorted(leased)}")
            waiting |= leased
        filtered = set() if world.plan.ttl else waiting - world.site.unfiltered
        unknown = [page for page in sorted(filtered) if not places.is_known(b"%d" % page)]
        if unknown:
            world.found("filter", f"{queue}: the filter does not know {unknown}")
        for process in world.alive:
            if process.spider == at // world.plan.partitions:
                part = process.worker.parts[at % world.plan.partitions]
                _check_worker(world, process, part, table.get(process.name), queue)


def _check_worker(world: "World", process: Process, worker: Worker, values: list[int] | None, queue: str) -> None:
    places = world.places
    if not values or worker.phase is not Phase.WORK or values[_STAMP] != worker._stamp:
        return
    held = {int(entry.member) for entry in (*worker.ready, *worker._returns)} | set(map(int, worker.finished))
    held |= {int(m) for m, page in worker.running.items() if not page.is_tainted and m not in worker.local}
    if held != (leased := places.leased(queue, process.name)):
        world.found("leases", f"{process.name} holds {sorted(held)}, and has leased {sorted(leased)}")


def check_report(world: "World", deleting: Process | None = None) -> None:
    """A loss of requests is reported, if a worker that was alive has come to its end, or deletes the crawl now."""
    missed = world.exempt - set(world.fetched) - world.places.kept()
    has_ended = any(each.how in ("finished", "stopped") or each is deleting for each in world.witnesses)
    if missed and has_ended and not world.is_reported:
        world.found("lost in silence", f"{sorted(missed)} were lost, and no worker has reported it")


def check_end(world: "World") -> None:
    """Check a crawl that has ended: every page is fetched or its loss reported, and no key is left."""
    places = world.places
    check_report(world)
    # The first death counts for all requests of a worker and makes no dead letter.
    deaths = max(1, world.plan.max_deliveries - 1)
    wrong = {page for page in places.dead_letters() - world.site.poison if world.interrupted[page] < deaths}
    if wrong and not world.has_lost:
        world.found("innocent dead letter", f"{sorted(wrong)}")
    missed = world.found_pages - set(world.fetched) - world.exempt - places.kept()
    if missed:
        world.found("missed", f"{sorted(missed)} were never fetched")
    left = places.left_keys(is_shared=world.plan.spiders > 1)
    if left and not world.has_evicted:
        world.found("left", ", ".join(left))
