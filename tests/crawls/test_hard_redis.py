"""Crawls over a difficult Redis: slow, busy, echoing commands that it does not know, or away while much is found."""

import threading
from itertools import repeat
from pathlib import Path

from tests.support.faults import FaultProxy, Place
from tests.support.outcomes import assert_cleared
from tests.support.pages import star, tree
from tests.support.proxy import running as running_proxy
from tests.support.proxy.link import forwarding
from tests.support.scenario import LEASE, MIDDLE, OURS, PAGES, Kind, scene
from tests.support.servers import Server, running
from tests.support.spiders import large
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


class NarrowProxy(FaultProxy):
    """Closes the connection at each script of more than `LIMIT` bytes, as a proxy with a limit does."""

    LIMIT = 10 * large.SIZE

    def is_aimed_at(self, command: bytes) -> bool:
        """Return whether a command is too large."""
        return super().is_aimed_at(command) and len(command) > self.LIMIT


def test_large_scripts_cut(valkey: Server, key: str, tmp_path: Path) -> None:
    """Behind a proxy that cuts large scripts, smaller ones carry the same requests: no page is missed."""
    with (
        running_proxy(NarrowProxy(valkey.port, "EVALSHA", "EVAL")) as proxy,
        scene(star(60), tmp_path, proxy.url, key) as played,
    ):
        proxy.plan = repeat(Place.BEFORE)
        played.spider = large.__file__
        assert_cleared(played, played.crawl(OURS))
        assert proxy.faults > 0


# Very many requests are found while Redis is unreachable: all are delivered, in bounded memory.
