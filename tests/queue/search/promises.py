"""The promises of a queue, checked in each state of a search.

S1: every page found is fetched, unless only the server had it, and lost it, or only a process could run it, and ended.
    A request that bypasses the filter is fetched once more for each time that it was found. No worker is refused.
S2: a worker finds a crawl finished only if nothing is left; nothing is deleted while requests wait or are leased.
S3: a finished crawl leaves nothing behind, and no dead worker.
S4: an end can be reached from each state without a fault.
S5: a page is fetched once, also if calls are lost, and once more for a crash. What makes workers join again adds two,
    as the server hands their pages out, and they requeue them as well; with two queues three: both may do that.
S6: a filter stays as long as another spider uses it.
S7: a loss of pages is told.
S8: a dead letter is a request that as many workers as `max_deaths` died holding; without other deaths it is the one
    that killed them, and it kills no more of a crawl.
S9: a failed request is kept for the next run.
"""

from scrapy_bloom.queue.messages import Phase
from scrapy_bloom.queue.queue import Queue
from tests.queue.search.model import Now
from tests.queue.search.world import FILTERS, filter_id, key, mask_of, pages_of, registrations, union
from tests.support.explore import BrokenPromiseError
from tests.support.script_server import ScriptServer

_HELD, _SYNCED = 0, 3
_JOINING = (Phase.JOIN, Phase.ALLOCATE)
# Losses of a whole queue while no worker runs.
ABSENT = ("all 0", "all 1")
# One queue goes back in time, by less than `SETTLING`.
_ONE_BACK = {"rollback 0", "rollback 1"}
_REGISTRATIONS = {"crawl", "crawl 1", "workers", "workers 1"}
_WITHOUT_REQUESTS = _REGISTRATIONS | {"filter", "filter 1", "shard"} | _ONE_BACK
# Faults after which a worker may rightly find less than was there, or the server has more than it knows.
_FORGETFUL = {"false", "rollback", "flushall", "audit", *ABSENT} | _WITHOUT_REQUESTS
_UNNOTICED = _REGISTRATIONS | {"audit"}


def require(condition: object, promise: str) -> None:
    """Raise BrokenPromiseError unless a condition holds."""
    if not condition:
        raise BrokenPromiseError(promise)


def left_of(now: Now) -> int:
    """Return the pages that are to be fetched still."""
    oracle = now.oracle
    failed = now.scenario.closure(oracle.failed)
    return oracle.found & ~now.fetched() & ~oracle.exempt & ~now.kept() & ~failed


def has_crawl(now: Now, queue: str) -> bool:
    """Return whether a queue has a crawl."""
    return bool(now.seen_server().call("EXISTS", key(queue, "crawl")))


def is_behind(now: Now, w: int) -> bool:
    """Return whether the server has forgotten something that it told a worker."""
    pairs = zip(now.seen_worker(w).queues, now.scenario.queues_of(w), strict=True)
    return any(queue.crawl.id and _is_behind(queue, now.seen_server(), name, w) for queue, name in pairs)


def _is_behind(queue: Queue, server: ScriptServer, name: str, w: int) -> bool:
    mine = registrations(server, name).get(b"w%d" % w)
    crawl, record = server.call("HMGET", key(name, "crawl"), "id", f"@w{w}")
    if not mine or record in (None, b"dead") or queue.phase is Phase.JOIN or crawl != queue.crawl.id:
        return True
    opened, number, _ = record.split(b" ", 2)
    leases = sum(server.call("ZCARD", key(name, f"{each}:w{w}")) for each in ("leases", "taken"))
    is_known = queue._steps.record.startswith(opened + b" ") and int(number) >= queue._steps.number
    return not is_known or mine[_HELD] != leases or filter_id(server, FILTERS[name]) != queue.crawl.filter_id


def note_crash(now: Now, w: int) -> None:
    """Note the pages of a dying worker alone, which is alive still."""
    s, oracle, worker = now.scenario, now.oracle, now.seen_worker(w)
    is_stale, outbox = is_behind(now, w), now.outbox(w)
    roots = union(1 << page for page in pages_of(outbox) if page in s.roots[w])
    is_registered = b"w%d" % w in registrations(now.seen_server(), s.queues_of(w)[0])
    elsewhere = now.stored() | now.held_by_all(but=w)
    gone = roots & ~elsewhere & ~now.fetched()  # the next start offers them again
    exempt = oracle.exempt
    if is_stale:
        # The filter may know pages of the worker alone; links to them are repeats then.
        exempt |= oracle.found & ~now.fetched() & ~gone & ~(s.closure(elsewhere) & ~now.held(w) | elsewhere)
    others = [now.seen_worker(v) for v in now.alive() if v != w]
    # No other can notice its death any more, or it has synced after the crawl was found quiet.
    is_excused = not others or any(other._mode or other._rounds.quiet or other.may_finish for other in others)
    # The worker that got the pages of a presumed dead one has found its links, too.
    owed = oracle.owed & ~(outbox if is_stale or not is_registered else 0)
    if is_registered and not is_stale:
        owed |= mask_of(worker.running) & s.unfiltered
    now.put(
        found=oracle.found & ~gone,
        exempt=exempt,
        owed=owed & ~exempt,
        excused=oracle.excused | (1 << w if is_excused else 0),
    )


