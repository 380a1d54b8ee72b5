"""The faults of the soak are counted if they had an effect, and only then."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import cast

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from devtools.crawl_process import CrawlProcess
from devtools.proxy.link import Link, LinkProxy
from devtools.servers import Address, Server
from devtools.soak import __main__ as soak
from devtools.soak import crawl, servers
from devtools.soak.plan import SIGNALS, Fault, Kind
from devtools.soak.servers import Servers, serving
from devtools.waiting import until
from tests.support.selection import long_unless

# A soak, which is `long` too, fails if a planned fault is absent.
QUICK = (Kind.CLIENT_KILL, Kind.RESTART)
OF_SERVERS = [kind for kind in Kind if kind not in SIGNALS]


@pytest.fixture
def pair() -> Iterator[Servers]:
    """Two servers, and a client of them that writes all the time, as a worker does."""
    is_over = threading.Event()

    def write(address: Address) -> None:
        with address.client(retry=Retry(NoBackoff(), 0)) as client:
            while not is_over.wait(0.01):
                try:
                    client.incr("writes")
                except redis.RedisError:  # away, or a replica by now
                    client.connection_pool.disconnect()

    with serving() as both:
        writing = threading.Thread(target=write, args=(both.link.address,))
        writing.start()
        yield both
        is_over.set()
        writing.join()


@pytest.mark.parametrize("kind", long_unless(lambda kind: kind in QUICK, OF_SERVERS))
def test_fault_happens(kind: Kind, pair: Servers) -> None:
    """Each fault has its effect on the server or on the link, even twice in a row."""
    pair.happened.clear()
    for page in (1, 2):
        until(lambda: servers.connections(pair.master))
        pair.befall(Fault(kind, page, 0.2))
        pair.settle()
    assert pair.happened == {kind: 2}


@pytest.mark.parametrize("kind", long_unless(lambda kind: kind in QUICK, OF_SERVERS))
def test_fault_without_effect(kind: Kind, pair: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault without an effect is not counted."""
    for owner, name in (
        (redis.Redis, "replicaof"),
        (redis.Redis, "client_kill_filter"),
        (Server, "kill"),
        (Server, "start"),
        (LinkProxy, "_loses_reply"),
    ):
        monkeypatch.setattr(owner, name, lambda *_, **__: False)
    monkeypatch.setattr(servers, "_EFFECT_SECONDS", 0.1)
    monkeypatch.setattr(servers, "_ENDLESS", "return 1")
    monkeypatch.setattr(servers, "Link", lambda **_: Link())
    pair.happened.clear()
    pair.befall(Fault(kind, 1, 0.2))
    pair.settle()
    assert not pair.happened.total()
    monkeypatch.undo()


def test_stopped_process() -> None:
    """A process has stopped when the system says so, but not if it has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        worker = cast("CrawlProcess", type("Worker", (), {"process": process}))
        process.send_signal(signal.SIGSTOP)
        assert crawl.is_stopped(worker)
        process.kill()
        assert not crawl.is_stopped(worker)
        process.wait()
        assert not crawl.is_stopped(worker)


def test_no_crawl_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """A soak whose time has run out before it begins fails."""
    assert soak.main(["--seconds", "0"]) == 1
    assert "crawls                  0\n" in capsys.readouterr().out
