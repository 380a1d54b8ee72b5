"""The servers that tests start."""

from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

from devtools.servers import free_port
from devtools.waiting import until
from tests.support.servers import running


def test_rewriting_fork(tmp_path: Path) -> None:
    """A fork that rewrites the append-only file has ended when its server has: nothing writes to the directory."""
    with (
        running("valkey", "--dir", str(tmp_path), "--rdb-key-save-delay", "1000000") as server,
        server.client() as client,
    ):
        client.mset({"one": 1, "two": 2})
        client.config_set("appendonly", "yes")
        until(lambda: list(tmp_path.glob("temp-rewriteaof-*.aof")))
        (rewritten,) = tmp_path.glob("temp-rewriteaof-*.aof")
        open_files = Path("/proc", rewritten.stem.removeprefix("temp-rewriteaof-"), "fd")
        assert list(open_files.glob("*"))
        server.kill()
        assert not list(open_files.glob("*"))


def test_free_ports() -> None:
    """Processes that look for a port at the same time get different ones, before anybody listens."""
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        ports = list(chain(*processes.map(_free_ports, [500] * 2)))
    assert len(set(ports)) == len(ports)


def _free_ports(number: int) -> list[int]:
    return [free_port() for _ in range(number)]
