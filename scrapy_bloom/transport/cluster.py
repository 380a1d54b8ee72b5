"""The transport for Redis Cluster: a batch goes to all nodes before any reply is read.

redis-py's ClusterPipeline cannot be used: it sends commands again whose replies were lost, and has no option to turn
this off. Here each command has an outcome of its own:

    its reply
    not executed   MOVED and ASK: sent to the named node at once. TRYAGAIN, CLUSTERDOWN, READONLY,
                   LOADING, or a connection that could not be made: the caller may send it again.
    in doubt       the connection was lost, or silent until the deadline, after the command was sent

Commands on one node are executed in order, except that a redirected one may be overtaken. Steps that need an order are
scripts on one slot. One deadline holds for the whole batch, so that the timeouts of silent nodes do not add up.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from redis import RedisCluster
from redis.exceptions import AskError, ClusterError, MovedError

from scrapy_bloom.transport.commands import Command, Failure
from scrapy_bloom.transport.connections import KnownConnections, read_reply
from scrapy_bloom.transport.failures import FAULTS, advice_for
from scrapy_bloom.transport.slots import Node, Slots
from scrapy_bloom.transport.transport import Transport

# A slot that moves redirects a command twice, by MOVED and by ASK; a further one moves meanwhile.
_MAX_ROUNDS = 8
_ASKING = Command("ASKING").pack()


class _Route(NamedTuple):
    """The way of a command: to `node`, or to the owner of its slot.

    `is_asking` puts ASKING in front of it. `is_in_full` sends the text of a script that the node has lost.
    """

    node: Node | None = None
    is_asking: bool = False
    is_in_full: bool = False


class ClusterTransport(Transport):
    """Sends commands to the nodes of a cluster in one round trip.

    Attributes:
        connections: the number of connections that have carried replies, and of changes of the slots' owners.
    """

    def __init__(self, client: RedisCluster) -> None:
        self.connections = 0
        self._slots = Slots.of(client)
        self._known = KnownConnections()

    def attempt(self, commands: Sequence[Command]) -> list[Any]:
        """Send each command once to its node, and follow redirections."""
        end = time.monotonic() + self._slots.timeout
        try:
            self._slots.refresh(end)
        except FAULTS as error:
            return [Failure(error, is_in_doubt=False)] * len(commands)
        outcomes: list[Any] = [Failure(ClusterError("redirected too often"), is_in_doubt=False)] * len(commands)
        routes = dict.fromkeys(range(len(commands)), _Route())
        for _ in range(_MAX_ROUNDS):
            batches = self._batches(commands, routes, outcomes)
            routes = self._round(batches, outcomes, end)
            if not routes:
                break
        self.connections = self._known.number + self._slots.version
        return outcomes

    def _batches(
        self, commands: Sequence[Command], routes: Mapping[int, _Route], outcomes: list[Any]
    ) -> "list[_NodeBatch]":
        """Return the commands by node; a node that failed last time is the last one."""
        batches: dict[Node, _NodeBatch] = {}
        for index, route in routes.items():
            try:
                node = route.node or self._slots.node_of(commands[index])
            except FAULTS as error:
                outcomes[index] = Failure(error, is_in_doubt=False)
            else:
                batches.setdefault(node, _NodeBatch(node)).add(index, commands[index], route)
        return sorted(batches.values(), key=lambda batch: batch.node.has_failed)

    def _round(self, batches: "Sequence[_NodeBatch]", outcomes: list[Any], end: float) -> dict[int, _Route]:
        """Send all batches, then read the replies; return the routes of commands to send again."""
        routes: dict[int, _Route] = {}
        try:
            for batch in batches:
                batch.send(end)
            for batch in batches:
                for index, outcome in batch.receive(end, self._known):
                    route = self._next_route(batch, index, outcome) if isinstance(outcome, Failure) else None
                    if route is not None:
                        routes[index] = route
                    else:
                        outcomes[index] = outcome
        finally:
            for batch in batches:
                batch.close()
        return routes

    def _next_route(self, batch: "_NodeBatch", index: int, failure: Failure) -> _Route | None:
        """Return the route on which a failed command is sent again at once, or None."""
        if index in batch.hashed and batch.node.scripts.was_refused(failure.error):
            return batch.routes[index]._replace(node=batch.node, is_in_full=True)
        if isinstance(failure.error, AskError):
            target = self._slots.follow(failure.error, batch.node)
            return _Route(target, is_asking=not isinstance(failure.error, MovedError))
        # Another node may serve the slot by now.
        self._slots.is_stale = self._slots.is_stale or advice_for(failure.error) is None
        return None


class _NodeBatch:
    """The commands for one node, on one connection.

    Attributes:
        node: the node.
        routes: the routes of the commands by their indexes in the whole batch.
        hashed: the indexes of scripts that are sent by their hashes.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.routes: dict[int, _Route] = {}
        self.hashed: set[int] = set()
        self._commands: list[Command] = []
        self._connection: Any = None
        self._failure: Failure | None = None

    def add(self, index: int, command: Command, route: _Route) -> None:
        """Add a command; a script goes by its hash if the node knows it."""
        hashed = None if route.is_in_full else self.node.scripts.by_hash(command)
        if hashed is not None:
            self.hashed.add(index)
        self.routes[index] = route
        self._commands.append(hashed or command)

    def send(self, end: float) -> None:
        """Write all commands to a connection."""
        try:
            self._connection = self.node.take(end)
        except FAULTS as error:
            self._fail(error, is_in_doubt=False)
            return
        try:
            packed = [
                _ASKING + command.pack() if route.is_asking else command.pack()
                for command, route in zip(self._commands, self.routes.values(), strict=True)
            ]
            self._connection.send_packed_command([b"".join(packed)])
        except FAULTS as error:
            self._fail(error, is_in_doubt=True)

    def receive(self, end: float, known: KnownConnections) -> Iterator[tuple[int, Any]]:
        """Yield the index and the outcome of each command."""
        if self._failure is None:
            self.node.limit(self._connection, end)
        for command, (index, route) in zip(self._commands, self.routes.items(), strict=True):
            outcome: Any = self._failure
            if outcome is None:
                try:
                    if route.is_asking:
                        self._connection.read_response()
                    outcome = read_reply(self._connection, command)
                except FAULTS as error:
                    outcome = self._fail(error, is_in_doubt=True)
            yield index, outcome
        if self._failure is None:
            known.note(self._connection)
            self.node.has_failed = False
            self.node.give_back(self._connection)
            self._connection = None

    def close(self) -> None:
        """Close the connection if replies are left unread: they would be taken for those of other commands."""
        if self._connection is not None:
            self._connection.disconnect()

    def _fail(self, error: Exception, *, is_in_doubt: bool) -> Failure:
        self.node.has_failed = True
        self._failure = Failure(error, is_in_doubt)
        return self._failure
