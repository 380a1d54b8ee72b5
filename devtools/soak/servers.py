"""Two servers behind one address, and what may happen to them. Whatever they have acknowledged they keep."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import redis

from devtools.forwarder import Forwarder, forwarding
from devtools.servers import Server, available, running
from devtools.soak.plan import Fault, Kind
from devtools.waiting import until

# Each command is on the disk before its reply, and a copy starts at once.
_OPTIONS = (
    *("--appendonly", "yes", "--appendfsync", "always"),
    *("--repl-diskless-sync-delay", "0", "--busy-reply-threshold", "50"),
)
_ENDLESS = "while true do end"
_IN_STEP_SECONDS = 30.0


class Servers:
    """A master and its replica; `link` is the way to whichever is the master.

    What takes some seconds goes on by itself. One such at a time: the next begins when the last has ended.
    """

    def __init__(self, master: Server, replica: Server, link: Forwarder) -> None:
        self.master = master
        self.replica = replica
        self.link = link
        self._under_way: list[threading.Thread] = []
        self._follow()

    def settle(self) -> None:
        """Wait until all that happened is over."""
        for thread in self._under_way:
            thread.join()
        self._under_way = []
        self.link.link.delay, self.link.link.rate, self.link.link.lost_replies = 0.0, None, 0

    def restart(self, seconds: float) -> None:
        """Kill the master, and start it again on its data after some seconds."""
        self.settle()
        self.master.kill()
        self._later(seconds, self.master.start)

    def fail_over(self, *, cuts: bool) -> None:
        """Put the replica in the master's place, when it has everything; connections to the old one may be kept."""
        self.settle()
        with self.link.held():
            until(self._are_in_step, _IN_STEP_SECONDS)
            self.master, self.replica = self.replica, self.master
            with self.master.client() as client:
                client.replicaof("NO", "ONE")
            self._follow()
            self.link.upstream = self.master.port
        if cuts:
            self.link.cut()

    def kill_clients(self) -> None:
        """Have the master close all connections."""
        self.settle()
        with self.master.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)

    def be_busy(self, seconds: float) -> None:
        """Run a script that does not end, and kill it after some seconds."""
        self.settle()

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

        self._later(seconds, kill)

    def slow_down(self, delay: float, rate: float, seconds: float) -> None:
        """Let commands come later, and not so many bytes of them a second, for some seconds."""
        self.settle()
        self.link.link.delay, self.link.link.rate = delay, rate

        def speed_up() -> None:
            self.link.link.delay, self.link.link.rate = 0.0, None

        self._later(seconds, speed_up)

    def lose_replies(self, number: int) -> None:
        """Swallow the next replies, each with its connection."""
        self.settle()
        self.link.link.lost_replies = number

    def _later(self, seconds: float, work: Callable[[], object]) -> None:
        timer = threading.Timer(seconds, work)
        timer.start()
        self._under_way.append(timer)

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


def befall(servers: Servers, fault: Fault) -> None:
    """Let a fault happen to the servers, or on the way to them."""
    size = fault.size
    match fault.kind:
        case Kind.RESTART:
            servers.restart(5 * size**2)
        case Kind.FAILOVER | Kind.FAILOVER_KEPT:
            servers.fail_over(cuts=fault.kind is Kind.FAILOVER)
        case Kind.CLIENT_KILL:
            servers.kill_clients()
        case Kind.SLOW_LINK:
            servers.slow_down(delay=0.1 * size, rate=50_000 + 500_000 * (1 - size), seconds=1 + 2 * size)
        case Kind.LOST_REPLIES:
            servers.lose_replies(1 + int(5 * size))
        case Kind.BUSY:
            servers.be_busy(2 * size)
        case _:
            raise ValueError(f"{fault.kind} is nothing that befalls a server")


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
