"""A minute of the soak, with a fixed seed: crawls with faults of all kinds miss nothing, end, and leave nothing."""

import subprocess
import sys

import pytest

from devtools.crawl_process import ROOT
from devtools.soak import plan
from devtools.soak.plan import Kind
from tests.support.scenario import tell

pytestmark = pytest.mark.crawl

SECONDS, SEED = 60, 19
# The crawl that is under way when the time is over may hang, and is given a minute and a half.
LIMIT = SECONDS + 180


# So many crawls fit into a minute on a slow machine, too.
CRAWLS = 4


def test_seed_has_every_kind() -> None:
    """The crawls that fit into the minute have faults of every kind."""
    plans = [plan.draw(SEED, number, list(Kind)) for number in range(CRAWLS)]
    assert {fault.kind for planned in plans for fault in planned.faults} == set(Kind)


@pytest.mark.timeout(LIMIT + 30)
def test_soak(capsys: pytest.CaptureFixture[str]) -> None:
    """No crawl of a minute has anything to complain of; what it prints leads to the logs of one that has."""
    command = [sys.executable, "-m", "devtools.soak", "--seconds", str(SECONDS), "--seed", str(SEED)]
    ended = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    tell(capsys, ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
