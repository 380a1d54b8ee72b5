"""Crawls that find very many requests while Redis is unreachable: all are delivered, in bounded memory."""

import signal
import threading
import time
from pathlib import Path

import pytest

from devtools.crawl_process import LIMIT, CrawlProcess
from devtools.waiting import until
from tests.support.extensions import ALL_TURNS, LONGEST_STALL, TICKED, Ticker, enabling
from tests.support.pages import chain
from tests.support.scenario import LEASE, OURS, Kind, number_kept, scene, tell
from tests.support.servers import Server
from tests.support.spiders import burst

FOUND = 30_000
# A worker without work takes 80 MB.
MOST_MEMORY_MB = 190
# Of the CPU time of all turns of the reactor. The longest takes a hundredth.
MOST_IN_A_TURN = 0.1


def peak_memory_mb(worker: CrawlProcess) -> float:
    """Return the peak memory of a worker so far."""
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


@pytest.mark.long
def test_many_found_while_redis_is_away(
    durable: Server, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """30,000 pages found while Redis is unreachable take bounded memory and are queued.

    The reactor keeps running.
    """
    settings: Kind = {
        **OURS,
        **LEASE,
        **enabling(Ticker),
        "BURST": FOUND,
        "BLOOMFILTER_CAPACITY": 100_000,
        "CONCURRENT_REQUESTS": 1,
    }
    with durable.client() as client, scene(chain(1), tmp_path, durable.url, key, delay=0) as played:
        played.spider = burst.__file__
        release = threading.Event()

        def hold(_: str) -> None:
            if len(played.site.fetched) > 1:
                release.wait(LIMIT)

        played.site.before = hold
        played.site.on["/"] = lambda _: durable.kill()
        worker = played.start("worker", settings)
        until((tmp_path / "given").exists)
        ticked = tmp_path / TICKED
        ticked.unlink(missing_ok=True)
        until(ticked.exists)
        durable.start()
        begin = time.monotonic()
        # Some of them are taken at once.
        until(lambda: number_kept(client, f"{key}:queue") >= FOUND, 2 * LIMIT)
        seconds, memory = time.monotonic() - begin, peak_memory_mb(worker)
        worker.process.send_signal(signal.SIGTERM)
        release.set()
        stats = worker.wait().stats
        tell(
            capsys,
            f"{FOUND:,} found during an outage: delivered in {seconds:.1f} s, {memory:.0f} MB at most, the reactor "
            f"took {stats[LONGEST_STALL]:.2f} of {stats[ALL_TURNS]:.0f} s of CPU for a turn",
        )
    assert memory < MOST_MEMORY_MB
    assert stats[LONGEST_STALL] < MOST_IN_A_TURN * stats[ALL_TURNS]
