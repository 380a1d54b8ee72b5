"""The benchmarks judge correctly, and run in a small size."""

import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.harness import redisbloom, report, results
from benchmarks.harness.filling import Place, counters, shares
from benchmarks.harness.interleaved import interleave, ratio, rotated
from benchmarks.harness.options import Asked
from benchmarks.harness.pinging import Pings, pinging
from benchmarks.harness.report import wilson
from benchmarks.subjects import before, whole_crawl
from benchmarks.subjects.additions import OURS
from benchmarks.subjects.whole_crawl import OUR_SCHEDULER, SCRAPY, STOCK
from benchmarks.suites import field, fill, pauses, promise, turns
from benchmarks.suites.distance import Run, multiples
from benchmarks.suites.promise import EQUAL, STAGGERED, UNEVEN, Filling, Outcome
from devtools.crawl_process import ROOT
from scrapy_bloom.filter.parameters import FilterParameters
from tests.support.servers import Server

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler `cc` on this machine")
needs_history = pytest.mark.skipif(
    subprocess.run(["git", "cat-file", "-e", before.COMMIT], cwd=ROOT, capture_output=True, check=False).returncode
    != 0,
    reason="the checkout lacks the commit before the switch",
)


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
def test_target_is_met_by_at_most_its_bound(measured: float, verdict: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A measurement exactly at the target meets it, and one above misses it."""
    report.target("times Scrapy", measured, 1.0)
    assert capsys.readouterr().out.strip() == f"Target: times Scrapy at most 1. Measured {verdict}"


def test_the_interval_holds_the_rate() -> None:
    """Wilson's interval of 10 in 100, as in textbooks, and that of 0 in many."""
    assert wilson(10, 100) == pytest.approx((0.0552, 0.1744), abs=1e-4)
    low, high = wilson(0, 1_000)
    assert low == 0.0
    assert high == pytest.approx(0.00383, abs=1e-5)
    assert report.rate(10, 100) == "1.00e-01 (5.52e-02 to 1.74e-01)"


@pytest.mark.parametrize(
    ("wrong", "by_counts", "is_kept"),
    [
        (10, 0.9e-3, True),
        # More than promised: within chance, and beyond it.
        (12, 0.9e-3, True),
        (30, 0.9e-3, False),
        (0, 1.01e-3, False),
        (0, 0.0, True),
    ],
)
def test_a_promise_is_broken_by_answers_or_by_counts(wrong: int, by_counts: float, is_kept: bool) -> None:
    """A promise is kept if neither the answers nor the counts exceed the promised error rate."""
    outcome = Outcome(1e-3, wrong, 10_000, 1, by_counts)
    assert outcome.ratio == pytest.approx(wrong / 10)
    assert outcome.interval[0] <= outcome.ratio <= outcome.interval[1]
    assert outcome.is_kept == is_kept


@pytest.mark.parametrize(
    ("broken", "verdict"),
    [
        ([], "0.000: met."),
        ([promise.ON_A_SERVER[-1]], "1.000: MISSED."),
        ([promise.IN_PROCESSES[0], promise.IN_MEMORY[0]], "2.000: MISSED."),
    ],
)
def test_each_broken_promise_counts(
    broken: list[Filling], verdict: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broken promise of any filling misses the target: over a server, in processes, or in memory."""

    def measure(filling: Filling, *_: object) -> Outcome:
        return Outcome(filling.error_rate, 0, 10_000, 1, filling.error_rate * (2 if filling in broken else 0.5))

    monkeypatch.setattr(promise, "spread", lambda _, tasks: [measure(task.filling) for task in tasks])
    monkeypatch.setattr(promise, "fill_by_processes", measure)
    promise.run(Asked())
    printed = capsys.readouterr().out
    assert f"Target: fillings that broke the promise, at most 0. Measured {verdict}" in printed
    assert printed.count(" BROKEN |") == len(broken)


@pytest.mark.parametrize("way", [STAGGERED, UNEVEN, EQUAL])
@pytest.mark.parametrize(("capacity", "batch"), [(1, 1), (1_000, 7), (10_000, 300)])
def test_a_filling_adds_its_items(way: str, capacity: int, batch: int) -> None:
    """Eight workers add the given items, in batches within the maximum size."""
    filling = Filling(way, 8, capacity, 1e-3, times=10, batch=batch)
    taken = list(promise.turns(filling))
    assert sum(turn.items for turn in taken) == 10 * capacity
    assert all(0 < turn.items <= batch for turn in taken)
    assert {turn.worker for turn in taken} <= set(range(8))
    if way == STAGGERED:
        assert [worker for worker, _ in itertools.groupby(turn.worker for turn in taken)][:8] == list(range(8))


@pytest.mark.parametrize("way", [STAGGERED, promise.MEMORY])
def test_a_filling_is_measured(way: str, valkey: Server) -> None:
    """A grown filter has all items, and its wrong answers are those of its counts."""
    filling = Filling(way, 2, 300, 1e-1, times=10, batch=100, asked=5_000)
    outcome = promise.measure(promise.Task(filling, valkey.url))
    assert outcome.layers > 2
    assert outcome.is_kept
    assert 0.5 < outcome.wrong / outcome.asked / outcome.by_counts < 2


@pytest.mark.parametrize("way", [promise.PROCESSES, promise.FORKED])
def test_processes_fill_a_filter(way: str, valkey: Server) -> None:
    """Processes of their own, and forks of one with an open filter, add all items."""
    filling = Filling(way, 2, 2_000, 1e-1, expansion=0, times=1, batch=100, asked=2_000)
    outcome = promise.fill_by_processes(filling, valkey.url)
    assert outcome.by_counts > 0.05
    assert outcome.is_kept


def test_processes_share_the_additions() -> None:
    """Each item falls to one process, and their shares differ by at most one item."""
    parts = shares(10, 31, 4)
    assert [number for part in parts for number in part] == list(range(10, 31))
    assert {len(part) for part in parts} == {5, 6}


def test_crawls_are_compared_with_the_one_that_has_no_redis() -> None:
    """Each subject is compared, round by round, with the crawl without Redis."""
    takes = {SCRAPY: 1.0, STOCK: 4.0, whole_crawl.OURS: 2.0, OUR_SCHEDULER: 0.5}
    costs = {
        Run(kind, where): [times * slow, 2 * times * slow, 30 * times * slow]
        for kind, times in takes.items()
        for where, slow in (("near", 1.0), ("far", 3.0))
    }
    costs[Run(STOCK, "far")] = [27.0, 48.0, 810.0]
    assert multiples(costs, ["near", "far"]) == {
        SCRAPY: [1.0, 1.0],
        STOCK: [4.0, 9.0],
        whole_crawl.OURS: [2.0, 2.0],
        OUR_SCHEDULER: [0.5, 0.5],
    }


def test_parts_that_are_measured_anew_take_the_place_of_the_old() -> None:
    """The head and the other parts stay as they are, and a new part comes last."""
    old = "# Results\n\nPrinted.\n\n\n## one\n\nOld.\n\n## not a part\n\n\n## two\n\nOld.\n"
    now = "# Results\n\nPrinted now.\n\n\n## three\n\nNew.\n\n\n## two\n\nNew.\n\n\n"
    expected = old.replace("## two\n\nOld.\n", "## two\n\nNew.\n\n\n## three\n\nNew.\n")
    assert results.merged(old, now) == expected
    assert results.merged(expected, now) == expected


def test_pings_belong_to_the_phase_in_which_they_waited() -> None:
    """A ping that was sent before a phase and answered inside it counts there, and one before or after does not."""
    pings = Pings()
    pings.sent, pings.waits = [0.0, 1.0, 2.0, 5.0], [0.5, 0.6, 1.0, 1.0]
    assert pings.between(1.5, 4.0) == [0.6, 1.0]
    times = pauses.Times()
    times.spans = [(pauses.IDLE, 1.5, 4.0), (pauses.FILLS, 0.0, 0.1), (pauses.IDLE, 5.5, 6.0)]
    found = pauses.by_phase(times, pings)
    assert found[pauses.IDLE].pings == [0.6, 1.0, 1.0]
    assert found[pauses.FILLS].pings == [0.5]


def test_pings_are_noted_until_the_end_of_the_block(valkey: Server) -> None:
    """The pinging process runs beside the block, and hands over all its pings."""
    with pinging(valkey.url) as pings, valkey.client() as client:
        client.ping()
    assert len(pings.sent) == len(pings.waits) > 0
    assert all(wait > 0 for wait in pings.waits)


def test_percentiles() -> None:
    """At least the share of the values is not above the percentile."""
    values = [float(number) for number in range(1, 1_001)]
    assert pauses.percentile(values, 0.5) == 501
    assert pauses.percentile(values, 0.999) == 1_000
    assert pauses.percentile([3.0], 0.999) == 3.0


@needs_compiler
def test_probes_find_as_many_as_the_filter(valkey: Server, key: str) -> None:
    """Random digests and items that were never added find all bits equally often; a full layer holds each."""
    bloom = Place(valkey.url, key, FilterParameters(20_000, 1e-1, 0)).open()
    bloom.add_many(counters(0, 20_000))
    with valkey.client() as client:
        names = fill.shards_of_layer(client, key, 1)
        bits = b"".join(client.get(name) for name in names)
    hashes = bloom.info().hashes
    found = fill.probed(bits, hashes, 20_000)
    assert found is not None
    assert 0.8 < found / sum(bloom.contains_many(counters(20_000, 40_000))) < 1.25
    assert fill.probed(b"\xff" * len(bits), hashes, 100) == 100
    assert fill.probed(bytes(len(bits)), hashes, 100) == 0


@needs_compiler
def test_a_full_filter_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All items are added and found, and the lookups give an error rate with its interval."""
    monkeypatch.setattr(fill, "ITEMS", 4_000)
    monkeypatch.setattr(fill, "PROBES", 40_000)
    monkeypatch.setattr(fill, "available", lambda: ["valkey"])
    fill.run(Asked())
    printed = capsys.readouterr().out
    assert "By 40,000 probes, of which " in printed
    assert re.search(r"\| added items that are missing +\| +0 \|", printed)
    assert re.search(r"\| new items called seen while it filled +\| +0 \|", printed)


def test_pauses_are_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each phase has pings, and the growth really grows."""
    monkeypatch.setattr(pauses, "REPETITIONS", 1)
    monkeypatch.setattr(pauses, "ITEMS", 20_000_000)
    monkeypatch.setattr(pauses, "SECONDS", 0.05)
    monkeypatch.setattr(pauses, "available", lambda: ["valkey"])
    pauses.run(Asked())
    printed = capsys.readouterr().out
    assert all(f"| {phase} " in printed for phase in pauses.PHASES)
    assert printed.count("Target: ") == 3


def test_a_loss_is_logged_by_the_library_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a deletion and after an eviction, the library warns, and keeps its parameters."""
    monkeypatch.setattr(field, "KNOWN", 1_000)
    monkeypatch.setattr(field, "CAPACITY", 50_000)
    monkeypatch.setattr(field, "ROUNDS", 1)
    monkeypatch.setattr(field, "available", lambda: ["valkey"])
    monkeypatch.setattr(redisbloom, "server_options", tuple)
    field.run(Asked())
    printed = capsys.readouterr().out
    assert "RedisBloom is not on this machine" in printed
    rows = [row for row in printed.splitlines() if row.startswith(f"| {OURS}, ")]
    assert len(rows) == 2
    assert all("1,000 of 1,000" in row and "The filter at" in row and "50,000 at 1e-06" in row for row in rows)


@needs_history
def test_both_packages_are_measured_in_turns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each goal of the switch has a figure, of this package beside the one before."""
    monkeypatch.setattr(turns, "ROUNDS", 1)
    monkeypatch.setattr(turns, "available", lambda: ["valkey"])
    turns.run(Asked())
    printed = capsys.readouterr().out
    assert printed.count("Target: ") == len(turns.GOALS) + 1
    assert re.search(r"round trips, times before, at most 0.75. Measured 0\.[34]", printed)


def test_another_package_is_not_measured(valkey: Server, tmp_path: Path) -> None:
    """A process that would import another package than the chosen one ends the measurement."""
    path = f"{tmp_path}:{ROOT}"
    with pytest.raises(RuntimeError, match="would be measured"), turns.measuring(path, valkey.url):
        pytest.fail("it measures")


def test_a_shallow_clone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the commit in the history, the part says which clone it needs."""
    monkeypatch.setattr(before, "COMMIT", "0" * 40)
    with pytest.raises(RuntimeError, match="use a complete clone"), before.packages():
        pytest.fail("there is no such commit")


@needs_history
def test_a_crawl_runs_the_chosen_package(valkey: Server, tmp_path: Path) -> None:
    """Both packages crawl a site, each from its own folder."""
    with before.packages() as paths, whole_crawl.serving("--pages", "10") as url:
        for path in paths.values():
            crawl = whole_crawl.crawl(OUR_SCHEDULER, url, 1, valkey.address, tmp_path, path=path)
            assert crawl.pages == 10
            assert crawl.cpu_seconds > 0