def note_kill(now: Now) -> None:
    """Note a worker that died of a page."""
    now.put(kills=now.oracle.kills + 1)
    require(now.oracle.kills <= now.scenario.max_deaths, f"S8: a page has killed {now.oracle.kills} workers")


def note_local(now: Now) -> None:
    """Exempt what only a process could run, and its links, after its end or stop, or a loss of the server."""
    s, oracle = now.scenario, now.oracle
    if s.local:
        starts = union(1 << page for w in now.alive() for page in s.roots[w])
        kept = now.stored() | now.held_by_all() | union(now.outbox(w) for w in now.alive()) & s.local
        dead = s.local & ~kept & union(1 << page for page in pages_of(s.local) if now.is_marked(page))
        keeps = s.closure(kept | starts & ~dead, dead)
        gone = oracle.found & ~now.fetched() & ~keeps & s.closure(s.local)
        now.put(exempt=oracle.exempt | gone | dead & ~now.fetched())


def note_death(now: Now, leased: int, letters: int) -> None:
    """Check the dead letters that a worker's death has made with its leases."""
    s = now.scenario
    if s.max_deaths:
        deaths = tuple(min(s.max_deaths, n + (leased >> page & 1)) for page, n in enumerate(now.oracle.deaths))
        now.put(deaths=deaths)
        dying = [deaths[page] for page in pages_of(letters)]
        require(all(each == s.max_deaths for each in dying), f"S8: a dead letter after the deaths of {dying} workers")
        require(s.faults or not letters & ~s.poison, "S8: a dead letter for a request that kills no worker")


def check_letters(before: Now, now: Now, offered: int) -> None:
    """Check that a sync lets no dead letter wait again that it does not offer: a frozen worker may requeue one."""
    revived = before.dead_letters() & now.waiting() & ~before.waiting() & ~offered
    require(not revived, "S8: a dead letter waits again")


def note_loss(now: Now, kind: str) -> None:
    """Exempt the pages of the server alone, which has just lost something."""
    s, oracle = now.scenario, now.oracle
    is_there = now.stored() | now.held_by_all()
    keeps = oracle.found if kind in _WITHOUT_REQUESTS else is_there
    if kind in ("rollback", "flushall"):
        keeps = s.closure(keeps | now.starts())
    gone = oracle.found & ~now.fetched() & ~keeps & ~oracle.exempt
    now.put(
        exempt=oracle.exempt | gone,
        owed=oracle.owed if kind in _WITHOUT_REQUESTS else 0,  # which of equal requests were lost is unknown
        is_lost=oracle.is_lost or bool(gone and (now.alive() or (kind in ABSENT and _is_seen(now, kind)))),
    )
    note_local(now)


def _is_seen(now: Now, kind: str) -> bool:
    """Return whether a queue that was lost while no worker ran will be missed: an older one that is empty is not."""
    return kind == "all 1" or bool(now.stored())


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
    now.snapshot = None
    note_local(now)


def note_deletion(now: Now, w: int, mode: str) -> None:
    """Check the deletion of a crawl; without the filter a new history begins."""
    s, oracle = now.scenario, now.oracle
    others = [v for v in range(len(s.roots)) if s.queues_of(v) != s.queues_of(w)]
    queues = tuple({queue for v in others for queue in s.queues_of(v)})
    held = now.held_by_all(but=w) | union(map(now.leased, others)) | (now.waiting(queues) if queues else 0)
    left = left_of(now)
    if mode == "finished":
        is_kept = not oracle.failed & ~now.fetched() & ~now.kept() & ~held & ~oracle.exempt
        require(is_kept, "S9: a failed request is not kept")
        lost = left & ~s.closure(held | now.starts())  # one that has not synced with the first queue will join again
        require(not lost, f"S1: the crawl is deleted, but {list(pages_of(lost))} are left")
        require(not oracle.owed & ~oracle.exempt & ~held, f"S1: {list(pages_of(oracle.owed))} are not fetched again")
    if now.seen_server().call("EXISTS", "f"):
        return
    deleted = filter_id(Now(now.model, now.state).seen_server(), "f")
    users = [v for v in others if v in now.alive() and _uses(now, v, deleted)]
    require(not users, "S6: a filter is deleted although another spider uses it")
    found = held | (left if mode == "finished" else 0)
    now.put(found=found, fetched=just_fetched(now), exempt=0, owed=0, failed=oracle.failed & now.kept(), kills=0)
    now.snapshot = None


def _uses(now: Now, w: int, deleted: bytes | None) -> bool:
    """Return whether a worker has synced since it joined: that makes its queue a user of the filter."""
    queue = now.scenario.queues_of(w)[0]
    record = now.seen_server().call("HGET", key(queue, "crawl"), f"@w{w}") or b"dead"
    is_known = now.seen_worker(w).queues[0].crawl.filter_id == deleted
    return is_known and record != b"dead" and record.split(b" ")[1] != b"0"


