"""The plan of a simulated crawl: every decision of a seed before the first event."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass, replace
from random import Random
from typing import Any

from scrapy_bloom._runtime import TUNING, Tuning
from tests.simulation.site import Shape

# Faults that need more words than their names.
_FAULTS = {
    "flush": "flush: one more worker begins the crawl anew",
    "flush and stop": "flush and stop: one more worker begins the crawl anew, and is stopped when its Flush is done,",
    "flush and kill": "flush and kill: one more worker begins the crawl anew, and is killed when its Flush is done,",
    "kill at restore": "kill at restore: the next worker that takes up a file is killed a moment later, planned",
}


@dataclass(frozen=True)
class Fault:
    """A fault at a moment, in seconds; `number` chooses the process, the key or the manner."""

    at: float
    kind: str
    seconds: float = 0.0
    number: int = 0

    def __str__(self) -> str:
        kind = _FAULTS.get(self.kind, self.kind)
        return f"{kind} at {self.at:.2f} s" + (f" for {self.seconds:g} s" if self.seconds else "")


@dataclass(frozen=True)
class Link:
    """The link to the server.

    Attributes:
        latency: mean seconds of one way.
        spread: how many times slower or faster some processes are.
        loss: share of round trips whose request or reply is lost, while faults happen.
        lateness: maximum seconds after the timeout at which a lost command is still executed.
        interleaving: share of the commands of a pipeline before which others' commands come.
        timeout: seconds after which a worker stops waiting for a reply.
    """

    latency: float = 0.01
    spread: float = 1.0
    loss: float = 0.0
    lateness: float = 0.0
    interleaving: float = 0.0
    timeout: float = 1.0


@dataclass(frozen=True)
class Plan:
    """The settings, the site, the link and the faults of a crawl.

    Attributes:
        spiders: names of the spiders; each has its queue, and all have one filter.
        workers: processes of each spider started at the beginning, within `stagger` seconds.
        concurrency: downloads of a process at once, which take `download` seconds each, and callbacks `callback`.
        is_fed: the start requests come from a list in Redis, among some unusable data.
        is_stock: scrapy-redis's scheduler in the place of ours.
        keeps_machines: a directory outlives its process, with every kind of end.
        poison: pages whose callback kills the process.
        holding: pages whose callback holds the GIL for `held` seconds.
        course: another number draws other latencies and downloads for the same plan.
    """

    seed: int
    kind: str
    settings: dict[str, object]
    shape: Shape = field(default_factory=Shape)
    link: Link = field(default_factory=Link)
    tuning: Tuning = TUNING
    faults: tuple[Fault, ...] = ()
    spiders: tuple[str, ...] = ("sim",)
    workers: int = 2
    stagger: float = 0.0
    concurrency: int = 4
    download: float = 0.1
    callback: float = 0.01
    persists: bool = False
    is_fed: bool = False
    is_stock: bool = False
    shares_directory: bool = True
    keeps_machines: bool = True
    poison: int = 0
    holding: int = 0
    held: float = 0.0
    course: int = 0

    def __str__(self) -> str:
        usual = Plan(self.seed, self.kind, {}, faults=self.faults)
        return "\n    ".join([f"--kind {self.kind} --seed {self.seed}", *_differences(self, usual)])

    @property
    def unusable(self) -> list[bytes]:
        """Start URLs that make no request."""
        return [b"no URL, %d" % number for number in range(self.seed % 3)] if self.is_fed else []

    @property
    def faulty_until(self) -> float:
        """The moment after which the link is good and no fault happens."""
        return max((fault.at + fault.seconds for fault in self.faults), default=0.0)


def _differences(drawn: Any, usual: Any) -> Iterator[str]:
    """Yield the fields of a dataclass that differ from their defaults."""
    for name, value in vars(drawn).items():
        was = getattr(usual, name)
        if value != was:
            yield f"{name}: {', '.join(_differences(value, was))}" if is_dataclass(value) else f"{name}: {value}"


def plan_for(kind: str, seed: int) -> Plan:
    """Return the plan that a seed draws for a kind."""
    # Equal seeds of two kinds draw other crawls.
    chance = Random(f"{kind} {seed}")
    drawn = _KINDS[kind](_common(kind, seed, chance), chance)
    batch = drawn.settings["BLOOMFILTER_BATCH_SIZE"]
    assert isinstance(batch, int)
    # As in the product, where a batch fits into memory.
    kept = max(drawn.tuning.requests_in_memory, batch)
    lease = drawn.settings["BLOOMFILTER_LEASE"]
    assert isinstance(lease, float)
    # A link on which replies come after the timeout, and heartbeats after the lease, is another fault. So is a timeout
    # that is too long for the lease: one lost reply would be a death.
    timeout = min(drawn.link.timeout, lease / 2)
    # scrapy-redis's scheduler survives no late reply, not even one of 20,000.
    slowest = drawn.link.spread * (60 if drawn.is_stock else 20)
    latency = min(drawn.link.latency, timeout / slowest, lease / (40 * drawn.link.spread))
    return replace(
        drawn,
        tuning=replace(drawn.tuning, requests_in_memory=kept),
        link=replace(drawn.link, latency=latency, timeout=timeout),
    )


def _common(kind: str, seed: int, chance: Random) -> Plan:
    """Draw the common settings, so small that a short crawl reaches every limit."""
    pick = chance.choice
    return Plan(
        seed,
        kind,
        settings={
            "BLOOMFILTER_BATCH_SIZE": pick([1, 2, 3, 5, 100]),
            "BLOOMFILTER_CACHE_SIZE": pick([0, 1, 4, 10, 1000]),
            "BLOOMFILTER_LEASE": pick([1.0, 3.0, 10.0]),
            "BLOOMFILTER_RETRY_TIMEOUT": pick([1.0, 10.0, 30.0]),
            "BLOOMFILTER_CAPACITY": pick([5, 30, 1000]),
            "BLOOMFILTER_EXPANSION": pick([1, 2, 2]),
            "BLOOMFILTER_ERROR_RATE": 1e-12,
        },
        shape=Shape(
            pages=chance.randint(*pick([(3, 8), (10, 30), (30, 60)])),
            depth=pick([1, 4, 60]),
            density=pick([0, 0.5, 3]),
            repeats=pick([1, 5]),
            private=pick([0, 0.1, 0.3]),
            priorities=pick([True, False]),
            unfiltered=chance.random() < 0.3,
            failing=chance.random() < 0.3,
        ),
        link=Link(
            latency=pick([0.001, 0.01, 0.05]),
            spread=pick([1.0, 5.0]),
            interleaving=pick([0.0, 0.3]),
            timeout=pick([0.5, 1.0, 5.0]),
        ),
        tuning=Tuning(
            requests_in_memory=pick([1, 3, 5, 5000]),
            disk_batch=pick([1, 2, 5]),
            spool_batch=pick([1, 2, 1000]),
            sync_bytes=pick([200, 400, 2000, 512 * 1024]),
            kept_leases=pick([2, 150]),
            dead_letter_batch=pick([1, 50]),
            prefetch=pick([1, 3, 8]),
        ),
        workers=pick([1, 2, 2, 3, 4]),
        stagger=pick([0.0, 0.5, 5.0]),
        concurrency=pick([1, 4, 8]),
        download=pick([0.05, 0.2, 1.0]),
        callback=pick([0.001, 0.05]),
        persists=chance.random() < 0.3,
        is_fed=chance.random() < 0.25,
        shares_directory=chance.random() < 0.5,
        keeps_machines=chance.random() < 0.7,
    )


def _with(*kinds: str, number: int = 2, last: float = 30.0) -> Callable[[Plan, Random], Plan]:
    """Return a function that adds one to `number` faults of some kinds to a plan."""

    def add(plan: Plan, chance: Random) -> Plan:
        end = min(chance.choice([3.0, 10.0, 30.0]), last)
        faults = [_fault(chance.choice(kinds), end, chance) for _ in range(chance.randint(1, number))]
        return replace(plan, faults=tuple(sorted((f for pair in faults for f in pair), key=lambda fault: fault.at)))

    return add


_SECONDS: dict[str, list[float]] = {
    "refused": [0.3, 2, 8, 20],
    "hanging": [0.3, 2, 8, 20],
    "frozen": [0.3, 2, 8, 20],
    "loading": [0.3, 2],
    "readonly": [0.3, 2, 8],
    "stop": [0.5, 2, 5, 15, 40],
    "lossy": [5, 20],
}


def _fault(kind: str, end: float, chance: Random) -> list[Fault]:
    """Return a fault and its companions."""
    at = chance.random() * end
    number = chance.randrange(1 << 16)
    if kind == "outage":
        kind = chance.choice(["refused", "hanging", "frozen", "loading", "readonly"])
    fault = Fault(at, kind, chance.choice(_SECONDS.get(kind, [0.0])), number)
    if kind == "rollback":
        taken = Fault(max(0.0, at - chance.choice([0.05, 0.5, 3.0])), "snapshot", 0.0, number)
        return [taken, fault]
    if kind in ("term", "data loss", "rollback") and chance.random() < 0.4:
        return [fault, *_fault("outage", at, chance)]
    return [fault]


def _calm(plan: Plan, _: Random) -> Plan:
    return plan


def _lossy(plan: Plan, chance: Random) -> Plan:
    loss = chance.choice([0.02, 0.1, 0.3])
    link = replace(plan.link, loss=loss, lateness=chance.choice([0.0, 1.0, 10.0]))
    return _with("lossy")(replace(plan, link=link), chance)


def _mixed(plan: Plan, chance: Random) -> Plan:
    link = replace(plan.link, loss=chance.choice([0.0, 0.05]), lateness=chance.choice([0.0, 10.0]))
    return _with("outage", "stop", "kill", "term", "lossy", number=4)(replace(plan, link=link, persists=True), chance)


def _spool(plan: Plan, chance: Random) -> Plan:
    """Small memories, a long outage, and a worker's end in the middle of it."""
    batch = chance.choice([1, 2, 3])
    # Start requests wait only where it begins at once.
    begin, seconds = chance.choice([0.3, 4.0]) * chance.random(), chance.choice([4.0, 9.0])
    away = Fault(begin, chance.choice(["refused", "hanging", "frozen"]), seconds)
    end = Fault(begin + seconds * chance.random(), chance.choice(["kill", "term", "term"]), 0.0, chance.randrange(99))
    at_restore = [Fault(0.0, "kill at restore", 0.0, chance.randrange(99))] if chance.random() < 0.3 else []
    return replace(
        plan,
        settings={**plan.settings, "BLOOMFILTER_BATCH_SIZE": batch, "BLOOMFILTER_RETRY_TIMEOUT": 30.0},
        tuning=replace(plan.tuning, requests_in_memory=batch),
        shape=replace(plan.shape, pages=chance.randint(10, 40), density=chance.choice([0.5, 2]), private=0.3),
        link=replace(plan.link, loss=chance.choice([0.05, 0.2]), timeout=0.5),
        faults=(away, end, Fault(0.0, "lossy", 10.0), *at_restore),
        persists=True,
        workers=chance.choice([1, 1, 2]),
        stagger=0.0,
        download=0.2,
        concurrency=chance.choice([4, 8]),
    )


