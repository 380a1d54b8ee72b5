"""The benchmarks judge correctly, and run in a small size."""

import re
import shutil
import subprocess

import pytest

from benchmarks.__main__ import PARTS
from benchmarks.harness import redisbloom, report, results
from benchmarks.harness.filling import Place, counters
from benchmarks.harness.interleaved import ratio
from benchmarks.harness.options import Asked
from benchmarks.harness.report import wilson
from benchmarks.harness.urls import urls
from benchmarks.subjects import before, contenders
from benchmarks.suites import fill, promise, turns
from benchmarks.suites.memory import PROMISED
from benchmarks.suites.promise import STAGGERED, Filling, Outcome
from devtools.crawl_process import ROOT
from scrapy_bloom.filter.parameters import FilterParameters
from tests.support.selection import long_unless
from tests.support.servers import Server

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
    outcome = promise.measure(filling, valkey.url)
    assert outcome.layers > 2
    assert outcome.is_kept
    assert 0.5 < outcome.wrong / outcome.asked / outcome.by_counts < 2


@pytest.mark.parametrize("way", [promise.PROCESSES, promise.FORKED])
def test_processes_fill_a_filter(way: str, valkey: Server) -> None:
    """Processes of their own, and forks of one with an open filter, add all items."""
    filling = Filling(way, 2, 2_000, 1e-1, expansion=0, times=1, batch=100, asked=2_000)
    outcome = promise.measure(filling, valkey.url)
    assert outcome.by_counts > 0.05
    assert outcome.is_kept


def test_parts_that_are_measured_anew_take_the_place_of_the_old() -> None:
    """The other parts stay as they are, in the order of all parts; a part that no longer exists goes."""
    old = "# Results\n\n\n## gone\n\nOld.\n\n\n## one\n\nOld.\n\n## not a part\n\n\n## two\n\nOld.\n"
    now = "\n\n## three\n\nNew.\n\n\n## two\n\nNew.\n\n\n"
    expected = "# Results\n\n\n## one\n\nOld.\n\n## not a part\n\n\n## two\n\nNew.\n\n\n## three\n\nNew.\n"
    names = ("one", "two", "three", "four")
    assert results.merged(old, now, names) == expected
    assert results.merged(expected, now, names) == expected


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


# The sizes of each part, the number of its targets, and a pattern that it prints.
SMALL: dict[str, tuple[dict[str, object], int, str]] = {
    "streams": (
        {
            "ROUNDS": 1,
            "streams": lambda: {"all new": [urls(0, 25), urls(20, 25)]},
            "DUPEFILTERS": (contenders.SCRAPY, contenders.OURS),
        },
        1,
        r"\| scrapy-bloom +\|.* 0 of 50 \|",
    ),
    "crawls": (
        {"ROUNDS": 1, "MADE_UP": ("--pages", "10")},
        3,
        r"before one script, BloomScheduler, 5 ms +\|.* 10 to 10 \|",
    ),
    "memory": (
        {"SET_SIZES": (1_000,), "DRAWN": (), "CASES": [PROMISED], "REPEATS": (1_024,)},
        2,
        r"\| 5,000,000 +\| +1e-06 \| +0 \|",
    ),
    "micro": ({"NUMBER": 100, "TURNS": 1}, 0, r"\| add_many, 100 new items +\|"),
    "promise": (
        {"ON_A_SERVER": (), "IN_PROCESSES": (), "IN_MEMORY": promise.IN_MEMORY[:1]},
        1,
        r"\| memory +\|.* kept \|",
    ),
    "importing": ({"SIZES": (1_000,)}, 1, r"\| 1,000 +\|"),
    "fill": ({"ITEMS": 4_000, "PROBES": 40_000}, 2, r"\| added items that are missing +\| +0 \|"),
    "pauses": ({"REPETITIONS": 1, "ITEMS": 20_000_000, "SECONDS": 0.05}, 3, r"\| it grows +\|"),
    "field": (
        {"ROUNDS": 1, "CAPACITY": 50_000, "KNOWN": 1_000},
        1,
        r"evicted +\|.* 1,000 of 1,000 \| .*The filter at.* 50,000 at 1e-06 \|",
    ),
    "turns": ({"ROUNDS": 1}, len(turns.GOALS) + 1, r"round trips, times before, at most 0.75. Measured 0\.[34]"),
    "path": ({}, 4, r"\| queue/worker.py +\|"),
}
NEED = {"fill": needs_compiler, "turns": needs_history, "crawls": needs_history}


def test_each_part_is_tried() -> None:
    """Each part has its small size."""
    assert [*SMALL] == [*PARTS]


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=NEED.get(part, ())) for part in long_unless({"crawls"}.isdisjoint, SMALL)]
)
def test_each_part_runs(part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A part runs in a small size on one server without RedisBloom, and judges its targets."""
    sizes, targets, pattern = SMALL[part]
    monkeypatch.setattr(redisbloom, "server_options", tuple)
    monkeypatch.setattr(PARTS[part], "available", lambda: ["valkey"], raising=False)
    for name, value in sizes.items():
        monkeypatch.setattr(PARTS[part], name, value)
    PARTS[part].run(Asked())
    printed = capsys.readouterr().out
    assert printed.count("Target: ") == targets
    assert re.search(pattern, printed), printed
