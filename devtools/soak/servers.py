"""Two servers behind one address, and their faults. They keep every acknowledged write."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import redis

from devtools.proxy.link import LinkProxy, forwarding
from devtools.servers import Server, available, running
from devtools.soak.plan import Fault, Kind
from devtools.waiting import LIMIT, until

# Each command is on the disk before its reply, and a copy starts at once.
_OPTIONS = (
    *("--appendonly", "yes", "--appendfsync", "always"),
    *("--repl-diskless-sync-delay", "0", "--busy-reply-threshold", "50"),
)
_ENDLESS = "while true do end"
# Seconds after which a fault has had no effect. Workers send heartbeats all the time, and servers close connections at
# once, but for minutes neither may get a processor.
_EFFECT_SECONDS = LIMIT

Work = Callable[[], object]
Sign = Callable[[], bool]


def _nothing() -> None:
    """Leave everything as it is."""


class Servers:
    """A master and its replica; `link` is the way to the current master.

    A fault ends by itself, and the next one begins after that. `happened` counts the faults observed in the numbers of
    the server or of the link.
    """

    def __init__(self, master: Server, replica: Server, link: LinkProxy) -> None:
        self.master = master
        self.replica = replica
        self.link = link
        self.happened: Counter[Kind] = Counter()
        self._under_way: threading.Timer | None = None
        self._follow()

    def befall(self, fault: Fault) -> None:
        """Apply a fault, once the one before has ended."""
        self.settle()
        has_happened = _SIGNS[fault.kind](self)
        seconds, rest = self._begin(fault)
        self._under_way = threading.Timer(seconds, self._end, (fault.kind, rest, has_happened))
        self._under_way.start()

    def settle(self) -> None:
        """Wait until the last fault has ended."""
        if self._under_way is not None:
            self._under_way.join()
            self._under_way = None

    def _begin(self, fault: Fault) -> tuple[float, Work]:
        """Begin a fault; return its seconds, and the function that ends it."""
        size = fault.size
        match fault.kind:
            case Kind.RESTART:
                return 5 * size**2, self._kill()
            case Kind.FAILOVER | Kind.FAILOVER_KEPT:
                self._fail_over(cuts=fault.kind is Kind.FAILOVER)
                return 0.0, _nothing
            case Kind.CLIENT_KILL:
                self._kill_clients()
                return 0.0, _nothing
            case Kind.SLOW_LINK:
                return 1 + 2 * size, self._slow_down(delay=0.1 * size, rate=50_000 + 500_000 * (1 - size))
            case Kind.LOST_REPLIES:
                return 0.0, self._lose_replies(1 + int(5 * size))
            case Kind.BUSY:
                return 2 * size, self._be_busy()
            case _:
                raise ValueError(f"{fault.kind} is no fault of a server")

    def _end(self, kind: Kind, rest: Work, has_happened: Sign) -> None:
        rest()
        self.happened[kind] += has_happened()

    def _kill(self) -> Work:
        """Kill the master, which starts again on its data."""
        self.master.kill()
        return self.master.start

    def _fail_over(self, *, cuts: bool) -> None:
        """Promote the replica, once it is in sync; connections to the old master may be kept."""
        with self.link.held():
            until(self._are_in_step)
            self.master, self.replica = self.replica, self.master
            with self.master.client() as client:
                client.replicaof("NO", "ONE")
            self._follow()
            self.link.upstream = self.master.port
        if cuts:
            self.link.cut()

    def _kill_clients(self) -> None:
        """Have the master close all connections."""
        with self.master.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)

    def _be_busy(self) -> Work:
        """Run a script that does not end until it is killed."""

        def run() -> None:
            with self.master.client() as client, contextlib.suppress(redis.ResponseError):
                client.eval(_ENDLESS, 0)

        script = threading.Thread(target=run)
        script.start()

        def kill() -> None:
            # Each time again: it may not run yet.
            with self.master.client() as client:
                while script.is_alive():
                    with contextlib.suppress(redis.ResponseError):
                        client.script_kill()
                    script.join(0.05)

        return kill

    def _slow_down(self, delay: float, rate: float) -> Work:
        """Delay commands, and limit their bytes a second."""
        self.link.link.delay, self.link.link.rate = delay, rate

        def speed_up() -> None:
            self.link.link.delay, self.link.link.rate = 0.0, None

        return speed_up

    def _lose_replies(self, number: int) -> Work:
        """Drop the next replies, each with its connection."""
        self.link.link.lost_replies = number

        def wait() -> None:
            _comes_true(lambda: self.link.link.lost_replies == 0)
            self.link.link.lost_replies = 0

        return wait

    def _follow(self) -> None:
        with self.replica.client() as client:
            client.replicaof("127.0.0.1", self.master.port)

    def _are_in_step(self) -> bool:
        try:
            with self.master.client() as master, self.replica.client() as replica:
                copy = replica.info("replication")
                is_whole: bool = copy["master_link_status"] == "up"
                return is_whole and copy["slave_repl_offset"] >= master.info("replication")["master_repl_offset"]
        except redis.RedisError:  # one of them starts
            return False


def _comes_true(condition: Callable[[], object]) -> bool:
    try:
        until(condition, _EFFECT_SECONDS)
    except TimeoutError:
        return False
    return True


# Observations of the faults: made before a fault begins, they show after its end whether it happened.


def _changes(found: Callable[[Servers], Any]) -> Callable[[Servers], Sign]:
    """Return the observation of a fault that changes a value: a number, or a random name."""

    def sign(servers: Servers) -> Sign:
        before = found(servers)
        return lambda: bool(found(servers) != before)

    return sign


def _master_says(section: str, name: str, servers: Servers) -> Any:
    """Return a value that the server behind the link reports about itself."""
    with servers.link.address.client() as client:
        return client.info(section).get(name)


def _failed_scripts(servers: Servers) -> int:
    calls = (_master_says("commandstats", name, servers) or {} for name in ("cmdstat_eval", "cmdstat_evalsha"))
    return sum(int(each.get("failed_calls", 0)) for each in calls)


def _connections_go(servers: Servers) -> Sign:
    """Return the observation of a fault that ends the master's connections."""
    server = servers.master
    # The workers may not have connected again since the fault before.
    _comes_true(lambda: _connections(server))
    before = _connections(server)
    return lambda: bool(before) and _comes_true(lambda: not before & _connections(server))


def _connections(server: Server) -> set[str]:
    with server.client() as client:
        return {each["id"] for each in client.client_list(_type="normal")} - {str(client.client_id())}


def _both(*signs: Callable[[Servers], Sign]) -> Callable[[Servers], Sign]:
    def sign(servers: Servers) -> Sign:
        each = [make(servers) for make in signs]
        return lambda: all(has_happened() for has_happened in each)

    return sign


_promoted = _changes(partial(_master_says, "replication", "master_replid"))
_SIGNS: dict[Kind, Callable[[Servers], Sign]] = {
    Kind.RESTART: _changes(partial(_master_says, "server", "run_id")),
    Kind.FAILOVER: _both(_promoted, _connections_go),
    Kind.FAILOVER_KEPT: _promoted,
    Kind.CLIENT_KILL: _connections_go,
    Kind.SLOW_LINK: _changes(lambda servers: servers.link.delayed),
    Kind.LOST_REPLIES: _changes(lambda servers: servers.link.lost),
    Kind.BUSY: _changes(_failed_scripts),
}


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
