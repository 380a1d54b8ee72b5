"""The crawl of the demo: its workers, its keys in Redis, and waiting for its end."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from tqdm import tqdm

from devtools.crawl_process import ROOT, CrawlProcess, Job
from devtools.demo.round_trips import RoundTrips
from devtools.demo.tally import Tally

PROJECT = ROOT / "example_project"
POLL_SECONDS = 0.2


class CrawlFailedError(Exception):
    """Raised when the crawl cannot be finished: a worker failed, or the time has run out."""


def job(start_url: str, redis_url: str, prefix: str, capacity: int, inherited: Mapping[str, str]) -> Job:
    """Describe how each worker starts: a spider of the example project, own keys.

    The server is named in the environment, since its URL may hold a password.
    """
    settings = {
        "BLOOMFILTER_CAPACITY": capacity,
        "SCHEDULER_DUPEFILTER_KEY": f"{prefix}:filter",
        "SCHEDULER_QUEUE_KEY": f"{prefix}:requests",
        # The filter is measured when all have ended; the demo clears then.
        "SCHEDULER_PERSIST": True,
        "EXTENSIONS": f'{{"{RoundTrips.__module__}.{RoundTrips.__qualname__}": 0}}',
        # The site is the demo's, or yours.
        "DOWNLOAD_DELAY": 0,
        "ROBOTSTXT_OBEY": False,
        "STATS_DUMP": False,  # the ledger has them
    }
    environment = {"SCRAPY_SETTINGS_MODULE": "crawler.settings", **inherited, "REDIS_URL": redis_url}
    environment["PYTHONPATH"] = ":".join([str(PROJECT), *filter(None, [inherited.get("PYTHONPATH")])])
    return Job(("crawl", "shared"), {"start_url": start_url}, settings, environment)


@contextmanager
def keys_of_its_own(server: Redis) -> Iterator[str]:
    """Yield a unique key prefix; delete its keys at the end."""
    server.ping()
    # In braces: a cluster keeps them on one node.
    prefix = f"{{scrapy-bloom-demo-{secrets.token_hex(8)}}}"
    try:
        yield prefix
    finally:
        with suppress(RedisConnectionError):  # a server stopped by Ctrl-C took its keys along
            for key in server.scan_iter(match=f"{prefix}:*", count=1000):
                server.delete(key)


@contextmanager
def working(each: Job, count: int, directory: Path) -> Iterator[list[CrawlProcess]]:
    """Start `count` workers on a job; the block ends the remaining ones."""
    crew: list[CrawlProcess] = []
    try:
        for number in range(1, count + 1):
            crew.append(CrawlProcess(f"worker-{number}", each, directory))  # noqa: PERF401  # each is ended
        yield crew
    finally:
        for worker in crew:
            worker.process.terminate()
        for worker in crew:
            worker.wait_or_kill()


def follow(crew: Sequence[CrawlProcess], tally: Tally, pages: int, timeout: float) -> None:
    """Show the progress of a crawl until it ends."""
    # disable=None: no bar where the output is not a terminal
    with tqdm(unit=" pages", disable=None, total=pages, leave=False) as bar:

        def progress() -> None:
            tally.read()
            bar.total = max(pages, len(tally.offered))
            bar.update(len(tally.fetched) - bar.n)

        def has_finished(worker: CrawlProcess) -> bool:
            return bool(tally.stats.get(worker.ledger, {}).get("finish_reason") == "finished")

        _wait(crew, timeout, progress, has_finished)


def _wait(
    crew: Sequence[CrawlProcess],
    timeout: float,
    progress: Callable[[], None],
    has_finished: Callable[[CrawlProcess], bool],
) -> None:
    """Wait until all workers have ended, calling `progress` a few times a second.

    Raises CrawlFailedError as soon as a worker has ended without being finished, or after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    left = list(crew)
    while left:
        ended = [worker for worker in left if worker.has_ended(POLL_SECONDS / len(left))]
        progress()
        for worker in ended:
            if worker.process.returncode or not has_finished(worker):
                raise CrawlFailedError(
                    f"{worker.name} ended before the crawl did, with exit code {worker.process.returncode}. "
                    f"The end of its log:\n{worker.last_lines}"
                )
            left.remove(worker)
        if left and time.monotonic() > deadline:
            raise CrawlFailedError(f"the crawl is not over after {timeout:g} s; allow it more with --timeout")
