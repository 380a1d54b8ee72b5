"""A warning is an error: in tests, and in the processes that they start."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import forked

WARNS = 'import warnings\nwarnings.warn("an old name", DeprecationWarning)\n'


def test_started_process() -> None:
    """A warning in a process of Python ends it."""
    ended = subprocess.run([sys.executable, "-c", WARNS], check=False, capture_output=True, text=True)
    assert (ended.returncode, "DeprecationWarning: an old name" in ended.stderr) == (1, True)


def test_forked_process(tmp_path: Path) -> None:
    """A warning in a forked process is an exception."""
    (tmp_path / "spider.py").write_text(WARNS)
    ended = forked.run(("runspider", "spider.py"), tmp_path, os.environ)
    assert ended.returncode != 0
    assert "DeprecationWarning: an old name" in ended.stderr
