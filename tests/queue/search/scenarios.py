"""The scenarios of the search. Page 0 is the start: 0 leads to 1 and 2, 1 to 2 and 3, 2 to 3."""

from dataclasses import replace
from typing import Any

from scrapy_bloom.transport.scripts import FILTER, Script
from tests.queue.search.world import Scenario

Links = tuple[tuple[int, ...], ...]

DIAMOND: Links = ((1, 2), (2, 3), (3,), ())
SMALL: Links = ((1, 2), (2,), ())
TINY: Links = ((1,), ())
TREE: Links = ((1, 2), (), ())
LOOP: Links = ((0, 1), (0,))
CHAIN: Links = ((1, 3), (2,), (3,), (1,))
LOST = ("lost", "crash", "false")

_HAS = """
local filter = load_filter()
local f = filter.open(KEYS[1])
return f and filter.has(f, ARGV[1]) and 1 or 0
"""


def scripts() -> dict[str, str]:
    """Return the scripts of the queue, and one to look an item up."""
    libraries = *FILTER, "steps", "queue"
    texts = {name: Script(name, *libraries).text for name in ("join", "prepare", "sync", "leave", "heartbeat")}
    return {**texts, "has": Script("filter", "block").text + _HAS}


def one(links: Links, faults: int = 0, kinds: tuple[str, ...] = (), **more: Any) -> Scenario:
    """Return a scenario of one worker."""
    return Scenario(links, ((0,),), faults, kinds, **more)


def two(links: Links, faults: int = 0, kinds: tuple[str, ...] = (), **more: Any) -> Scenario:
    """Return a scenario of two workers."""
    return Scenario(links, ((0,), (0,)), faults, kinds, **more)


def spare(links: Links, faults: int = 0, kinds: tuple[str, ...] = (), **more: Any) -> Scenario:
    """Return a scenario of two workers, and a third if both have died."""
    return Scenario(links, ((0,), (0,), (0,)), faults, kinds, spare=(2,), **more)


def local(links: Links, pages: int, faults: int = 0, kinds: tuple[str, ...] = (), **more: Any) -> Scenario:
    """Return a scenario in which some pages cannot be serialized, of a worker, and another one behind it."""
    return Scenario(links, ((0,), (0,)), faults, kinds, spare=(1,), **{"at_once": 2, "want": 2, "local": pages, **more})


def poison(workers: int, living: int, **more: Any) -> Scenario:
    """Return a scenario in which page 1 kills its worker."""
    spares = tuple(range(living, workers))
    return Scenario(TREE, ((0,),) * workers, spare=spares, poison=2, most=5, **{"max_deaths": 2, **more})


def pair(faults: int = 0, kinds: tuple[str, ...] = (), **more: Any) -> Scenario:
    """Return a scenario of two spiders, each with a queue, that share the filter."""
    roots = (0,), (1,), (0,), (1,)
    return Scenario(((2,), (2,), ()), roots, faults, kinds, spider=(0, 1, 0, 1), spare=(2, 3), **more)


