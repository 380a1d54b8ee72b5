"""Shrink a failing crawl: fewer faults, workers and pages, as long as it has the same problem."""

from collections.abc import Iterator
from dataclasses import replace

from scrapy_bloom._runtime import TUNING
from tests.simulation.crawl import Outcome, simulate
from tests.simulation.plan import Link, Plan
from tests.simulation.site import Shape

# Courses tried for each smaller crawl: with fewer draws, chance takes another way.
_COURSES = 6


def shrink(outcome: Outcome) -> Outcome:
    """Return the smallest crawl found with one of the problems of this one."""
    kinds = outcome.kinds
    while smaller := _first_smaller(outcome, kinds):
        outcome = smaller
    return outcome


def _first_smaller(outcome: Outcome, kinds: set[str]) -> Outcome | None:
    for plan in _smaller(outcome.plan):
        for course in range(_COURSES):
            tried = simulate(replace(plan, course=course))
            if tried.kinds & kinds:
                return tried
    return None


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield smaller plans; the largest steps first."""
    for fault in plan.faults:
        yield replace(plan, faults=tuple(each for each in plan.faults if each is not fault))
    if plan.workers > 1:
        yield replace(plan, workers=plan.workers - 1)
    for pages in (plan.shape.pages // 2, plan.shape.pages - 1):
        if plan.poison + plan.holding < pages < plan.shape.pages:
            yield replace(plan, shape=replace(plan.shape, pages=pages))
    for name, value in vars(Shape(plan.shape.pages)).items():
        if getattr(plan.shape, name) != value and name != "depth":
            yield replace(plan, shape=replace(plan.shape, **{name: value}))
    for name, value in vars(Link()).items():
        if getattr(plan.link, name) != value and name in ("spread", "loss", "lateness", "interleaving"):
            yield replace(plan, link=replace(plan.link, **{name: value}))
    for name, value in vars(TUNING).items():
        if getattr(plan.tuning, name) != value:
            yield replace(plan, tuning=replace(plan.tuning, **{name: value}))
    for name, value in {"is_fed": False, "stagger": 0.0, "concurrency": 1, "shares_directory": True}.items():
        if getattr(plan, name) != value:
            yield replace(plan, **{name: value})  # type: ignore[arg-type]
