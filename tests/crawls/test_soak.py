"""Some crawls of the soak with a fixed seed: no page is missed, no key left."""

import re
import subprocess
import sys

import pytest

from devtools.crawl_process import ROOT
from tests.soak import plan
from tests.soak.plan import Kind
from tests.support.outcomes import tell

CRAWLS, SEED = 2, 25889
# Seconds. These crawls take half a minute; each that hangs is killed after five.
LIMIT = 1500


def test_seed_has_every_kind() -> None:
    """The crawls have faults of every kind."""
    plans = [plan.draw(SEED, number, list(Kind)) for number in range(CRAWLS)]
    assert {fault.kind for planned in plans for fault in planned.faults} == set(Kind)


@pytest.mark.long
@pytest.mark.timeout(LIMIT + 30)
def test_soak(capsys: pytest.CaptureFixture[str]) -> None:
    """No crawl has a complaint; the output leads to the logs of a failed crawl."""
    command = [sys.executable, "-m", "tests.soak", "--crawls", str(CRAWLS), "--seed", str(SEED)]
    ended = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    tell(capsys, ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = dict(re.findall(r"^(\S+(?: \S+)*) {2,}(.+)$", ended.stdout, re.MULTILINE))
    assert int(rows["crawls"]) == CRAWLS
    assert int(rows["pages"]) == sum(plan.draw(SEED, number, list(Kind)).pages for number in range(CRAWLS))
    assert {each.split()[0] for each in rows["faults"].split(", ")} == set(Kind)
