"""The verdicts of the benchmarks are the right way round."""

import itertools
from types import ModuleType

import pytest

from benchmarks.harness import fill_by_processes, report, results, targets
from benchmarks.harness.confidence import wilson
from benchmarks.harness.fill_by_processes import shares
from benchmarks.harness.interleaved import interleave, ratio, rotated
from benchmarks.harness.options import Asked
from benchmarks.harness.outcome import Outcome
from benchmarks.subjects.distances import Run, multiples
from benchmarks.subjects.fillings import EQUAL, IDLE, STAGGERED, UNEVEN, Filling, turns
from benchmarks.subjects.whole_crawl import OUR_SCHEDULER, OURS, SCRAPY, STOCK
from benchmarks.suites import promise, promise_cluster


def test_ratio_is_that_of_the_first_to_the_second() -> None:
    """The ratio is the median, over the rounds, of the first cost over the second."""
    assert ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]) == 3.0
    assert ratio([1.0], [4.0]) == 0.25


def test_ratio_is_taken_within_each_round() -> None:
    """A round in which everything is slow has no effect: separate medians would give 10."""
    assert ratio([2.0, 20.0, 200.0], [1.0, 1.0, 100.0]) == 2.0


def test_contenders_take_turns() -> None:
    """Each runs once a round, a different one first each time, and has its own costs."""
    ran: list[str] = []

    def contender(name: str) -> float:
        ran.append(name)
        return float(len(ran))

    costs = interleave(2, {"a": lambda: contender("a"), "b": lambda: contender("b")})
    assert ran == ["a", "b", "b", "a"]
    assert costs == {"a": [1.0, 4.0], "b": [2.0, 3.0]}
    assert rotated([1, 2, 3], 4) == [2, 3, 1]


