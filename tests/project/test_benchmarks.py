"""Each benchmark runs in a small size."""

import re
import shutil
import subprocess

import pytest

from benchmarks.__main__ import PARTS
from benchmarks.harness import redisbloom
from benchmarks.harness.options import Asked
from benchmarks.harness.urls import urls
from benchmarks.subjects import before, contenders
from benchmarks.subjects.whole_crawl import OUR_FORMER, OUR_SCHEDULER, SCRAPY
from benchmarks.suites import promise, turns
from benchmarks.suites.memory import PROMISED
from devtools.crawl_process import ROOT

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler `cc` on this machine")
needs_history = pytest.mark.skipif(
    subprocess.run(["git", "cat-file", "-e", before.COMMIT], cwd=ROOT, capture_output=True, check=False).returncode
    != 0,
    reason="the checkout lacks the commit before the switch",
)


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
        {"ROUNDS": 1, "MADE_UP": ("--pages", "10"), "KINDS": (SCRAPY, OUR_SCHEDULER, OUR_FORMER), "ONCE": 5},
        2,
        r"before one script, BloomScheduler, 5 ms +\|.* 10 to 10 \|",
    ),
    "memory": (
        {"SET_SIZES": (1_000,), "DRAWN": (), "CASES": [PROMISED], "PENDING": 100, "REPEATS": (1_024,)},
        2,
        r"(?s)\| 5,000,000 +\| +1e-06 \| +0 \|.*\| MessagePack +\|",
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
    "partitions": (
        {"ROUNDS": 1, "PARTITIONS": (2,), "CRAWL_ROUNDS": 1, "PAGES": 10, "WORKERS": 1, "MADE_UP_URLS": 1_000},
        6,
        r"\| 2 on 3 masters +\|",
    ),
}
# Parts that crawl, start a cluster, or run the package before the switch as well, take up to a minute.
MARKS = {
    "fill": [needs_compiler],
    "turns": [needs_history, pytest.mark.long],
    "crawls": [needs_history, pytest.mark.long],
    "field": [pytest.mark.long],
    "partitions": [pytest.mark.long],
}


def test_each_part_is_tried() -> None:
    """Each part has its small size."""
    assert [*SMALL] == [*PARTS]


@pytest.mark.parametrize("part", [pytest.param(part, marks=MARKS.get(part, ())) for part in SMALL])
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
