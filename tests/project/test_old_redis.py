"""A redis-py below the required version is refused at the import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("version", "is_refused"), [("3.5.3", True), ("5.9.9", True), ("6.0.0", False)])
def test_old_redis(version: str, is_refused: bool, tmp_path: Path) -> None:
    """The error has both versions, and the way out."""
    info = tmp_path / f"redis-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: redis\nVersion: {version}\n")
    command = [sys.executable, "-c", "from scrapy_bloom import Addon"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert ended.returncode == int(is_refused), ended.stderr
    text = f"redis {version} is installed, but scrapy-bloom needs 6 or newer: run `pip check`"
    assert (text in ended.stderr) == is_refused