def _flush(plan: Plan, chance: Random) -> Plan:
    """A starter flushes the queue beside workers, and may be delayed or die half-way."""
    flushed = _with("flush", "flush and stop", "flush and stop", "flush and kill", "outage", number=3, last=4.0)
    plan = replace(
        plan,
        # Acknowledged start URLs do not come back with a flush.
        is_fed=False,
        # Workers are in the middle of the crawl, with filled caches.
        stagger=min(plan.stagger, 0.5),
        download=max(plan.download, 0.2),
        shape=replace(plan.shape, pages=max(plan.shape.pages, 20)),
        settings={**plan.settings, "BLOOMFILTER_CACHE_SIZE": chance.choice([4, 1000, 1000])},
    )
    return flushed(plan, chance)


def _fed(plan: Plan, chance: Random) -> Plan:
    """Start URLs with many requests each, with memories so small that these go to disk."""
    batch = chance.choice([1, 2, 3])
    plan = replace(
        plan,
        is_fed=True,
        settings={**plan.settings, "BLOOMFILTER_BATCH_SIZE": batch},
        tuning=replace(plan.tuning, requests_in_memory=batch),
        shape=replace(plan.shape, pages=chance.randint(10, 40), private=0.5, density=chance.choice([1, 3])),
        link=replace(plan.link, loss=chance.choice([0.05, 0.3])),
        stagger=0.0,
        shares_directory=False,
        # Without it a stopped crawl deletes the waiting requests, and logs it.
        persists=True,
    )
    if chance.random() < 0.5:
        return _with("outage", "lossy", "kill", "kill", "term", "stop", number=4, last=3.0)(plan, chance)
    # The machine is lost while undelivered requests are being delivered, one at a time.
    away = Fault(2 * chance.random(), "refused", chance.choice([1.0, 3.0]))
    kill = Fault(away.at + away.seconds + 1.5 * chance.random(), "kill", 0.0, chance.randrange(99))
    return replace(
        plan,
        faults=(away, kill),
        workers=chance.choice([1, 2]),
        concurrency=8,
        download=0.05,
        keeps_machines=False,
        tuning=replace(plan.tuning, disk_batch=1),
        link=replace(plan.link, latency=0.05, loss=0.0, timeout=5.0),
    )


