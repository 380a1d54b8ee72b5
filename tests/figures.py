"""Run the tests that print figures, several times, and write the ranges into tests/RESULTS.md: `make figures`.

With `ARGS="tests/cluster outages"` it runs the tests with one of these texts in their names, and keeps the other rows.
"""

import datetime
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import versions
from tests.support.outcomes import FIGURES

RESULTS = Path(__file__).with_name("RESULTS.md")
_ROOT = Path(__file__).parents[1]
# How often each test runs: the faults of clusters take minutes, and have two servers or seeds each.
RUNS = {
    "tests/crawls/test_outages.py::test_redis_killed": 5,
    "tests/crawls/test_outages.py::test_failover": 5,
    "tests/crawls/test_outages.py::test_rollback": 5,
    "tests/crawls/test_lost_workers.py::test_workers_killed": 5,
    "tests/crawls/test_lost_workers.py::test_workers_killed_under_scrapy_redis": 5,
    "tests/crawls/test_lost_data.py::test_filter_deleted_under_scrapy_redis": 5,
    "tests/crawls/test_items.py::test_redis_killed_beside_the_stock_pipeline": 5,
    "tests/transport/test_lost_replies.py::test_cuts": 5,
    "tests/cluster/test_crawls.py::test_fault_and_lost_worker": 5,
    "tests/cluster/test_partitions.py": 1,
    "tests/cluster/test_faults.py::test_all_faults": 1,
    "tests/cluster/test_failovers.py": 1,
}
_HEAD = """\
# Results of tests

The figures that tests print, each as a range over its runs. `make figures` writes this file.

{}

| test | day | runs | figures |
|---|---|---|---|
"""
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def ranges(lines: Sequence[str]) -> Iterator[str]:
    """Yield each line once, with the range of each of its numbers."""
    by_words: dict[str, list[list[str]]] = {}
    for line in lines:
        by_words.setdefault(_NUMBER.sub("{}", line), []).append(_NUMBER.findall(line))
    for words, numbers in by_words.items():
        columns = (sorted(column, key=_value) for column in zip(*numbers, strict=True))
        yield words.format(*(_range(column[0], column[-1]) for column in columns))


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _told(test: str) -> dict[str, list[str]]:
    """Run a test, and return the lines that each of its cases has printed."""
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as file:
        command = [sys.executable, "-m", "pytest", test]
        subprocess.run(command, check=True, cwd=_ROOT, env={**os.environ, FIGURES: file.name})
        found: dict[str, list[str]] = {}
        for case, line in re.findall(r"^(.*)\t(.*)$", file.read(), re.MULTILINE):
            found.setdefault(case, []).append(line)
        return found


def main(parts: Sequence[str]) -> int:
    """Run the tests, and write their rows."""
    rows = dict(re.findall(r"^\| `(.*?)` \| (.*) \|$", RESULTS.read_text(encoding="utf-8"), re.MULTILINE))
    machine, day = versions.text(), datetime.datetime.now(tz=datetime.UTC).date()
    for test, runs in RUNS.items():
        if parts and not any(part in test for part in parts):
            continue
        lines: dict[str, list[str]] = {}
        for _ in range(runs):
            for case, told in _told(test).items():
                lines.setdefault(case, []).extend(told)
        for case, told in lines.items():
            rows[case] = f"{day} | {runs} | {'; '.join(ranges(told))}"
        table = "".join(f"| `{case}` | {cells} |\n" for case, cells in sorted(rows.items()))
        RESULTS.write_text(_HEAD.format(machine) + table, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