def just_fetched(now: Now) -> tuple[int, ...]:
    """Return the fetches of a new history: those not acknowledged."""
    mask = union(mask_of(queue.finished) for w in now.alive() for queue in now.seen_worker(w).queues)
    return tuple(mask >> page & 1 for page in range(len(now.scenario.links)))


def check_leave(now: Now, w: int, mode: str) -> None:
    """Check a leave that deletes the crawl; `now` is the state before."""
    if (_UNNOTICED | _ONE_BACK) & set(now.scenario.kinds):
        return
    queues = now.scenario.queues_of(w)[:1]
    others = [v for v in range(len(now.state.processes)) if v != w and now.scenario.queues_of(v)[:1] == queues]
    is_empty = not now.waiting(queues) | union(now.leased(v, queues) for v in others)
    require(mode != "finished" or is_empty, "S2: a queue is deleted although requests wait or are leased")
    table = registrations(now.seen_server(), queues[0])
    working = [v for v in others if now.see(v).life == "alive" and table.get(b"w%d" % v, [0] * 6)[_SYNCED]]
    require(not working, "S2: a crawl is deleted although another worker works")


def check_finish(now: Now, w: int) -> None:
    """Check the state in which a worker finds the crawl finished."""
    s = now.scenario
    if s.late or s.anew or _FORGETFUL & set(s.kinds):
        return
    other = 0
    for v in range(len(now.state.processes)):
        is_other = s.queues_of(v) != s.queues_of(w)
        if is_other:
            other |= now.leased(v) | now.waiting(s.queues_of(v))
        if v in now.alive():
            # It has not joined yet, or not all queues: another visit of one would have found it.
            queues = now.seen_worker(v).queues
            is_new = any(queue.phase in _JOINING for queue in queues) and (s.parts > 1 or not queues[0].crawl.id)
            other |= now.held(v) | now.outbox(v) if is_other or is_new else 0
    left = left_of(now) & ~s.closure(other)
    require(not left, f"S2: w{w} finds the crawl finished, but {list(pages_of(left))} are left")


def check_end(now: Now, lives: list[str]) -> None:
    """Check the state in which no process is left."""
    s, oracle, stored = now.scenario, now.oracle, now.stored()
    left = oracle.found & ~now.fetched() & ~oracle.exempt & ~(s.closure(oracle.failed) & ~oracle.failed)
    has_crashed_last = "crashed" in lives and now.is_work_left()
    left &= ~(s.closure(stored) if has_crashed_last or s.stop else now.kept())
    require(not left, f"S1: {list(pages_of(left))} are lost")
    owed = oracle.owed & ~oracle.exempt & ~(s.closure(stored) if has_crashed_last else stored)
    require(not owed, f"S1: {list(pages_of(owed))} are not fetched again")
    missing = oracle.failed & ~now.fetched() & ~stored & ~oracle.exempt
    if not {"flushall", "rollback", "failed"} & set(s.kinds) and not s.anew:
        require(not missing, f"S9: {list(pages_of(missing))} failed, and are not kept")
    if "gone" in lives and "crashed" not in lives:
        lost = oracle.exempt & ~now.fetched() & ~stored
        is_lost = oracle.is_lost and (lost or not set(ABSENT) & {*s.kinds})  # new workers may find the pages again
        require(oracle.is_reported or not is_lost, "S7: a loss is not reported")
    check_leftovers(now, lives)


def check_leftovers(now: Now, lives: list[str]) -> None:
    """Check that a crawl that was finished leaves nothing."""
    s, server = now.scenario, now.seen_server()
    if set(s.kinds) == {"crash"} and "gone" in lives and not s.stop and not s.persist:
        for w, life in enumerate(lives):
            values = registrations(server, s.queues_of(w)[0]).get(b"w%d" % w)
            is_left = life == "crashed" and values and values[_SYNCED] and not now.oracle.excused >> w & 1
            require(not is_left, "S3: a worker finished after another one had died, and left it registered")
    if "crashed" in lives or s.stop or s.persist or {"rollback", *_ONE_BACK, *_UNNOTICED} & set(s.kinds):
        return
    kept = {key(queue, name).encode() for queue in s.queues for name in ("failed", "dead-letter", "deaths")}
    # A late join leaves keys without content, which their TTL ends.
    left = [name for name in server._values if name not in kept and name not in server._expiries]
    if {"filter", "filter 1"} & set(s.kinds):  # nobody knows its shards if it was lost at the end
        left = [name for name in left if not name.startswith((b"{f}:", b"{f1}:"))]
    if s.spider:  # but the filter, which is shared
        left = [name for name in left if not name.startswith((b"f", b"{f}:"))]
        left += [field for field in server.call("HKEYS", "f") if field.startswith(b"queue:")]
    require(not left, f"S3: a finished crawl leaves {left}")