@pytest.mark.parametrize(
    ("measured", "verdict"), [(0.5, "0.500: met."), (1.0, "1.000: met."), (1.01, "1.010: MISSED.")]
)
def test_target_is_met_by_what_is_at_most_that(
    measured: float, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A measurement exactly at the target meets it, and one above misses it."""
    report.target("times Scrapy", measured, 1.0)
    assert capsys.readouterr().out.strip() == f"Target: times Scrapy at most 1. Measured {verdict}"


@pytest.mark.parametrize(
    ("name", "workers", "most"),
    [
        ("python3-doc", 1, [0.9]),
        ("postgresql-doc-15", 1, [1.0]),
        ("python3-doc", 2, []),
        ("made-up site", 1, []),
    ],
)
def test_crawls_of_one_worker_have_a_target(name: str, workers: int, most: list[float]) -> None:
    """Only crawls of the documented directories by one worker have a target."""
    assert targets.of_crawl(name, workers) == most


def test_the_interval_holds_the_rate() -> None:
    """Wilson's interval of 10 in 100, as in textbooks, and that of 0 in many."""
    assert wilson(10, 100) == pytest.approx((0.0552, 0.1744), abs=1e-4)
    low, high = wilson(0, 1_000)
    assert low == 0.0
    assert high == pytest.approx(0.00383, abs=1e-5)
    assert report.rate(10, 100) == "1.00e-01 (5.52e-02 to 1.74e-01)"


@pytest.mark.parametrize(
    ("wrong", "by_bits", "is_kept"),
    [
        (10, 0.9e-3, True),
        # More than promised: within chance, and beyond it.
        (12, 0.9e-3, True),
        (30, 0.9e-3, False),
        (0, 1.2e-3, False),
        (0, 0.0, True),
    ],
)
def test_a_promise_is_broken_by_answers_or_by_bits(wrong: int, by_bits: float, is_kept: bool) -> None:
    """A promise is kept if neither the answers nor the bits exceed the promised error rate."""
    outcome = Outcome(1e-3, wrong, 10_000, 1, 1.0, 1.0, by_bits)
    assert outcome.ratio == pytest.approx(wrong / 10)
    assert outcome.interval[0] <= outcome.ratio <= outcome.interval[1]
    assert outcome.is_kept == is_kept


@pytest.mark.parametrize(
    ("suite", "broken", "verdict"),
    [
        (promise, [], "0.000: met."),
        (promise, [promise.ON_A_SERVER[-1]], "1.000: MISSED."),
        (promise, [promise.IN_PROCESSES[0]], "1.000: MISSED."),
        (promise, [promise.IN_MEMORY[0], promise.IN_MEMORY[-1]], "2.000: MISSED."),
        (promise_cluster, [promise.ON_A_SERVER[0], promise.IN_PROCESSES[-1]], "2.000: MISSED."),
    ],
)
def test_each_broken_promise_counts(
    suite: ModuleType,
    broken: list[Filling],
    verdict: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A broken promise of any filling misses the target: over a server or a cluster, in processes, or in memory."""

    def measure(filling: Filling, *_: object) -> Outcome:
        bits = filling.error_rate * (2 if filling in broken else 0.5)
        return Outcome(filling.error_rate, 0, 10_000, 1, 1.0, 1.0, bits)

    monkeypatch.setattr(promise, "spread", lambda _, tasks: [measure(task.filling) for task in tasks])
    monkeypatch.setattr(fill_by_processes, "measure", measure)
    suite.run(Asked())
    printed = capsys.readouterr().out
    assert f"Target: fillings that broke the promise, at most 0. Measured {verdict}" in printed
    assert printed.count(" BROKEN |") == len(broken)


@pytest.mark.parametrize("way", [STAGGERED, IDLE, UNEVEN, EQUAL])
@pytest.mark.parametrize(("capacity", "batch"), [(1, 1), (1_000, 1), (1_000, 7), (10_000, 300)])
def test_a_filling_adds_what_it_says(way: str, capacity: int, batch: int) -> None:
    """Eight workers add the given items, in batches within the maximum size."""
    filling = Filling(way, 8, capacity, 1e-3, times=10, batch=batch)
    taken = list(turns(filling))
    assert sum(turn.items for turn in taken) == 10 * capacity
    assert all(0 < turn.items <= batch for turn in taken)
    assert {turn.worker for turn in taken} <= set(range(8))
    if way in (STAGGERED, IDLE):
        assert [worker for worker, _ in itertools.groupby(turn.worker for turn in taken)][:8] == list(range(8))


def test_processes_share_what_is_to_be_added() -> None:
    """Each item falls to one process, and their shares differ by at most one item."""
    parts = shares(10, 31, 4)
    assert [number for part in parts for number in part] == list(range(10, 31))
    assert {len(part) for part in parts} == {5, 6}


def test_crawls_are_compared_with_the_one_that_has_no_redis() -> None:
    """Each subject is compared, round by round, with the crawl without Redis."""
    takes = {SCRAPY: 1.0, STOCK: 4.0, OURS: 2.0, OUR_SCHEDULER: 0.5}
    costs = {
        Run(kind, where): [times * slow, 2 * times * slow, 30 * times * slow]
        for kind, times in takes.items()
        for where, slow in (("near", 1.0), ("far", 3.0))
    }
    costs[Run(STOCK, "far")] = [27.0, 48.0, 810.0]
    assert multiples(costs, ["near", "far"]) == {
        SCRAPY: [1.0, 1.0],
        STOCK: [4.0, 9.0],
        OURS: [2.0, 2.0],
        OUR_SCHEDULER: [0.5, 0.5],
    }


def test_parts_that_are_measured_anew_take_the_place_of_the_old() -> None:
    """The head and the other parts stay as they are, and a new part comes last."""
    before = "# Results\n\nPrinted.\n\n\n## one\n\nOld.\n\n## not a part\n\n\n## two\n\nOld.\n"
    now = "# Results\n\nPrinted now.\n\n\n## three\n\nNew.\n\n\n## two\n\nNew.\n\n\n"
    expected = before.replace("## two\n\nOld.\n", "## two\n\nNew.\n\n\n## three\n\nNew.\n")
    assert results.merged(before, now) == expected
    assert results.merged(expected, now) == expected
