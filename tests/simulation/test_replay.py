"""Real servers behave like the twins of the simulation, in all states of simulated crawls."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.plan import KINDS
from tests.support.scenario import tell
from tests.support.selection import valkey_first
from tests.support.servers import Server

ROOT = Path(__file__).parents[2]
# The operations of workers beside a crawl's commands; a thousand crawls have the rare ones, too.
OFTEN = {
    *("Join", "Sync", "ResolveInDoubt", "Heartbeat", "Requeue", "Leave", "EndClosing", "Flush"),
    *("lease_start", "release_start", "bury_start"),
    *("Load", "SetFieldIfAbsent", "SetFieldFenced", "RemoveReference", "CreateShard", "SealShard", "DeleteShard"),
    *("GrantCredit", "ReturnCredit", "CloseCounter", "CheckBits", "CountBits"),
}


@valkey_first
@pytest.mark.parametrize("turns", [1, pytest.param(2, marks=pytest.mark.long)])
def test_replay(turns: int, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Each distinct operation on a state has the twin's reply and effect on a server, too."""
    arguments = ["--crawls", f"{turns * len(KINDS)}", "--port", f"{server.port}"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.replay", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary, kinds = done.stdout.splitlines()
    assert {kind.split()[0] for kind in kinds.split(", ")} >= OFTEN
    tell(capsys, summary)
