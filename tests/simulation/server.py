"""The server of a simulation: real scripts over data in memory, and a network and faults drawn by a seed."""

from collections.abc import Callable
from hashlib import sha1
from random import Random
from types import SimpleNamespace
from typing import Any

from redis import exceptions

from scrapy_bloom.queue.messages import Call
from scrapy_bloom.queue.request_queue import RequestQueue
from tests.simulation.clock import Hub, once
from tests.simulation.plan import Plan
from tests.support.script_server import ScriptServer

# Unix time at which each simulation begins, in microseconds.
BEGIN = 1_700_000_000_000_000
# Called when the server has executed a call: its worker, itself, the queue, the reply, and whether that arrives.
Listener = Callable[[str, Call, str, Any, bool], None]


class Server:
    """Executes the commands of processes, as far as link and faults allow.

    Attributes:
        data: all keys.
        until: the ends of outages by kind.
        scripts: the texts of the scripts that it knows, by their hashes.
        wrong: replacements in each script, which plant a mistake.
    """

    def __init__(self, hub: Hub, plan: Plan, chance: Random, wrong: dict[str, str]) -> None:
        self.data = ScriptServer(BEGIN)
        self.until = dict.fromkeys(("refused", "hanging", "frozen", "loading", "lossy", "slow"), 0.0)
        self.scripts: dict[str, str] = {}
        self.wrong = wrong
        self._hub, self._plan, self._chance = hub, plan, chance

    def restart(self, data: ScriptServer) -> None:
        """Continue with other data, and without scripts."""
        data.time = self.data.time
        self.data = data
        self.scripts.clear()

    def is_(self, kind: str) -> bool:
        """Return whether a fault lasts."""
        return self._hub.now < self.until[kind]

    def execute(self, name: str, *arguments: Any) -> Any:
        """Execute a command now; an error is returned."""
        self.data.time = max(self.data.time + 1, BEGIN + int(self._hub.now * 1e6))
        if name == "HSCAN":
            found = self.data.call("HGETALL", arguments[0])
            return 0, dict(zip(found[::2], found[1::2], strict=True))
        if name not in ("EVAL", "EVALSHA"):
            return self.data.call(name, *arguments)
        text, count, *rest = arguments
        if name == "EVALSHA":
            if text not in self.scripts:
                return exceptions.NoScriptError("No matching script.")
            text = self.scripts[text]
        self.scripts[sha1(text.encode(), usedforsecurity=False).hexdigest()] = text
        for right, wrong in self.wrong.items():
            text = text.replace(right, wrong)
        try:
            return self.data.eval(text, rest[:count], rest[count:])
        except exceptions.ResponseError as error:
            return error

    def round_trip(self, step: Callable[[bool], Any], slowness: float, size: int) -> Any:
        """Execute a step for the current process, which is blocked meanwhile.

        Raises:
            RedisError: the link or the server failed; the step may have been executed, or will be.
        """
        hub, chance, plan = self._hub, self._chance, self._plan
        replies: list[Any] = []
        deadline = hub.now + plan.timeout
        resume = once(hub)

        def end(reply: Any) -> None:
            replies.append(reply)
            resume()

        def arrive() -> None:
            if self.is_("frozen"):  # executed when it resumes
                hub.at(self.until["frozen"] + chance.random() * 0.01, arrive)
            elif self.is_("refused"):
                end(exceptions.ConnectionError("Connection refused"))
            elif self.is_("loading"):
                end(exceptions.BusyLoadingError("Redis is loading the dataset in memory"))
            elif not self.is_("hanging"):
                reply = step(fate == "well" and hub.now + way < deadline)
                if fate != "no reply":
                    hub.after(way, lambda: end(reply))
                elif is_noticed:
                    hub.after(way, lambda: end(exceptions.ConnectionError("Connection closed by server.")))

        is_lost = self.is_("lossy") and chance.random() < plan.loss
        fate = chance.choice(["no request", "no reply", "no reply", "late"]) if is_lost else "well"
        is_noticed = chance.random() < 0.5
        way = chance.expovariate(1 / (plan.latency * slowness))
        if self.is_("slow"):  # larger packets arrive too late
            way += plan.timeout * size / 1500
        if fate == "late":
            hub.after(plan.timeout + chance.random() * plan.lateness, arrive)
        elif fate != "no request":
            hub.after(way, arrive)
        elif is_noticed:
            hub.after(way, lambda: end(exceptions.ConnectionError("Connection reset by peer")))
        hub.at(deadline, lambda: end(exceptions.TimeoutError("Timeout reading from socket")))
        hub.block()
        if isinstance(replies[0], Exception):
            raise replies[0]
        return replies[0]


class Client:
    """A Redis client of one process for one queue. `call` is the worker's call that the next command carries."""

    def __init__(self, server: Server, slowness: float, listen: Listener) -> None:
        self._server, self._slowness, self._listen = server, slowness, listen
        self.call: tuple[str, Call, str] | None = None
        # No reply of an earlier command is read by a later one.
        self.connection_pool = SimpleNamespace(disconnect=lambda: None)

    def execute_command(self, *arguments: Any, **_: Any) -> Any:
        """Send a command, and return its reply."""
        call = self.call

        def step(arrives: bool) -> Any:
            reply = self._server.execute(*arguments)
            if call and not isinstance(reply, Exception):
                self._listen(*call, reply, arrives)
            return reply

        size = sum(len(each) for each in arguments if isinstance(each, bytes))
        return self._server.round_trip(step, self._slowness, size)


class SimulatedQueue(RequestQueue):
    """A queue on the simulated server."""

    def send(self, worker: str, call: Call) -> Any:
        """Execute a call of a worker, and return the script's reply."""
        self._client.call = worker, call, self.keys.queue
        try:
            return super().send(worker, call)
        finally:
            self._client.call = None
