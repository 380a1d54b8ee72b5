"""The plans of the soak: reproducible by seed, and free of false alarms."""

from collections import Counter
from typing import Any

import pytest

from devtools.soak import plan
from devtools.soak.plan import SIGNALS, Fault, Kind, Plan
from devtools.soak.report import Outcome, Report

KINDS = list(Kind)
PLANS = [plan.draw(7, number, KINDS) for number in range(200)]


def test_plans_are_drawn_from_the_seed() -> None:
    """The same seed and number give the same crawl, another seed others: every kind of fault, and number of workers."""
    assert [plan.draw(7, number, KINDS) for number in range(200)] == PLANS
    assert [plan.draw(8, number, KINDS) for number in range(200)] != PLANS
    assert {fault.kind for planned in PLANS for fault in planned.faults} == set(Kind)
    assert {planned.workers for planned in PLANS} == set(range(plan.WORKERS[0], plan.WORKERS[1] + 1))


def test_nobody_is_asked_to_stop_who_would_clear() -> None:
    """Only workers of a persistent crawl are asked to stop, even if no other fault is possible."""
    for planned in [*PLANS, *(plan.draw(7, number, [Kind.SIGTERM]) for number in range(20))]:
        assert planned.persist or all(fault.kind is not Kind.SIGTERM for fault in planned.faults)


def test_choices() -> None:
    """SCHEDULER_PERSIST may be fixed for all crawls, and only the requested kinds are drawn."""
    for persist in (False, True):
        plans = [plan.draw(7, number, KINDS, persist=persist) for number in range(50)]
        assert {planned.persist for planned in plans} == {persist}
        assert persist == any(fault.kind is Kind.SIGTERM for planned in plans for fault in planned.faults)
    for kinds in ({*SIGNALS}, {Kind.BUSY}):
        assert all({fault.kind for fault in plan.draw(7, number, [*kinds]).faults} <= kinds for number in range(50))


PLANNED = Plan(0, 2, 10, 1, persist=False, faults=(Fault(Kind.SIGKILL, 3, 0.5),))


def outcome(**seen: Any) -> Outcome:
    """The outcome of a crawl in which the planned fault happened."""
    return Outcome(PLANNED, Counter({Kind.SIGKILL: 1}), **seen)


def report_of(*outcomes: Outcome) -> Report:
    """The report of these crawls."""
    report = Report()
    report.outcomes += outcomes
    return report


@pytest.mark.parametrize(
    ("seen", "complaint", "row"),
    [
        (outcome(missed={"/page/1", "/page/2"}), "missed 2: /page/1, /page/2", "pages missed            2"),
        (outcome(hung=["worker-1"]), "hung 1: worker-1", "workers hung            1"),
        (outcome(failed=["worker-0 (1, None)"]), "failed 1: worker-0 (1, None)", "workers failed          1"),
        (outcome(left={"soak-0:filter"}), "left 1: soak-0:filter", "keys left               1"),
        (Outcome(PLANNED), "absent 1: SIGKILL", "faults absent           1"),
    ],
)
def test_complaints(seen: Outcome, complaint: str, row: str) -> None:
    """Each complaint fails its crawl and the report, which both name it."""
    assert not seen.is_well
    assert list(seen.complaints) == [complaint]
    assert f"{PLANNED}: {complaint}, " in str(seen)
    report = report_of(outcome(), seen)
    assert not report.is_well
    assert f"{row}\n" in str(report)
    assert "crawls not well         1\n" in str(report)


def test_more_faults_than_planned() -> None:
    """A fault that happens more often than planned is no complaint."""
    assert Outcome(PLANNED, Counter({Kind.SIGKILL: 2, Kind.BUSY: 1})).is_well


def test_cost_of_a_kill() -> None:
    """The mean is taken over the kills of the crawls with no other faults."""
    twice = Outcome(PLANNED, Counter({Kind.SIGKILL: 2}), twice=2)
    other = Outcome(PLANNED, Counter({Kind.SIGKILL: 1, Kind.BUSY: 1}), twice=100)
    report = report_of(twice, outcome(twice=4), other)
    assert report.is_well
    assert "2.0, 3 times in crawls with no other faults" in str(report)
    assert "pages fetched twice     106\n" in str(report)
    assert "twice for each SIGKILL  -\n" in str(report_of(other))
