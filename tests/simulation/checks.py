"""The checks of a simulated crawl: of its data while it runs, of reported losses, and of its end."""

from typing import TYPE_CHECKING

from scrapy_bloom.queue.keys import QueueKeys
from tests.simulation.places import pages_of
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.world import World


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
            held = int(values.split()[0])
            if held != len(leased := places.leased(queue, name)):
                world.found("leases", f"{name} holds {held}, and has leased {sorted(leased)}")
            waiting |= leased
        filtered = set() if world.plan.ttl else waiting - world.site.unfiltered
        unknown = [page for page in sorted(filtered) if not places.is_known(b"%d" % page)]
        if unknown:
            world.found("filter", f"{queue}: the filter does not know {unknown}")
        for process in world.alive:
            if process.spider == at // world.plan.partitions and process.name in table:
                _check_worker(world, process, at % world.plan.partitions, queue)
    for process in world.alive:
        # What bypasses the filter may be leased twice, and its other worker die.
        suspects = set().union(*(places.leased_suspects(queue, process.name) for queue, _ in places.keys))
        if len(suspects - world.site.unfiltered) > 1:
            world.found("suspects", f"{process.name} holds {sorted(suspects)}")


def _check_worker(world: "World", process: Process, index: int, queue: str) -> None:
    worker = process.worker
    line, record = worker.queues[index], world.places.records(queue).get(process.name)
    if worker._must_rejoin or not worker.is_joined or record != line._steps.record:
        return
    held = pages_of(entry.member for entry, at in worker.ready if at == index and entry.member not in worker.local)
    held |= pages_of(
        member
        for member, page in worker.running.items()
        if page.queue == index and not page.is_requeued and member not in worker.local
    )
    held |= pages_of(line.finished)
    waiting, leased = pages_of(entry.member for entry in line.requeued), world.places.leased(queue, process.name)
    # What it takes while it has yet to queue the same again waits beside.
    if leased - held - waiting or held - leased - waiting - process.requeued:
        world.found("leases", f"{process.name} holds {sorted(held)} of {queue}, and has leased {sorted(leased)}")


def check_report(world: "World", deleting: Process | None = None) -> None:
    """A loss of requests is reported, if a worker that was alive has come to its end, or deletes the crawl now."""
    missed = world.exempt - world.excused - set(world.fetched) - world.places.kept()
    has_ended = any(each.how in ("finished", "stopped") or each is deleting for each in world.witnesses)
    if missed and has_ended and not world.is_reported:
        world.found("lost in silence", f"{sorted(missed)} were lost, and no worker has reported it")


def check_end(world: "World") -> None:
    """Check a crawl that has ended: every page is fetched or its loss reported, and no key is left."""
    places = world.places
    check_report(world)
    most = world.plan.max_deaths
    wrong = {page for page in places.dead() - world.site.poison if world.interrupted[page] < most}
    if wrong and not world.has_lost:
        world.found("innocent dead letter", f"{sorted(wrong)}")
    missed = world.found_pages - set(world.fetched) - world.exempt - world.excused - places.kept()
    if missed:
        world.found("missed", f"{sorted(missed)} were never fetched")
    left = places.left_keys(is_shared=world.plan.spiders > 1)
    if left and not world.has_evicted:
        world.found("left", ", ".join(left))
