"""The promises of a queue, checked in each state of a search.

S1: every page found is fetched, unless only the server had it, and lost it. A request that bypasses the filter is
    fetched once more for each time that it was found.
S2: a worker finds a crawl finished only if nothing is left; nothing is deleted while requests wait or are leased.
S3: a finished crawl leaves nothing behind, and no dead worker.
S4: an end can be reached from each state without a fault.
S5: a page is fetched at most as often as the scenario says.
S6: a filter stays as long as another spider uses it.
S7: a loss of pages is told.
S8: a dead letter is a request that its worker had started, alone, and that as many workers had died with as
    `max_deliveries` says; no request kills more workers of a crawl.
S9: a failed request is kept for the next run.
"""

from typing import Any

from scrapy_bloom.queue.values import Call, Phase
from scrapy_bloom.queue.worker import Worker
from tests.queue.search.model import Now
from tests.queue.search.normal import FIELDS, registrations
from tests.queue.search.world import FILTERS, filter_id, key, mask_of, pages_of, union
from tests.support.explore import BrokenPromiseError
from tests.support.running import AnyWorker, ended, running
from tests.support.script_server import ScriptServer

_HELD, _WORKS, _STAMP, _PRIOR = map(FIELDS.index, ("held", "works", "stamp", "prior"))
_NOBODY: list[Any] = [0] * len(FIELDS)
_JOINING = (Phase.JOIN, Phase.RESET, Phase.ALLOCATE)
# Losses of a whole partition while no worker runs.
ABSENT = ("partition", "partition 1")
# One partition goes back in time, at any moment.
_ONE_BACK = {"rollback 0", "rollback 1"}
# Faults after which a worker may rightly find less than was there, or the server has more than it knows.
_FORGETFUL = {
    "false",
    "rollback",
    "flushall",
    "filter",
    "filter 1",
    "shard",
    "crawl",
    "crawl 1",
    "audit",
    *ABSENT,
    *_ONE_BACK,
}
_UNNOTICED = {"crawl", "crawl 1", "audit"}


def require(condition: object, promise: str) -> None:
    """Raise BrokenPromiseError unless a condition holds."""
    if not condition:
        raise BrokenPromiseError(promise)


def left_of(now: Now) -> int:
    """Return the pages that are to be fetched still."""
    oracle = now.oracle
    failed = now.scenario.closure(oracle.failed)
    return oracle.found & ~now.fetched() & ~oracle.exempt & ~kept_of(now) & ~failed


def kept_of(now: Now) -> int:
    """Return the pages that are kept in the end, with the local pages behind them."""
    return now.kept() | now.scenario.closure(now.kept()) & now.scenario.local


def is_behind(now: Now, w: int) -> bool:
    """Return whether the server has forgotten something that it told a worker."""
    return any(
        _is_behind(part, now.seen_server(), queue, w)
        for part, queue in zip(now.seen_worker(w).parts, now.scenario.queues_of(w), strict=True)
    )


def _is_behind(worker: Worker, server: ScriptServer, queue: str, w: int) -> bool:
    if not worker.crawl:
        return False
    mine = registrations(server, key(queue, "crawl")).get(b"w%d" % w)
    if mine is None or worker.phase is Phase.JOIN or filter_id(server, FILTERS[queue]) != worker.filter_id:
        return True
    leases = sum(server.call("ZCARD", key(queue, f"{name}:w{w}")) for name in ("leases", "taken"))
    is_known = worker._stamp in (mine[_STAMP], mine[_PRIOR]) and mine[_HELD] == leases
    return not is_known or server.call("HGET", key(queue, "crawl"), "id") != worker.crawl


