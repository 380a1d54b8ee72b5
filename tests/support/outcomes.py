"""Keys on the server, complaints in the log, and the end of a crawl."""

import sys

import pytest
import redis

from devtools.crawl_process import Crawl
from scrapy_bloom.queue.keys import QueueKeys
from tests.support.scenario import Scene, keys_of


def keys_of_the_filter(client: redis.Redis, key: str) -> set[str]:
    """Return those of a crawl's keys that are the filter's."""
    return {each for each in keys_of(client, key) if f"{key}:queue" not in each}


def number_kept(client: redis.Redis, queue: str) -> int:
    """Return how many requests are in a queue, or leased by a worker."""
    patterns = QueueKeys(queue).of_worker("*")
    leases = [name for pattern in patterns for name in client.scan_iter(match=pattern, count=10_000)]
    return int(client.zcard(queue)) + sum(int(client.zcard(name)) for name in leases)


def holders_of(client: redis.Redis, key: str, member: bytes) -> set[str]:
    """Return a crawl's sorted sets that contain a stored request."""
    kept = [each for each in keys_of(client, key) if client.type(each) == b"zset"]
    return {each for each in kept if client.zscore(each, member) is not None}


def complaints_in(log: str) -> list[str]:
    """The warnings and errors of this package."""
    lines = [line for line in log.splitlines() if "[scrapy_bloom." in line]
    return [line for line in lines if " WARNING: " in line or " ERROR: " in line]


def assert_ended_well(*crawls: Crawl) -> None:
    """Assert that each crawl ended by itself, without errors for the user."""
    for ended in crawls:
        assert "Traceback" not in ended.log
        # A warning in a destructor.
        assert "Exception ignored in" not in ended.log
        assert ended.exit_code == 0, complaints_in(ended.log)
        assert ended.stats["finish_reason"] == "finished"
        # Otherwise a missing page may have been taken for seen.
        assert ended.stats.get("bloomfilter/current_error_rate", 0) < 1e-8


def assert_complete(played: Scene, *crawls: Crawl) -> None:
    """Assert that every page was fetched, and that each crawl ended well."""
    assert played.missed == set()
    assert_ended_well(*crawls)


def assert_cleared(played: Scene, *crawls: Crawl) -> None:
    """Assert that every page was fetched, that each crawl ended well, and that they left no key on their server."""
    assert_complete(played, *crawls)
    assert played.keys == set()


def tell(capsys: pytest.CaptureFixture[str], line: str) -> None:
    """Print a line, which pytest-xdist passes on from stderr alone."""
    with capsys.disabled():
        print(f"\n{line}", file=sys.stderr)
