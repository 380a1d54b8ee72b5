"""The benchmarks judge correctly, and run in a small size."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.harness import redisbloom, report, results
from benchmarks.harness.filling import Place, counters
from benchmarks.harness.interleaved import ratio
from benchmarks.harness.options import Asked
from benchmarks.harness.report import wilson
from benchmarks.subjects import before, whole_crawl
from benchmarks.subjects.additions import OURS
from benchmarks.subjects.whole_crawl import OUR_SCHEDULER
from benchmarks.suites import field, fill, pauses, promise, turns
from benchmarks.suites.promise import STAGGERED, Filling, Outcome
from devtools.crawl_process import ROOT
from scrapy_bloom.filter.parameters import FilterParameters
from tests.support.servers import Server

BOTH = ["near", "far"]
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler `cc` on this machine")
needs_history = pytest.mark.skipif(
    subprocess.run(["git", "cat-file", "-e", before.COMMIT], cwd=ROOT, capture_output=True, check=False).returncode
    != 0,
    reason="the checkout lacks the commit before the switch",
)


def test_ratio() -> None:
    """The ratio is the median, over the rounds, of the first cost over the second.

    A round in which everything is slow has no effect: separate medians would give 10.
    """
    assert ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]) == 3.0
    assert ratio([2.0, 20.0, 200.0], [1.0, 1.0, 100.0]) == 2.0


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


# More than promised is within chance, or beyond it.
@pytest.mark.parametrize(
    ("wrong", "by_counts", "is_kept"),
    [(10, 0.9e-3, True), (12, 0.9e-3, True), (30, 0.9e-3, False), (0, 1.01e-3, False), (0, 0.0, True)],
)
def test_a_promise_is_broken_by_answers_or_by_counts(wrong: int, by_counts: float, is_kept: bool) -> None:
    """A promise is kept if neither the answers nor the counts exceed the promised error rate."""
    outcome = Outcome(1e-3, wrong, 10_000, 1, by_counts)
    assert outcome.ratio == pytest.approx(wrong / 10)
    assert outcome.interval[0] <= outcome.ratio <= outcome.interval[1]
    assert outcome.is_kept == is_kept


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


def test_parts_that_are_measured_anew_take_the_place_of_the_old() -> None:
    """The head and the other parts stay as they are, and a new part comes last."""
    old = "# Results\n\nPrinted.\n\n\n## one\n\nOld.\n\n## not a part\n\n\n## two\n\nOld.\n"
    now = "# Results\n\nPrinted now.\n\n\n## three\n\nNew.\n\n\n## two\n\nNew.\n\n\n"
    expected = old.replace("## two\n\nOld.\n", "## two\n\nNew.\n\n\n## three\n\nNew.\n")
    assert results.merged(old, now) == expected
    assert results.merged(expected, now) == expected


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


@needs_history
def test_a_crawl_runs_the_chosen_package(valkey: Server, tmp_path: Path) -> None:
    """Both packages crawl a site, each from its own folder."""
    with before.packages() as paths, whole_crawl.serving("--pages", "10") as url:
        for path in paths.values():
            crawl = whole_crawl.crawl(OUR_SCHEDULER, url, 1, valkey.address, tmp_path, path=path)
            assert crawl.pages == 10
            assert crawl.cpu_seconds > 0
