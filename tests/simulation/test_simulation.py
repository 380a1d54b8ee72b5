"""Crawls on a virtual clock: some of each kind, and earlier finds by their seeds."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.simulation.plan import KINDS
from tests.support import forked
from tests.support.template_process import SIMULATION

ROOT = Path(__file__).parents[2]
# Crawls by kind and seed that find a mistake of `devtools/mutants/simulation.toml`, and their stories.
KEPT = {
    "mixed 0": "Others hold pages that lead to more, while a worker has nothing to do.",
    "spool 1": "Requests on a disk come back to a filter that knows none of them.",
    "spool 11": "SIGTERM in an outage: a later start reads the requests that were in memory.",
    "spool 170": "SIGTERM in an outage: requests are on the disk and in memory.",
    "spool 2024": "A worker dies while links of pages that are done wait on its disk.",
    "kill 1": "A worker dies with leases, and the others wait for its pages.",
    "calm 13": "Nothing happens at all, on a link that is slow for some workers.",
    "lossy 75": "The filter marks a request, and its reply is lost.",
    "flush 137": "A starter flushes the queue beside a worker, and is killed before it deletes the filter.",
    "flush 87": "A worker at work adds to the filter while a starter flushes the queue.",
    "flush 132": "A worker at work remembers pages of the filter that a starter deletes.",
    "flush 24": "A starter begins the crawl anew, and all pages are fetched again.",
    "shared-flush 1454554266": "A starter is killed in the same way beside another spider, whose filter stays.",
    "flush 1": "A starter dies while it closes the queue, and the workers that wait for it take over.",
    "kill 0": "A worker dies with a page of which the callback has not run.",
    "mixed 137": "Redis refuses a heartbeat, and others die later.",
    "queue 2": "The queue is deleted alone: it is logged, and no worker ends as finished.",
    "fed 6": "A worker dies with start URLs.",
    "fed 1": "Start URLs of which no request can be made.",
    "fed 153": "A machine is lost while requests of start URLs come back from its disk.",
    "fed 574": "A machine is lost with requests of start URLs in its memory.",
    "fed 899": "A machine is lost with requests of start URLs on its disk.",
    "stop 1005143": "Several links to a page wait in a worker that is taken for dead.",
    "rollback 2005096": "Several links to a page are on their way while Redis goes back to an earlier state.",
    "spool 284": "A worker dies while it queues the requests of a file.",
}


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the simulation in its own process, with a fixed hash seed."""
    return forked.run(arguments, ROOT, {**os.environ, "PYTHONHASHSEED": "0"}, SIMULATION)


@pytest.mark.parametrize(("first", "count"), [(0, 3), pytest.param(3, 7, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KINDS)
def test_kind(kind: str, first: int, count: int) -> None:
    """No crawl of a kind has a problem."""
    done = run("--kind", kind, "--first", str(first), "--count", str(count))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("crawl", KEPT, ids=lambda crawl: crawl.replace(" ", "-"))
def test_kept(crawl: str) -> None:
    """A crawl that once found a mistake has no problem."""
    kind, seed = crawl.split()
    done = run("--kind", kind, "--seed", seed)
    assert done.returncode == 0, done.stdout + done.stderr


def test_same_seed() -> None:
    """Equal seeds write equal logs."""
    one, other = (run("--kind", "mixed", "--seed", "3", "--verbose").stdout for _ in range(2))
    assert len(one.splitlines()) > 50
    assert one == other