def _ttl(plan: Plan, chance: Random) -> Plan:
    # Without cycles: a link met again after its TTL would be fetched again, and so on.
    settings = {**plan.settings, "BLOOMFILTER_TTL": chance.choice([5.0, 20.0, 60.0])}
    return replace(plan, settings=settings, shape=replace(plan.shape, density=0.0))


def _poison(plan: Plan, chance: Random) -> Plan:
    settings = {**plan.settings, "BLOOMFILTER_MAX_DELIVERIES": chance.choice([2, 3, 5]), "BLOOMFILTER_LEASE": 1.0}
    return replace(plan, settings=settings, poison=chance.choice([1, 1, 2]), keeps_machines=True)


def _gil(plan: Plan, chance: Random) -> Plan:
    settings = {**plan.settings, "BLOOMFILTER_MAX_DELIVERIES": chance.choice([2, 3]), "BLOOMFILTER_LEASE": 1.0}
    return replace(plan, settings=settings, holding=1, held=chance.choice([1.5, 6.0]), workers=chance.choice([1, 2, 3]))


def _shared(plan: Plan, chance: Random) -> Plan:
    """Two spiders with one filter."""
    return _with("term", "kill", "outage", number=2)(replace(plan, spiders=("sim", "other"), is_fed=False), chance)


