"""The servers that tests start."""

from pathlib import Path

import pytest

from devtools.waiting import until
from tests.support.servers import KINDS, running


@pytest.mark.parametrize("kind", KINDS)
def test_rewriting_fork(kind: str, tmp_path: Path) -> None:
    """A fork that rewrites the append-only file has ended when its server has: nothing writes to the directory."""
    with running(kind, "--dir", str(tmp_path), "--rdb-key-save-delay", "1000000") as server, server.client() as client:
        client.mset({"one": 1, "two": 2})
        client.config_set("appendonly", "yes")
        until(lambda: list(tmp_path.glob("temp-rewriteaof-*.aof")))
        (rewritten,) = tmp_path.glob("temp-rewriteaof-*.aof")
        open_files = Path("/proc", rewritten.stem.removeprefix("temp-rewriteaof-"), "fd")
        assert list(open_files.glob("*"))
        server.kill()
        assert not list(open_files.glob("*"))
