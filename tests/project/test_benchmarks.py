"""Each benchmark runs in a small size."""

import re

import pytest

from benchmarks.__main__ import PARTS
from benchmarks.harness import redisbloom
from benchmarks.harness.urls import urls
from benchmarks.subjects import contenders
from benchmarks.subjects.whole_crawl import OUR_SCHEDULER, SCRAPY
from benchmarks.suites.memory import PROMISED
from tests.support.pages import tree

# The sizes of each part, and a pattern that it prints.
SMALL: dict[str, tuple[dict[str, object], str]] = {
    "streams": (
        {
            "ROUNDS": 1,
            "streams": lambda: {"all new": [urls(0, 25), urls(20, 25)]},
            "DUPEFILTERS": (contenders.SCRAPY, contenders.OURS),
        },
        r"\| scrapy-bloom +\|.* 0 of 50 \|",
    ),
    "crawls": (
        {"ROUNDS": 1, "MADE_UP": ("--pages", "10"), "KINDS": (SCRAPY, OUR_SCHEDULER), "ONCE": 5},
        r"scrapy-bloom, BloomScheduler, 5 ms +\|.* 10 to 10 \|",
    ),
    "memory": (
        {"SET_SIZES": (1_000,), "CASES": [PROMISED], "PENDING": 100, "REPEATS": (1_024,)},
        r"(?s)\| 5,000,000 +\| +1e-06 \| +0 \|.*\| MessagePack +\|",
    ),
    "field": ({"ROUNDS": 1}, r"\| scrapy-bloom, add_many +\| +100 \|"),
    "pace": (
        {"CASES": ((1, 3),), "WORKERS": (2,), "SMALL": ((3, 1),)},
        # On a busy machine a worker may be done before the other one starts, which crawls the site again.
        r"(?s)\| workers: 2 +\|.* of [25] \|.*\| 3 +\| +1 \| +3 \|",
    ),
    "kills": (
        {"ROUNDS": 1, "MORE_KILLS": 1, "sites": lambda: {"tree": tree(121)}},
        r"\| tree +\| scrapy-bloom, BloomScheduler \| +a worker \| +1 \| +0 \| +\d+ \| +121 \|",
    ),
    "path": ({}, r"\| queue/worker.py +\|"),
    "node": ({"LINKS": 100, "MEMBERS": 1_000}, r"(?s)\| duplicate +\|.*1,000 fingerprints: \d+ s"),
}


LONG = ("crawls", "kills")


@pytest.mark.parametrize("part", [pytest.param(part, marks=[pytest.mark.long] * (part in LONG)) for part in PARTS])
def test_each_part_runs(part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A part runs in a small size on one server without RedisBloom."""
    sizes, pattern = SMALL[part]
    monkeypatch.setattr(redisbloom, "server_options", tuple)
    monkeypatch.setattr(PARTS[part], "available", lambda: ["valkey"], raising=False)
    for name, value in sizes.items():
        monkeypatch.setattr(PARTS[part], name, value)
    PARTS[part].run(())
    printed = capsys.readouterr().out
    assert re.search(pattern, printed), printed
