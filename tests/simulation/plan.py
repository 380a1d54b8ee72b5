"""The plan of a simulated crawl: every decision of a seed before the first event."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

# The keys that evictions delete: a key of the store by the end of its name, or by a part of it that ends with a colon.
EVICTIONS = ("leases:", "taken:", "crawl", "workers", "queue", "filter", "shard:", "deaths")
# The seconds of faults that last, by kind.
_SECONDS = {
    **dict.fromkeys(("refused", "hanging", "frozen", "loading"), (0.3, 2.0, 8.0, 20.0)),
    "stop": (0.5, 2.0, 5.0, 15.0),
    "lossy": (5.0, 20.0),
    "slow": (2.0, 8.0),
}
_OUTAGES = ("refused", "hanging", "frozen", "loading")
_LOSSES = ("flushall", "rollback", "evict")
_OF_PROCESSES = ("stop", "kill", "kill for good", "term")


@dataclass(frozen=True)
class Fault:
    """A fault at a moment, in seconds; `number` chooses the process, the key or the manner.

    With `is_amid` it waits for a script that changes the queue, and happens while the reply is on its way; the process
    awaits this.
    """

    at: float
    kind: str
    seconds: float = 0.0
    number: int = 0
    is_amid: bool = False


@dataclass(frozen=True)
class Plan:
    """The site, the settings, the link and the faults of a crawl.

    Attributes:
        pages, depth, density, repeats: their number, the longest way back to a page's first parent, further links a
            page, and equal links on a page at most.
        private: share of pages that only one worker knows, as a start request.
        unfiltered, local, failing, poison: pages that bypass the filter, cannot be serialized, fail once, or kill their
            process.
        spiders: each has its queue, and all have one filter.
        partitions: of the queues and the filter.
        workers: processes of each spider at the beginning, started within `stagger` seconds.
        concurrency: downloads of a process at once, which take `download` seconds each, and callbacks `callback`.
        persists: workers leave with `keep`.
        ttl: of the filter's items in seconds; 0 for ever.
        latency: mean seconds of one way; some processes are `spread` times as slow.
        loss: share of round trips whose request or reply is lost, while faults happen.
        lateness: maximum seconds after the timeout at which a lost call is still executed.
        timeout: seconds after which a worker stops waiting for a reply.
    """

    kind: str
    seed: int
    pages: int
    faults: tuple[Fault, ...] = ()
    depth: int = 4
    density: float = 0
    repeats: int = 1
    private: float = 0
    priorities: bool = False
    unfiltered: int = 0
    local: int = 0
    failing: int = 0
    poison: int = 0
    spiders: int = 1
    partitions: int = 1
    workers: int = 1
    stagger: float = 0
    concurrency: int = 1
    download: float = 0.1
    callback: float = 0.01
    persists: bool = False
    batch: int = 100
    cache: int = 1000
    lease: float = 3
    prefetch: int = 1
    max_bytes: int = 1_000_000
    capacity: int = 1000
    ttl: float = 0
    max_deaths: int = 0
    latency: float = 0.01
    spread: float = 1
    loss: float = 0
    lateness: float = 0
    timeout: float = 1

    @property
    def end_of_faults(self) -> float:
        """The moment after which the link is good and no fault happens."""
        return max((fault.at + fault.seconds for fault in self.faults), default=0.0)


def plan_for(kind: str, seed: int) -> Plan:
    """Return the plan that a seed draws for a kind."""
    of_one, _, partitions = kind.partition("/")
    # Equal seeds of two kinds draw other crawls.
    chance = Random(f"{kind} {seed}")
    plan = replace(_KINDS[of_one](_common(kind, seed, chance), chance), partitions=int(partitions or 1))
    # A link on which replies come after the timeout, and heartbeats after the lease, is another fault. So is a timeout
    # that is too long for the lease: one lost reply would be a death.
    timeout = min(plan.timeout, plan.lease / 2)
    latency = min(plan.latency, timeout / (20 * plan.spread), plan.lease / (40 * plan.spread))
    return replace(plan, timeout=timeout, latency=latency)


def _common(kind: str, seed: int, chance: Random) -> Plan:
    """Draw the common settings, so small that a short crawl reaches every limit."""
    pick = chance.choice
    return Plan(
        kind,
        seed,
        pages=chance.randint(*pick([(3, 8), (10, 25), (20, 40)])),
        depth=pick([1, 4, 60]),
        density=pick([0, 0.5, 3]),
        repeats=pick([1, 5]),
        private=pick([0, 0.1, 0.3]),
        priorities=pick([True, False]),
        unfiltered=pick([0, 0, 2]),
        workers=pick([1, 2, 2, 3, 4]),
        stagger=pick([0.0, 0.5, 3.0]),
        concurrency=pick([1, 2, 8]),
        download=pick([0.05, 0.3, 1.0]),
        callback=pick([0.001, 0.1, 0.5]),
        persists=chance.random() < 0.3,
        batch=pick([1, 2, 3, 100]),
        cache=pick([0, 4, 10, 1000]),
        lease=pick([1.0, 3.0, 10.0]),
        prefetch=pick([1, 3, 8, 16]),
        max_bytes=pick([1, 4, 1_000_000]),
        capacity=pick([5, 30, 1000]),
        latency=pick([0.001, 0.01, 0.05]),
        spread=pick([1, 5]),
        timeout=pick([0.5, 1.0, 5.0]),
    )


Draw = Callable[[Plan, Random], Plan]


def _fault(kind: str, end: float, chance: Random) -> list[Fault]:
    """Return a fault, for a rollback behind its snapshot."""
    at, number = chance.random() * end, chance.randrange(1 << 16)
    if kind == "outage":
        kind = chance.choice(_OUTAGES)
    is_amid = kind not in _SECONDS and chance.random() < 0.5
    fault = Fault(at, kind, chance.choice(_SECONDS.get(kind, (0.0,))), number, is_amid)
    before = chance.choice([0.1, 0.5, 1.0, 1.5, 1.8, 5.0])
    is_behind = kind in ("rollback", "rollback and kill", "absence")
    return [Fault(max(0.0, at - before), "snapshot", 0.0, number), fault] if is_behind else [fault]


def _with(*kinds: str, number: int = 2, is_lossy: bool = False, is_late: bool = False) -> Draw:
    """Return a function that adds one to `number` faults of some kinds to a plan, perhaps on a lossy link."""

    def draw(plan: Plan, chance: Random) -> Plan:
        end = chance.choice([3.0, 6.0, 10.0] if is_late else [1.0, 2.0, 5.0])
        drawn = [_fault(chance.choice(kinds), end, chance) for _ in range(chance.randint(1, number))]
        faults = [fault for each in drawn for fault in each]
        if is_lossy:
            loss, lateness = chance.choice([0.05, 0.2]), chance.choice([0.0, 1.0, 10.0])
            plan = replace(plan, loss=loss, lateness=lateness)
            faults.append(Fault(0.0, "lossy", end + 5))
        return replace(plan, faults=tuple(sorted(faults, key=lambda fault: fault.at)))

    return draw


def _lossy(plan: Plan, chance: Random) -> Plan:
    loss, lateness = chance.choice([0.02, 0.1, 0.3]), chance.choice([0.0, 1.0, 10.0])
    return replace(_with("lossy")(plan, chance), loss=loss, lateness=lateness)


def _poison(plan: Plan, chance: Random) -> Plan:
    plan = _with("lossy", "stop", "kill", "evict", "evict", number=3)(plan, chance) if chance.random() < 0.5 else plan
    return replace(
        plan,
        max_deaths=chance.choice([1, 2, 3]),
        lease=1.0,
        poison=min(chance.choice([1, 2]), plan.pages - 1),
        depth=60,
        concurrency=8,
    )


def _failed(plan: Plan, chance: Random) -> Plan:
    plan = _with("lossy", "kill", "stop", "term", "rollback", is_lossy=True)(plan, chance)
    return replace(plan, failing=chance.choice([1, 3]), persists=True)


def _ttl(plan: Plan, chance: Random) -> Plan:
    # Without cycles: a link met again after its TTL would be fetched again, and so on.
    return replace(plan, ttl=chance.choice([5.0, 20.0, 60.0]), density=0, repeats=1)


def _absent(plan: Plan, chance: Random) -> Plan:
    """A partition loses data while no worker runs, or with the death of one worker."""
    plan = replace(_long(plan, chance), persists=True, workers=max(plan.workers, 2))
    if chance.random() < 0.5:
        return _with("rollback and kill", is_late=True)(plan, chance)
    return _with("absence", number=1, is_late=True)(plan, chance)


def _frozen(plan: Plan, chance: Random) -> Plan:
    """A worker wakes up when the others have ended the crawl, of which the server may have lost something."""
    plan = replace(plan, lease=1.0, workers=max(plan.workers, 2))
    return _with("stop", "stop", *_LOSSES, number=3)(plan, chance)


def _rollback(plan: Plan, chance: Random) -> Plan:
    """The server, or a partition, goes back in the middle of the crawl: its first acknowledgements take seconds."""
    return _with("rollback", is_late=True)(_long(plan, chance), chance)


def _long(plan: Plan, chance: Random) -> Plan:
    plan = replace(plan, stagger=min(plan.stagger, 0.5), pages=chance.randint(25, 60), batch=max(plan.batch, 3))
    return replace(plan, concurrency=chance.choice([2, 8]), download=chance.choice([0.1, 0.3, 1.0]))


def _flush(plan: Plan, chance: Random) -> Plan:
    """A starter flushes the queue beside workers in the middle of the crawl, with filled caches."""
    plan = replace(plan, stagger=min(plan.stagger, 0.5), download=0.2, pages=max(plan.pages, 20))
    return _with("flush", "flush", *_OF_PROCESSES, "outage", number=3, is_lossy=chance.random() < 0.5)(plan, chance)


def _local(draw: Draw) -> Draw:
    return lambda plan, chance: draw(replace(plan, local=chance.choice([1, 4, 40])), chance)


def _shared(draw: Draw) -> Draw:
    return lambda plan, chance: draw(replace(plan, spiders=2, workers=min(plan.workers, 2)), chance)


_KINDS: dict[str, Draw] = {
    "calm": lambda plan, _: plan,
    "lossy": _lossy,
    "slow": _with("slow", "lossy", is_lossy=True),
    "outage": _with("outage"),
    "stop": _with("stop"),
    "frozen": _frozen,
    "kill": _with("kill", "kill for good"),
    "term": _with("term"),
    "mixed": _with("outage", "slow", *_OF_PROCESSES, number=4, is_lossy=True),
    "loss": _with("flushall"),
    "rollback": _rollback,
    "evict": _with("evict", "evict", "kill", "kill for good", number=3),
    "absent": _absent,
    "double": _with(*_LOSSES, "flush", "evict", *_OF_PROCESSES, "outage", number=2, is_lossy=True),
    "flush": _flush,
    "poison": _poison,
    "failed": _failed,
    "ttl": _ttl,
    "local": _local(_with("outage", *_OF_PROCESSES, "lossy", number=3, is_lossy=True)),
    "local-loss": _local(_with(*_LOSSES, "flush", "evict", *_OF_PROCESSES, is_lossy=True)),
    "shared": _shared(_with("outage", *_OF_PROCESSES)),
    "shared-double": _shared(_with(*_LOSSES, "evict", *_OF_PROCESSES, is_lossy=True)),
}
KINDS = (*_KINDS, *(f"{kind}/{partitions}" for kind in _KINDS for partitions in (2, 5)))


class Site:
    """The pages of a crawl by number: `links` to others, with scores, and the start pages of each worker."""

    def __init__(self, plan: Plan) -> None:
        chance = Random(f"site {plan.kind} {plan.seed}")
        pages = range(plan.pages)
        slots = plan.workers * plan.spiders
        private = [page for page in pages[1:] if chance.random() < plan.private]
        self.roots = [[0, *private[slot::slots]] for slot in range(slots)]
        self.links: list[list[tuple[int, float]]] = [[] for _ in pages]
        self.unfiltered: set[int] = set()
        for page in pages[1:]:
            if page not in private:
                self._link(chance.randrange(max(0, page - plan.depth), page), page, plan, chance)
        leaves = [page for page in pages[1:] if not self.links[page] and page not in private]
        # A cycle of pages that bypass the filter has no end.
        self.unfiltered = set(chance.sample(leaves, min(plan.unfiltered, len(leaves))))
        for _ in range(int(plan.pages * plan.density)):
            self._link(chance.randrange(plan.pages), chance.randrange(plan.pages), plan, chance)
        for links in filter(None, self.links):
            links.extend(chance.choices(links, k=chance.randrange(plan.repeats)))
            chance.shuffle(links)
        special = chance.sample(pages[1:], min(plan.pages - 1, plan.poison + plan.failing))
        self.poison, self.failing = set(special[: plan.poison]), set(special[plan.poison :])
        others = [page for page in pages[1:] if page not in private and page not in self.unfiltered | self.failing]
        self.local = set(chance.sample(others, min(plan.local, len(others))))

    def _link(self, source: int, target: int, plan: Plan, chance: Random) -> None:
        if source not in self.unfiltered:
            self.links[source].append((target, chance.choice([0.0, 0.0, 1.0, -1.0, 5.0]) if plan.priorities else 0.0))

    def closure(self, pages: set[int]) -> set[int]:
        """Return pages and all that they lead to, but for what further local ones lead to."""
        found, todo = set(pages), sorted(pages)
        while todo:
            new = {target for target, _ in self.links[todo.pop()]} - found
            found |= new
            todo += sorted(new - self.local)
        return found
