"""The invariants of a simulated crawl: at each drop, each call, and the end."""

import base64
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Kinds of faults that may lose requests, if the log reports it.
_LOSSES = ("data loss", "rollback", "evict", "delete queue")
# Parts of the log lines that report a loss.
_TOLD = ("are gone", "lost", "went back to an earlier state", "was deleted or evicted", "not registered with the queue")


def check_drop(world: Any, url: str) -> None:
    """A page whose link is dropped was fetched, or is held by Redis, a live process or a file."""
    if (
        world.has_lost_data
        or world.plan.is_stock
        or world.flushed_at is not None
        or "BLOOMFILTER_TTL" in world.plan.settings
    ):
        return
    if not world.fetched[url] and url not in {world.url_of(member) for member in held_requests(world)}:
        world.found("dropped", f"{url} is dropped, was never fetched, and is held nowhere")


def check_call(world: Any, process: Any, name: str, begin: float) -> None:
    """The scheduler holds the reactor no longer than two replies may take.

    A replaced filter is opened again, by many short trips.
    """
    took = world.runtime.monotonic() - begin
    plan = world.plan
    trips = 50 * (1 + world.generation) * plan.link.latency * plan.link.spread
    longest = 2 * plan.link.timeout + plan.tuning.reactor_seconds + trips
    was_stopped = world.hub.now - took <= process.stopped_until
    if took > longest and process.is_open and not was_stopped and not plan.is_stock:
        world.found("blocked", f"{process.name}: {name} took {took:.2f} s, where {longest:.2f} s are allowed")


def check_end(world: Any, *, has_ended: bool) -> None:
    """Check that all pages are fetched, with no needless repeats, and no request is left."""
    if not has_ended:
        alive = ", ".join(f"{process.name} ({_phase(process)})" for process in world.alive)
        left = world.server.data.left(filters=False)
        world.found("endless", f"not ended after {world.hub.now:.0f} s; alive: {alive}; on the server: {left}")
        return
    _check_pages(world)
    _check_rest(world)
    _check_fetches(world)
    _check_reasons(world)


def _phase(process: Any) -> str:
    worker = getattr(process.engine.scheduler, "_worker", None)
    return "starting" if worker is None else str(worker.phase.name).lower()


def _check_pages(world: Any) -> None:
    since = -1.0 if world.flushed_at is None else world.flushed_at
    missing = sorted(url for url in _expected(world) if not any(fetch.at >= since for fetch in world.fetched[url]))
    missing = [url for url in missing if url not in world.poison]
    if not missing:
        return
    text = f"{len(missing)} pages were never fetched: {', '.join(missing[:5])}"
    dead = {world.url_of(member) for queue in world.server.data.queues.values() for member in queue.dead_letters}
    if dead.intersection(missing):
        world.found("innocent dead letter", text)
    elif not any(fault.kind in _LOSSES for fault in world.plan.faults):
        if not (world.plan.is_stock and world.plan.faults):
            world.found("lost", text)
    elif world.plan.is_fed and world.has_lost_data and not world.begun:
        return  # start URLs were lost before any worker took them
    elif not any(
        told in line for _, _, line in world.outcome.log if line.startswith(("WARNING", "ERROR")) for told in _TOLD
    ):
        world.found("lost in silence", text)


def _expected(world: Any) -> set[str]:
    """Return the pages of the start requests of workers that ended properly, in the last crawl.

    A page that kills its worker has no links.
    """
    roots: list[str] = []
    if world.plan.is_fed:
        roots = world.site.urls[:1] + world.site.private
    else:
        flushed_at = -1.0 if world.flushed_at is None else world.flushed_at
        for process in world.processes:
            is_flusher = process.name == world.flusher and flushed_at > world.deleted_at
            is_of_last = is_flusher or process.began_at >= max(flushed_at, world.deleted_at)
            if process.how in ("finished", "shutdown") and is_of_last:
                roots += process.offered_urls
    found: set[str] = set()
    while roots:
        url = roots.pop()
        if url not in found:
            found.add(url)
            if url not in world.poison:
                roots += [link.url for link in world.site.links[url]]
    return found


def _check_rest(world: Any) -> None:
    # A command executed after the last worker has left may recreate a part of the filter.
    is_late = world.plan.link.lateness > 0 and world.server.lost > 0
    left = world.server.data.left(filters=not (world.plan.persists or is_late))
    dead = [member for queue in world.server.data.queues.values() for member in queue.dead_letters]
    wrong = {world.url_of(member) for member in dead} - world.poison - world.holding
    if wrong:
        world.found("innocent dead letter", ", ".join(sorted(wrong)))
    buried = sorted(datum for urls in world.server.data.start_urls.values() for datum in urls.dead)
    if buried != world.plan.unusable and not world.has_lost_data:
        world.found("start URLs", f"{buried} are dead letters, and not {world.plan.unusable}")
    if left and not any(fault.kind == "rollback" for fault in world.plan.faults):
        world.found("left", str(left))
    files = [name for _, _, names in os.walk(world.directory) for name in names if name.startswith("undelivered")]
    if files:
        world.found("files", ", ".join(files))


def _check_fetches(world: Any) -> None:
    for url, times in world.fetched.items():
        counts = Counter(fetch.generation for fetch in times if fetch.is_filtered)
        if counts:
            world.outcome.fetches[url] = max(counts.values())
    if world.plan.shape.unfiltered or "BLOOMFILTER_TTL" in world.plan.settings or not world.outcome.fetches:
        return
    (url, most), *_ = world.outcome.fetches.most_common(1)
    # After a fault two workers may fetch a request again. Its owner distrusts the filter; the heir has the request from
    # the leases, or from a queue that was rolled back. A page has several requests if several links to it are checked,
    # or wait for their acknowledgement, at that moment.
    copies = max(1, world.copies[url])
    allowed = 1 + 2 * copies * (world.outcome.hits + world.server.lost)
    if most > allowed:
        world.found(
            "fetched again",
            f"{url} was fetched {most} times, where {world.outcome.hits} faults and {world.server.lost} lost replies, "
            f"with {copies} of its requests at once, allow {allowed}",
        )


def _check_reasons(world: Any) -> None:
    """A worker that knows of lost requests does not end as finished."""
    told = {who for _, who, line in world.outcome.log if line.startswith("ERROR") and "are gone" in line}
    for process in world.processes:
        if process.name in told and process.how == "finished":
            world.found("finished", f"{process.name} has logged lost requests, and ends as finished")


def held_requests(world: Any) -> Iterator[bytes]:
    """Yield all serialized requests in Redis, processes and files."""
    for queue in world.server.data.queues.values():
        for part in (queue.queue, queue.dead_letters, *queue.leases.values()):
            yield from part
    for process in world.alive:
        worker = getattr(process.engine.scheduler, "_worker", None)
        if worker is not None:
            for entry in (*worker.undelivered(), *worker.state.held()):
                yield entry.member
    yield from _on_disk(world)


def _on_disk(world: Any) -> Iterator[bytes]:
    for place, _, names in os.walk(world.directory):
        for name in names:
            if name.endswith(".jsonl"):
                with Path(place, name).open("rb") as file:
                    for line in [*file][1:]:
                        yield base64.b64decode(json.loads(line)["request"])