def _shared_flush(plan: Plan, chance: Random) -> Plan:
    """Two spiders with one filter; workers of the first one flush its queue, and the filter of both."""
    return replace(_flush(plan, chance), spiders=("sim", "other"))


def _stock(plan: Plan, chance: Random) -> Plan:
    """scrapy-redis's scheduler with our filter, and short outages only."""
    workers = chance.choice([1, 1, 2, 3])
    # The first idle worker clears queue and filter unless they persist.
    return replace(plan, is_stock=True, is_fed=False, persists=workers > 1, workers=workers, stagger=0.0)


_KINDS: dict[str, Callable[[Plan, Random], Plan]] = {
    "calm": _calm,
    "lossy": _lossy,
    "outage": _with("outage"),
    "stop": _with("stop"),
    "kill": _with("kill"),
    "term": lambda plan, chance: _with("term")(replace(plan, persists=True), chance),
    "mixed": _mixed,
    "spool": _spool,
    "evict": _with("evict"),
    "queue": _with("delete queue"),
    "loss": _with("data loss"),
    "rollback": _with("rollback"),
    "flush": _flush,
    "fed": _fed,
    "ttl": _ttl,
    "poison": _poison,
    "gil": _gil,
    "shared": _shared,
    "shared-flush": _shared_flush,
    "stock": _stock,
}
KINDS = tuple(_KINDS)
