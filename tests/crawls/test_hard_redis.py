"""Crawls over a difficult Redis: slow, busy, echoing commands that it does not know, or away while much is found."""

import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis

from devtools.crawl_process import LIMIT, CrawlProcess
from scrapy_bloom.transport.failures import advice_for
from tests.support.extensions import ALL_TURNS, LONGEST_STALL, TICKED, Ticker, enabling
from tests.support.outcomes import assert_cleared, assert_complete, number_kept, tell
from tests.support.pages import chain, tree
from tests.support.proxy.link import forwarding
from tests.support.scenario import LEASE, MIDDLE, OURS, PAGES, Kind, keys_of, scene
from tests.support.servers import EACH_KIND, Server, running
from tests.support.spiders import burst
from tests.support.waiting import until

SECRET = "not-to-be-told"  # noqa: S105  # the password of a server that lives for one test


def test_redis_stopped(durable: Server, key: str, tmp_path: Path) -> None:
    """Redis answers nothing for 2 s, longer than two workers wait for a reply: no page is missed."""
    settings: Kind = {**OURS, **LEASE, "REDIS_PARAMS": '{"socket_timeout": 0.5}', "CONCURRENT_REQUESTS": 4}
    with scene(tree(PAGES), tmp_path, durable.url, key, delay=0.1) as played:

        def stop(_: str) -> None:
            silence = durable.silent()
            silence.__enter__()
            threading.Timer(2, silence.__exit__, (None, None, None)).start()

        played.moments.when(MIDDLE, stop)
        crawls = played.crawl_by("left", "right", kind=settings)
        assert_cleared(played, *crawls)


def test_password_is_not_told(key: str, tmp_path: Path) -> None:
    """No log has the password after any connection error: not at DEBUG, not in a server's words.

    The crawl is redirected to a server without HELLO, which echoes the command, then back, and finishes.
    """
    password = ("--requirepass", SECRET)
    with (
        running("valkey", *password) as server,
        running("redis", *password, "--rename-command", "HELLO", "") as other,
        forwarding(server.port) as link,
        scene(tree(PAGES), tmp_path, f"redis://:{SECRET}@127.0.0.1:{link.address.port}", key, delay=0.1) as played,
    ):

        def change(_: str) -> None:
            link.upstream = other.port
            link.cut()

        played.moments.when(MIDDLE, change)
        worker = played.start("worker", {**OURS, "BLOOMFILTER_LEASE": 0.2})
        until(lambda: worker.process.poll() is not None or played.log("worker").count("HELLO") >= 3)
        link.upstream = server.port
        ended = worker.wait()
    assert SECRET not in ended.log


@pytest.mark.parametrize("kind", EACH_KIND)
def test_least_permissions(kind: str, key: str, tmp_path: Path) -> None:
    """A user with exactly the permissions named by the error's advice crawls with a growing filter."""
    advice = advice_for(redis.exceptions.NoPermissionError())
    commands = {f"+{word}" for word in re.findall(r"\b[A-Z]{3,}\b", str(advice))}
    keys = (f"~{key}", f"~{{{key}}}:*", f"~{key}:queue", f"~{{{key}:queue}}:*")
    with running(kind) as server, server.client() as client:
        client.execute_command("ACL", "SETUSER", "crawler", "on", f">{SECRET}", *keys, *commands)
        url = f"redis://crawler:{SECRET}@127.0.0.1:{server.port}"
        with scene(tree(PAGES), tmp_path, url, key) as played:
            expiries: list[Any] = []
            played.moments.when(MIDDLE, lambda _: expiries.append(client.pttl(key)))
            settings: Kind = {**OURS, "BLOOMFILTER_CAPACITY": 50, "SCHEDULER_FLUSH_ON_START": True}
            ended = played.crawl({**settings, "BLOOMFILTER_TTL": 3600})
            assert_complete(played, ended)
            # It would continue without it.
            assert expiries[0] > 0
        assert keys_of(client, key) == set()


# Very many requests are found while Redis is unreachable: all are delivered, in bounded memory.


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
