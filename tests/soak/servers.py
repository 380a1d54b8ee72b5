"""Two servers behind one address, and their faults. They keep every acknowledged write."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import redis

from devtools.servers import Server, available, running
from tests.soak.plan import Fault, Kind
from tests.support.proxy.link import Link, LinkProxy, forwarding
from tests.support.waiting import LIMIT, until

# Each command is on the disk before its reply, and a copy starts at once.
_OPTIONS = (
    *("--appendonly", "yes", "--appendfsync", "always"),
    *("--repl-diskless-sync-delay", "0", "--busy-reply-threshold", "50"),
)
_ENDLESS = "while true do end"
# Seconds after which a fault has had no effect. Workers send heartbeats all the time, and servers close connections at
# once, but for minutes neither may get a processor.
_EFFECT_SECONDS = LIMIT


class Servers:
    """A master and its replica; `link` is the way to the current master.

    A fault ends by itself, and the next one begins after that. `happened` counts the faults of which a sign was seen in
    the numbers of the server or of the link.
    """

    def __init__(self, master: Server, replica: Server, link: LinkProxy) -> None:
        self.master = master
        self.replica = replica
        self.link = link
        self.happened: Counter[Kind] = Counter()
        self._under_way: threading.Timer | None = None
        self.follow()

    def befall(self, fault: Fault) -> None:
        """Apply a fault, once the one before has ended."""
        self.settle()
        steps = FAULTS[fault.kind](self, fault.size)
        self._under_way = threading.Timer(next(steps), self._end, (fault.kind, steps))
        self._under_way.start()

    def settle(self) -> None:
        """Wait until the last fault has ended."""
        if self._under_way is not None:
            self._under_way.join()
            self._under_way = None

    def _end(self, kind: Kind, steps: "Steps") -> None:
        self.happened[kind] += bool(next(steps))

    def follow(self) -> None:
        """Let the replica copy the master."""
        with self.replica.client() as client:
            client.replicaof("127.0.0.1", self.master.port)

    def are_in_step(self) -> bool:
        """Return whether the replica has all data of the master."""
        try:
            with self.master.client() as master, self.replica.client() as replica:
                copy = replica.info("replication")
                is_whole: bool = copy["master_link_status"] == "up"
                return is_whole and copy["slave_repl_offset"] >= master.info("replication")["master_repl_offset"]
        except redis.RedisError:  # one of them starts
            return False

    def says(self, section: str, name: str) -> Any:
        """Return a value that the server behind the link reports about itself."""
        with self.link.address.client() as client:
            return client.info(section).get(name)


Steps = Iterator[float]
"""A fault: it begins, yields the seconds that it lasts, ends, and yields whether a sign of it was seen."""


def _restart(servers: Servers, size: float) -> Steps:
    before = servers.says("server", "run_id")
    servers.master.kill()
    yield 5 * size**2
    servers.master.start()
    yield servers.says("server", "run_id") != before


def _fail_over(servers: Servers, _: float, *, cuts: bool) -> Steps:
    """Promote the replica, once it is in sync; connections to the old master may be kept."""
    before, are_closed = servers.says("replication", "master_replid"), _closing(servers.master)
    with servers.link.held():
        until(servers.are_in_step)
        servers.master, servers.replica = servers.replica, servers.master
        with servers.master.client() as client:
            client.replicaof("NO", "ONE")
        servers.follow()
        servers.link.upstream = servers.master.port
    if cuts:
        servers.link.cut()
    yield 0.0
    yield servers.says("replication", "master_replid") != before and (not cuts or are_closed())


def _kill_clients(servers: Servers, _: float) -> Steps:
    are_closed = _closing(servers.master)
    with servers.master.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    yield 0.0
    yield are_closed()


def _slow_down(servers: Servers, size: float) -> Steps:
    before = servers.link.delayed
    servers.link.link = Link(rate=50_000 + 500_000 * (1 - size), delay=0.1 * size)
    yield 1 + 2 * size
    servers.link.link = Link()
    yield servers.link.delayed > before


def _lose_replies(servers: Servers, size: float) -> Steps:
    before = servers.link.lost
    servers.link.link.lost_replies = 1 + int(5 * size)
    yield 0.0
    _comes_true(lambda: servers.link.link.lost_replies == 0)
    servers.link.link.lost_replies = 0
    yield servers.link.lost > before


def _be_busy(servers: Servers, size: float) -> Steps:
    """Run a script that does not end until it is killed."""
    server, before = servers.master, _failed_scripts(servers)

    def run() -> None:
        with server.client() as client, contextlib.suppress(redis.ResponseError):
            client.eval(_ENDLESS, 0)

    script = threading.Thread(target=run)
    script.start()
    yield 2 * size
    # Each time again: it may not run yet.
    with server.client() as client:
        while script.is_alive():
            with contextlib.suppress(redis.ResponseError):
                client.script_kill()
            script.join(0.05)
    yield _failed_scripts(servers) > before


FAULTS: dict[Kind, Callable[[Servers, float], Steps]] = {
    Kind.RESTART: _restart,
    Kind.FAILOVER: partial(_fail_over, cuts=True),
    Kind.FAILOVER_KEPT: partial(_fail_over, cuts=False),
    Kind.CLIENT_KILL: _kill_clients,
    Kind.SLOW_LINK: _slow_down,
    Kind.LOST_REPLIES: _lose_replies,
    Kind.BUSY: _be_busy,
}


def _comes_true(condition: Callable[[], object]) -> bool:
    try:
        until(condition, _EFFECT_SECONDS)
    except TimeoutError:
        return False
    return True


def _failed_scripts(servers: Servers) -> int:
    calls = (servers.says("commandstats", name) or {} for name in ("cmdstat_eval", "cmdstat_evalsha"))
    return sum(int(each.get("failed_calls", 0)) for each in calls)


def connections(server: Server) -> set[str]:
    """Return the connections of a server, without this one."""
    with server.client() as client:
        return {each["id"] for each in client.client_list(_type="normal")} - {str(client.client_id())}


def _closing(server: Server) -> Callable[[], bool]:
    """Return a function that waits until the present connections of a server are closed; False if there are none."""
    # The workers may not have connected again since the fault before.
    _comes_true(lambda: connections(server))
    before = connections(server)
    return lambda: bool(before) and _comes_true(lambda: not before & connections(server))


@contextlib.contextmanager
def serving() -> Iterator[Servers]:
    """Run both servers for as long as the block lasts."""
    kind = available()[-1]
    with (
        running(kind, *_OPTIONS) as master,
        running(kind, *_OPTIONS) as replica,
        forwarding(master.port) as link,
    ):
        servers = Servers(master, replica, link)
        try:
            yield servers
        finally:
            servers.settle()