SCENARIOS = {
    "no fault": two(DIAMOND),
    "no fault, two ahead, two at once": two(DIAMOND, want=3, at_once=2, is_slow=True),
    "no fault, batches of one": two(DIAMOND, want=2, batch=1, is_slow=True),
    "no fault, three workers": Scenario(SMALL, ((0,),) * 3, want=2),
    "no fault, one joins late": Scenario(SMALL, ((0,),) * 3, late=(2,)),
    "no fault, one is stopped": spare(DIAMOND, want=2, stop=(0,)),
    "no fault, both are stopped": spare(SMALL, want=2, stop=(0, 1)),
    "no fault, both are stopped, kept": spare(SMALL, want=2, stop=(0, 1), persist=True),
    **{
        f"stopped, {kind}": spare(SMALL, 1, (kind,), want=2, at_once=2, stop=(0,), persist=True)
        for kind in ("lost", "crash", "false", "lease", "flushall", "filter", "rollback")
    },
    "stopped, overlaps": spare(TINY, 1, LOST, want=2, stop=(0,), persist=True, overlaps=True),
    "stopped, unfiltered": spare(SMALL, 1, LOST, want=2, stop=(0,), persist=True, unfiltered=4),
    "no fault, a page that leads to itself": two(LOOP),
    "overlaps": spare(SMALL, 1, LOST, want=2, overlaps=True),
    "overlaps, batches of one": spare(SMALL, 1, LOST, want=2, overlaps=True, batch=1, is_slow=True),
    **{f"{kind}": spare(SMALL, 1, (kind,), want=2) for kind in LOST},
    **{f"{kind}, diamond": spare(DIAMOND, 1, (kind,), want=2) for kind in LOST},
    **{f"{kind}, slow, batches of one": spare(SMALL, 1, (kind,), want=2, batch=1, is_slow=True) for kind in LOST},
    "lost, each page once": two(SMALL, 1, ("lost",), want=2, is_slow=True, most=1),
    "lost twice, each page once": two(TINY, 2, ("lost",), want=2, most=1),
    "crash twice": spare(SMALL, 2, ("crash",), want=2),
    "false twice": spare(SMALL, 2, ("false",), want=2),
    "any two of lost, crash, false": spare(TINY, 2, LOST),
    "any two of lost, crash, false, small": spare(SMALL, 2, LOST),
    "lost all": spare(SMALL, 1, ("flushall",), want=2, is_slow=True),
    "lost all, and another": spare(TINY, 2, ("flushall", *LOST)),
    "lost the queue": spare(DIAMOND, 1, ("queue",)),
    "lost the queue, and another": spare(TINY, 2, ("queue", "lost", "crash")),
    "lost the queue and its audit": spare(SMALL, 1, ("audit",), want=2),
    "lost the records": spare(SMALL, 1, ("crawl",), want=2),
    "lost the registrations": spare(SMALL, 1, ("workers",), want=2),
    "lost the records or registrations, and another": spare(TINY, 2, ("crawl", "workers", *LOST)),
    "lost the filter": spare(DIAMOND, 1, ("filter", "shard"), want=2),
    "lost the filter, and another": spare(TINY, 2, ("filter", "lost", "crash")),
    "lost leases": spare(DIAMOND, 1, ("lease",), want=2),
    "lost leases, and another": spare(TINY, 2, ("lease", *LOST)),
    "lost leases, and a lost reply": spare(SMALL, 2, ("lease", "lost"), want=2),
    "rollback": two(SMALL, 1, ("rollback",), want=2, is_slow=True),
    "rollback, start requests": Scenario(((), (), ()), ((0, 1, 2),), 1, ("rollback",), batch=1),
    "rollback, lost, start requests": Scenario(((), ()), ((0, 1),), 2, ("rollback", "lost"), batch=1),
    "lost leases, and all, start requests": Scenario(((), ()), ((0, 1),), 2, ("lease", "flushall"), batch=1),
    "lost leases, and a rollback, start requests": Scenario(((), ()), ((0, 1),), 2, ("lease", "rollback"), batch=1),
    "rollback, lost": two(TINY, 2, ("rollback", "lost")),
    "rollback, lost, small": two(SMALL, 2, ("rollback", "lost"), want=2, is_slow=True),
    "rollback, crash": spare(TINY, 2, ("rollback", "crash")),
    "rollback, false": two(TINY, 2, ("rollback", "false")),
    **{f"false, {kind}": spare(SMALL, 2, ("false", kind)) for kind in ("flushall", "queue", "audit", "lease", "crawl")},
    "failing": spare(SMALL, failing=6, want=2),
    "failing, and another": spare(SMALL, 1, LOST, failing=2),
    "unfiltered": spare(SMALL, 1, ("lost", "crash"), want=2, unfiltered=4),
    "unfiltered, false": spare(SMALL, 1, ("false",), want=2, unfiltered=4),
    "unfiltered, equal, two at once": spare(((1, 2), (), (1,)), 1, LOST, want=3, at_once=2, unfiltered=2),
    "unfiltered, two faults": spare(SMALL, 2, ("crash", "false"), want=2, unfiltered=4),
    "a page that leads to itself": spare(LOOP, 1, LOST),
    "local": local(DIAMOND, 2),
    "local, two workers": two(DIAMOND, local=2),
    **{f"local, {kind}": local(DIAMOND, 2, 1, (kind,)) for kind in ("lost", "crash", "flushall", "rollback", "lease")},
    **{f"local links, {kind}": local(CHAIN, 6, 1, (kind,)) for kind in ("lost", "crash", "flushall", "rollback")},
    "local, lost twice, each page once": one(((1, 2), (), (1,)), 2, ("lost",), local=2, want=2, most=1),
    "local, presumed dead": two(TREE, 1, ("false",), local=6),
    "local, lost the filter": local(CHAIN, 6, 1, ("filter", "shard"), persist=True),
    "local start, any two": local(TINY, 1, 2, LOST),
    "local, any two": local(TINY, 2, 2, LOST),
    "local, rollback, lost": local(CHAIN, 2, 2, ("rollback", "lost")),
    "local, two workers, and another": spare(SMALL, 1, LOST, want=2, local=2),
    "local, slow, batches of one": local(CHAIN, 6, 1, LOST, batch=1, is_slow=True),
    "local, stopped": local(CHAIN, 6, stop=(0,), persist=True),
    "local, failing": local(SMALL, 2, failing=5),
    "poison": poison(5, 1, want=2),
    "poison, two at once": poison(5, 2, want=3, at_once=2),
    "poison, three deaths": poison(5, 1, want=2, max_deaths=3),
    "poison, and a crash": poison(6, 1, want=2, faults=1, kinds=("crash",)),
    "flush by another": Scenario(SMALL, ((0,),) * 3, anew=(2,), want=2, most=3),
    "flush by another, and another": Scenario(TINY, ((0,),) * 3, 1, LOST, anew=(1,), spare=(2,), most=3),
    "two spiders": Scenario(((1,), (3,), (3,), ()), ((0,), (2,), (0,)), late=(2,), spider=(0, 1, 0)),
    "two spiders, and another": pair(1, LOST),
    "two spiders, one stopped": pair(stop=(0,)),
    "two spiders, lost the filter": Scenario(
        ((2,), (2, 3), (), (2,)), ((0,), (1,), ()), 1, ("filter",), spare=(2,), spider=(0, 1, 0), most=3
    ),
    **{
        f"partitions, {name}": replace(scenario, parts=2)
        for name, scenario in {
            "no fault": two(DIAMOND, want=2),
            "no fault, slow, batches of one": two(SMALL, batch=1, is_slow=True),
            "no fault, three workers": Scenario(TINY, ((0,),) * 3),
            "no fault, a start page each": Scenario(((2,), (2,), ()), ((0,), (1,))),
            "overlaps": spare(TINY, 1, LOST, overlaps=True),
            "one joins late": Scenario(SMALL, ((0,), (0,)), late=(1,)),
            "one is stopped": spare(SMALL, want=2, stop=(0,)),
            "one is stopped, lost": spare(SMALL, 1, ("lost",), want=2, stop=(0,), persist=True),
            "one comes and is stopped": Scenario(((), (2,), ()), ((), (1,)), stop=(1,)),
            **{kind: spare(SMALL, 1, (kind,), want=2) for kind in LOST},
            "lost, each page once": two(TINY, 1, ("lost",), most=1),
            "crash, one joins late": Scenario(TINY, ((0,),) * 3, 1, ("crash",), late=(1,), spare=(2,)),
            "flushall": spare(TINY, 1, ("flushall",)),
            "flush by another": Scenario(TINY, ((0,), (0,)), anew=(1,), most=3),
            "flush by another, one joins late": Scenario(((), (2,), ()), ((1,),) * 3, anew=(1,), late=(2,), most=3),
            "flush by another, crash": Scenario(TINY, ((0,),) * 3, 1, ("crash",), anew=(1,), spare=(2,), most=3),
            "lost one queue": spare(SMALL, 1, ("queue", "queue 1")),
            "lost one filter": spare(SMALL, 1, ("filter", "filter 1")),
            "lost one while none runs": Scenario(
                SMALL, ((0,), ()), 1, ("all 0", "all 1"), want=2, stop=(0,), spare=(1,), persist=True, most=3
            ),
            "rollback of one": two(((1,), (2,), ()), 1, ("rollback 0", "rollback 1")),
            "rollback of one, many links": one(((1, 3, 5, 7), *[()] * 7), 1, ("rollback 0", "rollback 1")),
            "rollback of one, crash": spare(((1,), (2,), ()), 2, ("rollback 0", "rollback 1", "crash")),
            "lost leases": spare(SMALL, 1, ("lease",), want=2),
            "lost the records": spare(TINY, 1, ("crawl", "crawl 1")),
            "lost the registrations": spare(TINY, 1, ("workers", "workers 1")),
            "rollback": two(TINY, 1, ("rollback",)),
            "failing": spare(TINY, 1, ("crash",), failing=2),
            "any two of lost, crash, false": spare(TINY, 2, LOST),
            "unfiltered": spare(SMALL, 1, ("lost", "crash"), want=2, unfiltered=4),
            "poison": poison(5, 1, want=2),
            "poison, two at once": poison(5, 2, want=3, at_once=2),
            "local, any": local(SMALL, 2, 1, LOST),
            "local, flushall": local(SMALL, 1, 1, ("flushall",)),
            "local, stopped": local(CHAIN, 6, stop=(0,), persist=True),
        }.items()
    },
}