def note_crash(now: Now, w: int, cost: int) -> None:
    """Note the pages of a dying worker alone, which is alive still."""
    s, oracle, worker = now.scenario, now.oracle, now.seen_worker(w)
    is_stale = is_behind(now, w)
    outbox = union(mask_of(offer.member for offer in part.outbox) for part in worker.parts)
    roots = union(1 << page for page in pages_of(outbox) if page in s.roots[w])
    is_registered = b"w%d" % w in registrations(now.seen_server(), key(s.queue_of(w), "crawl"))
    elsewhere = now.stored() | now.held_by_all(but=w)
    # The next start offers them again, and so its own local pages, and the pages behind them.
    gone = roots & ~elsewhere & ~now.fetched()
    if s.local:
        starters = (v for v in range(len(s.roots)) if v != w and now.see(v).life in ("alive", "new"))
        starts = union(1 << page for v in starters for page in s.roots[v])
        local = union(mask_of(part.local) for part in worker.parts)
        mine = s.closure(outbox | local) & ~s.closure(elsewhere | starts)
        gone |= oracle.found & mine & ~now.fetched()
    exempt = oracle.exempt
    if is_stale:
        # The filter may know pages of the worker alone; links to them are repeats then.
        exempt |= oracle.found & ~now.fetched() & ~gone & ~(s.closure(elsewhere) & ~now.held(w) | elsewhere)
    others = [v for v in now.alive() if v != w]
    # No other can notice its death any more, or it was in contact after the crawl was found quiet.
    is_excused = not others or any(
        now.seen_worker(v)._leaves_as or now.seen_worker(v).parts[0]._quiet_since is not None for v in others
    )
    # The worker that got the pages of a presumed dead one has found its links, too.
    owed = oracle.owed & ~(outbox if is_stale or not is_registered else 0)
    if is_registered and not is_stale:
        owed |= mask_of(running(worker)) & s.unfiltered
    kills = oracle.kills + (cost == 0)
    starts = union(1 << page for roots in s.roots for page in roots)
    is_start = s.poison & s.local & starts  # each process begins with it
    require(not kills or is_start or kills <= s.max_deliveries, f"S8: a page has killed {kills} workers")
    deaths = oracle.deaths
    if s.max_deliveries:
        leased = now.leased(w)
        counts = enumerate(deaths or [0] * len(s.links))
        deaths = tuple(min(s.max_deliveries, count + (leased >> page & 1)) for page, count in counts)
    now.put(
        found=oracle.found & ~gone,
        exempt=exempt,
        kills=kills,
        deaths=deaths,
        faults=oracle.faults - cost,
        owed=owed & ~exempt,
        excused=oracle.excused | (1 << w if is_excused else 0),
    )


def note_end(now: Now, w: int) -> None:
    """Exempt the links of a local start request that ends before its worker learns of a loss: no page leads to them."""
    oracle = now.oracle
    if now.scenario.local and is_behind(now, w):
        keeps = now.scenario.closure(now.stored() | now.held_by_all())
        gone = oracle.found & ~now.fetched() & ~keeps & ~oracle.exempt
        now.put(exempt=oracle.exempt | gone, is_lost=oracle.is_lost or bool(gone))


def note_loss(now: Now, kind: str) -> None:
    """Exempt the pages of the server alone, which has just lost something."""
    s, oracle = now.scenario, now.oracle
    is_there = now.stored() | now.held_by_all()
    has_requests = kind in ("filter", "filter 1", "shard", "crawl", "crawl 1")
    keeps = oracle.found if has_requests else is_there
    if kind.startswith(
        "rollback"
    ):  # within a crawl each worker offers its start requests again that the server has forgotten
        server = now.seen_server()
        workers = [pair for w in now.alive() for pair in zip(now.seen_worker(w).parts, s.queues_of(w), strict=True)]
        mine = [worker for worker, queue in workers if server.call("HGET", key(queue, "crawl"), "id") == worker.crawl]
        keeps |= union(mask_of(offer.member for _, offer in worker._started) for worker in mine)
    if kind in ("rollback", "flushall"):
        keeps = s.closure(keeps)
    gone = oracle.found & ~now.fetched() & ~keeps & ~oracle.exempt
    now.put(
        exempt=oracle.exempt | gone,
        owed=oracle.owed if has_requests else 0,  # which of equal requests were lost is unknown
        is_lost=oracle.is_lost or bool(gone and (now.alive() or kind in ABSENT)),
    )


