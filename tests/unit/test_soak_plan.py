"""The plans of the soak: reproducible by seed, and free of false alarms."""

from collections import Counter
from typing import Any

import pytest

from devtools.soak import plan
from devtools.soak.__main__ import report
from devtools.soak.crawl import Outcome
from devtools.soak.plan import SIGNALS, Fault, Kind, Plan

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
    """Only the requested kinds are drawn, and half of the crawls persist."""
    assert {planned.persist for planned in PLANS} == {False, True}
    for kinds in ({*SIGNALS}, {Kind.BUSY}):
        assert all({fault.kind for fault in plan.draw(7, number, [*kinds]).faults} <= kinds for number in range(50))


PLANNED = Plan(0, 2, 10, 1, persist=False, faults=(Fault(Kind.SIGKILL, 3, 0.5),))


def outcome(**seen: Any) -> Outcome:
    """The outcome of a crawl in which the planned fault happened."""
    return Outcome(PLANNED, Counter({Kind.SIGKILL: 1}), **seen)


@pytest.mark.parametrize(
    ("seen", "complaint"),
    [
        (outcome(missed={"/page/1", "/page/2"}), "missed 2: /page/1, /page/2"),
        (outcome(hung=["worker-1"]), "hung 1: worker-1"),
        (outcome(failed=["worker-0 (1, None)"]), "failed 1: worker-0 (1, None)"),
        (outcome(left={"soak-0:filter"}), "left 1: soak-0:filter"),
        (Outcome(PLANNED), "absent 1: SIGKILL"),
    ],
)
def test_complaints(seen: Outcome, complaint: str) -> None:
    """Each complaint is named, and counted in the report."""
    assert list(seen.complaints) == [complaint]
    assert f"{PLANNED}: {complaint}, " in str(seen)
    assert "crawls not well         1\n" in report([outcome(), seen])


def test_more_faults_than_planned() -> None:
    """A fault that happens more often than planned is no complaint."""
    assert not list(Outcome(PLANNED, Counter({Kind.SIGKILL: 2, Kind.BUSY: 1})).complaints)
