"""Crawls on a virtual clock: some of each kind, and those that once found a fault, by their seeds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.plan import KINDS

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the simulation in a process of its own, in which the order of sets does not depend on chance."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("flush", "poison")])
def test_kind(kind: str) -> None:
    """No crawl of a kind has a problem."""
    done = run("--kind", kind, "--first", "0", "--count", "10")
    assert done.returncode == 0, done.stdout + done.stderr


def test_same_seed() -> None:
    """Equal seeds write equal logs."""
    one, other = (run("--kind", "mixed", "--seed", "3", "--verbose").stdout for _ in range(2))
    assert len(one.splitlines()) > 50
    assert one == other