def note_flush(now: Now, queue: str) -> None:
    """Note a flush of a queue: the pages that only the server had are deleted on purpose, and all are new."""
    s, oracle = now.scenario, now.oracle
    flushed = union(1 << page for page in range(len(s.links)) if s.filter_of(page) == FILTERS[queue])
    held, ended_ones = now.stored() | now.held_by_all(), just_fetched(now)
    now.put(
        found=oracle.found & (held | ~flushed),
        fetched=tuple(ended_ones[p] if flushed >> p & 1 else times for p, times in enumerate(oracle.fetched)),
        exempt=oracle.exempt & ~flushed,
        owed=oracle.owed & ~flushed,
        failed=oracle.failed & ~flushed,
    )
    now.drop_snapshot()


def note_deletion(now: Now, w: int, mode: str) -> None:
    """Check the deletion of a crawl; without the filter a new history begins."""
    s, oracle = now.scenario, now.oracle
    others = [v for v in range(len(s.roots)) if s.queue_of(v) != s.queue_of(w)]
    held = now.held_by_all(but=w) | union(map(now.leased, others)) | union(now.waiting(s.queue_of(v)) for v in others)
    left = left_of(now)
    if mode == "finished":
        is_kept = not oracle.failed & ~now.fetched() & ~now.kept() & ~held & ~oracle.exempt
        require(is_kept, "S9: a failed request is not kept")
        lost = left & ~s.closure(held)
        require(not lost, f"S1: the crawl is deleted, but {list(pages_of(lost))} are left")
        require(not oracle.owed & ~oracle.exempt & ~held, f"S1: {list(pages_of(oracle.owed))} are not fetched again")
    if now.seen_server().call("EXISTS", "f"):
        return
    deleted = filter_id(Now(now.model, now.state).seen_server(), "f")
    users = [
        v
        for v in others
        if v in now.alive()
        and now.seen_worker(v).parts[0].filter_id == deleted
        and _uses_the_filter(registrations(now.seen_server(), key(s.queue_of(v), "crawl")).get(b"w%d" % v, _NOBODY))
    ]
    require(not users, "S6: a filter is deleted although another spider uses it")
    found = held | (left if mode == "finished" else 0)
    now.put(found=found, fetched=just_fetched(now), exempt=0, owed=0, failed=oracle.failed & now.kept(), kills=0)
    now.drop_snapshot()


def _uses_the_filter(registration: list[int]) -> bool:
    """Return whether a worker has exchanged since it joined: that makes its queue a user of the filter."""
    return bool(registration[_WORKS]) and registration[_STAMP] != registration[_PRIOR]


def just_fetched(now: Now) -> tuple[int, ...]:
    """Return the fetches of a new history: those not acknowledged."""
    mask = union(mask_of(ended(now.seen_worker(w))) for w in now.alive())
    return tuple(mask >> page & 1 for page in range(len(now.scenario.links)))


def check_leave(now: Now, w: int, call: Call, reply: list[Any]) -> None:
    """Check the reply to a leave, which was executed on the server of `now`'s state before."""
    if reply[0] != b"LEFT" or not reply[2] or (_UNNOTICED | _ONE_BACK) & set(now.scenario.kinds):
        return
    queue_of = now.scenario.queue_of
    others = [v for v in range(len(now.state.processes)) if v != w and queue_of(v) == queue_of(w)]
    is_empty = not now.waiting(queue_of(w)) | union(map(now.leased, others))
    is_kept = call.arguments[1] != "finished" or is_empty
    require(is_kept, "S2: a queue is deleted although requests wait or are leased")
    table = registrations(now.seen_server(), key(queue_of(w), "crawl"))
    working = [v for v in others if now.see(v).life == "alive" and table.get(b"w%d" % v, _NOBODY)[_WORKS]]
    require(not working, "S2: a crawl is deleted although another worker works")


def check_finish(now: Now, w: int) -> None:
    """Check the state in which a worker finds the crawl finished."""
    s = now.scenario
    if s.late or s.anew or _FORGETFUL & set(s.kinds):
        return
    other = 0
    for v in range(len(now.state.processes)):
        is_other = s.queue_of(v) != s.queue_of(w)
        if is_other:
            other |= now.leased(v) | now.waiting(s.queue_of(v))
        # It has not joined yet, or not in all partitions: another visit of one would have found it.
        is_new = v in now.alive() and any(part.phase in _JOINING for part in now.seen_worker(v).parts)
        if v in now.alive() and (is_other or (is_new and (s.partitions > 1 or not now.seen_worker(v).parts[0].crawl))):
            other |= now.held(v)
            other |= union(mask_of(offer.member for offer in part.outbox) for part in now.seen_worker(v).parts)
    left = left_of(now) & ~s.closure(other)
    require(not left, f"S2: w{w} finds the crawl finished, but {list(pages_of(left))} are left")


