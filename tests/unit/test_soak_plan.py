"""The plans of the soak: the same for the same seed, and such that what they show is a fault of the crawl."""

import pytest

from devtools.soak import plan
from devtools.soak.plan import SIGNALS, Fault, Kind, Plan
from devtools.soak.report import Outcome, Report

KINDS = list(Kind)
PLANS = [plan.draw(7, number, KINDS) for number in range(200)]


def test_plans_are_drawn_from_the_seed() -> None:
    """The same seed and number give the same crawl; another seed gives others."""
    assert [plan.draw(7, number, KINDS) for number in range(200)] == PLANS
    assert [plan.draw(8, number, KINDS) for number in range(200)] != PLANS


def test_all_kinds_are_drawn() -> None:
    """Every kind of fault happens, in crawls of each number of workers."""
    assert {fault.kind for planned in PLANS for fault in planned.faults} == set(Kind)
    assert {planned.workers for planned in PLANS} == set(range(plan.WORKERS[0], plan.WORKERS[1] + 1))


def test_nobody_is_asked_to_stop_who_would_clear() -> None:
    """Only a crawl that persists has a worker that is asked to stop, also where nothing else may happen."""
    for planned in [*PLANS, *(plan.draw(7, number, [Kind.SIGTERM]) for number in range(20))]:
        assert planned.persist or all(fault.kind is not Kind.SIGTERM for fault in planned.faults)


@pytest.mark.parametrize("kinds", [list(SIGNALS), [Kind.BUSY]])
def test_kinds_are_chosen(kinds: list[Kind]) -> None:
    """Only the kinds that were asked for are drawn."""
    for number in range(50):
        assert {fault.kind for fault in plan.draw(7, number, kinds).faults} <= set(kinds)


def test_each_page_is_found_in_one_place() -> None:
    """Of the pages that come before it only its parent links to a page, so that a request that is lost is a hole."""
    links = plan.site(100)
    paths = list(links)
    for number, path in enumerate(paths[1:], 1):
        assert sum(path in links[before] for before in paths[:number]) == 1


def test_report() -> None:
    """A crawl that missed a page is told of, and so is what a kill costs where nothing else happened."""
    planned = Plan(0, 2, 10, 1, persist=False, faults=(Fault(Kind.SIGKILL, 3, 0.5),))
    report = Report()
    report.outcomes.append(well := Outcome(planned, twice=3))
    well.happened[Kind.SIGKILL] = 2
    assert report.is_well
    assert "1.5, 2 times" in str(report)
    report.outcomes.append(Outcome(planned, missed={"/page/1"}))
    assert not report.is_well
    assert "missed 1: /page/1" in str(report.outcomes[1])