def check_letters(now: Now, letters: int, suspect: bytes | None, held: int) -> None:
    """Check the dead letters that a worker's death has made, its suspect that it had started, and its leases."""
    if letters:
        deaths = [now.oracle.deaths[page] for page in pages_of(letters)]
        require(min(deaths) == now.scenario.max_deliveries, f"S8: a dead letter after the deaths of {deaths} workers")
        is_started = suspect is not None and letters == mask_of([suspect])
        require(is_started, "S8: a dead letter for the death of a worker that had not started it")
        require(held == letters, "S8: the dead worker had leased others, too")
        is_guilty = now.scenario.closure(letters) & now.scenario.poison
        require(is_guilty or now.scenario.faults, "S8: a dead letter for a request that kills no worker")


def check_alone(worker: AnyWorker) -> None:
    """Check that a suspect on its last delivery runs alone."""
    runs = running(worker)
    is_last = any(part.is_last_chance and part._suspect in runs for part in worker.parts)
    require(not is_last or len(runs) == 1, "S8: a suspect on its last delivery runs beside others")


def check_end(now: Now, lives: list[str]) -> None:
    """Check the state in which no process is left."""
    s, oracle, stored = now.scenario, now.oracle, now.stored()
    left = oracle.found & ~now.fetched() & ~oracle.exempt & ~(s.closure(oracle.failed) & ~oracle.failed)
    has_crashed_last = "crashed" in lives and now.is_work_left()
    left &= ~(s.closure(stored) if has_crashed_last or s.stop else kept_of(now))
    require(not left, f"S1: {list(pages_of(left))} are lost")
    owed = oracle.owed & ~oracle.exempt & ~(s.closure(stored) if has_crashed_last else stored)
    require(not owed, f"S1: {list(pages_of(owed))} are not fetched again")
    missing = oracle.failed & ~now.fetched() & ~stored & ~oracle.exempt
    if not {"flushall", "rollback"} & set(s.kinds) and not s.anew:
        require(not missing, f"S9: {list(pages_of(missing))} failed, and are not kept")
    if "gone" in lives and "crashed" not in lives:
        lost = oracle.exempt & ~now.fetched() & ~stored
        # New workers may find the pages again, as may workers that relied on the partition.
        is_lost = oracle.is_lost and (lost or not {*ABSENT, *_ONE_BACK} & {*s.kinds})
        require(oracle.is_reported or not is_lost, "S7: a loss is not reported")
    check_leftovers(now, lives)


def check_leftovers(now: Now, lives: list[str]) -> None:
    """Check that a crawl that was finished leaves nothing."""
    s, server = now.scenario, now.seen_server()
    if set(s.kinds) == {"crash"} and "gone" in lives and not s.stop and not s.persist:
        for w, life in enumerate(lives):
            values = registrations(server, key(s.queue_of(w), "crawl")).get(b"w%d" % w)
            is_left = life == "crashed" and values and values[_WORKS] and not now.oracle.excused >> w & 1
            require(not is_left, "S3: a worker finished after another one had died, and left it registered")
    if "crashed" in lives or s.stop or s.persist or {"rollback", *_ONE_BACK, *_UNNOTICED} & set(s.kinds):
        return
    kept = {key(queue, name).encode() for queue in s.queues for name in ("failed", "dead-letter", "deliveries")}
    # A late join leaves keys without content, which their TTL ends.
    left = [name for name in server._values if name not in kept and name not in server._expiries]
    if s.spider:  # but the filter, which is shared
        left = [name for name in left if not name.startswith((b"f", b"{f}:"))]
        left += [field for field in server.call("HKEYS", "f") if field.startswith(b"queue:")]
    require(not left, f"S3: a finished crawl leaves {left}")
