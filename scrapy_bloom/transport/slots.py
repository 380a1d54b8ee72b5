"""The nodes of a cluster, and the slots that each of them serves.

redis-py has a map of its own. It differs between the versions 6 to 8, and is read again after every fault, node after
node, with a full timeout for each. Everything that this package needs of a cluster's client is in this module.
"""

import os
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, Self

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from scrapy_bloom._format import as_text
from scrapy_bloom.transport.commands import Argument, Command
from scrapy_bloom.transport.connections import is_ready
from scrapy_bloom.transport.failures import FAULTS, decisive
from scrapy_bloom.transport.scripts import KnownScripts

# For a batch, if the client has no `socket_timeout`.
_TIMEOUT_SECONDS = 5.0
# A socket timeout of 0 would mean: do not block.
_MIN_SECONDS = 0.001
_READ_SLOTS = Command("CLUSTER", "SLOTS")
# The attribute of a client that keeps its slots. A dictionary of clients would keep the clients.
_ATTRIBUTE = "_scrapy_bloom_slots"


class Address(NamedTuple):
    """The address of a node."""

    host: str
    port: int


@lru_cache(maxsize=4096)
def slot_of(key: Argument) -> int:
    """Return the slot of a key."""
    return int(key_slot(key if isinstance(key, bytes) else str(key).encode()))


class Node:
    """A node of a cluster, and its idle connections.

    There are as many as threads that send commands at the same time.

    Attributes:
        address: the node's address.
        scripts: the scripts that the node knows.
        has_failed: the node failed last time. It is tried last, because it may use up the time of the others.
    """

    def __init__(self, pool: Any, address: Address) -> None:
        self.address = address
        self.scripts = KnownScripts()
        self.has_failed = False
        self._pool = pool
        self._idle: list[Any] = []
        self._process = os.getpid()

    def take(self, end: float) -> Any:
        """Return a connection that is ready for a command, for exclusive use until `give_back`.

        Raises:
            redis.RedisError: the node is unreachable, or does not answer until the time `end` of the monotonic clock.
        """
        if self._process != os.getpid():
            # A forked process inherits its parent's connections.
            self._process, self._idle = os.getpid(), []
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._pool.connection_class(**self._pool.connection_kwargs)
        try:
            if not is_ready(connection):
                connection.disconnect()
                _connect(connection, end - time.monotonic())
            self.limit(connection, end)
        except BaseException:
            connection.disconnect()
            raise
        return connection

    @staticmethod
    def limit(connection: Any, end: float) -> None:
        """Have the next call of a connection wait until `end` at most."""
        connection._sock.settimeout(max(end - time.monotonic(), _MIN_SECONDS))

    def give_back(self, connection: Any) -> None:
        """Keep a connection after all replies were read."""
        self._idle.append(connection)

    def disconnect(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().disconnect()


def _connect(connection: Any, seconds: float) -> None:
    if seconds <= 0:
        raise RedisTimeoutError("Timeout: other nodes of the cluster have used up socket_timeout")
    connection.socket_timeout = connection.socket_connect_timeout = seconds
    connection.connect()


class Slots:
    """The slots of a cluster. All transports of a client share them.

    Attributes:
        timeout: seconds for a batch.
        version: a number that changes with the owner of any slot. The new owner may lack the last writes of the former.
        is_stale: the slots are to be read again.
    """

    def __init__(self, client: Any) -> None:
        self._manager = client.nodes_manager
        self._options: dict[str, Any] = client.get_connection_kwargs()
        self.timeout: float = self._options.get("socket_timeout") or _TIMEOUT_SECONDS
        self.version = 0
        self.is_stale = True
        self._nodes: dict[Address, Node] = {}
        self._owners: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for node in client.get_nodes():
            self._node_at(node.host, node.port)

    @classmethod
    def of(cls, client: Any) -> Self:
        """Return the slots of a client's cluster."""
        slots: Self = vars(client).setdefault(_ATTRIBUTE, None) or cls(client)
        vars(client)[_ATTRIBUTE] = slots
        return slots

    def node_of(self, command: Command) -> Node:
        """Return the node that executes a command.

        Raises:
            ClusterDownError: no node serves the slot of the command's key.
        """
        key = command.key
        node = self._by_health()[0] if key is None else self._owners[slot_of(key)]
        if node is None:
            self.is_stale = True
            raise ClusterDownError(f"no node serves the hash slot of the key {as_text(key)!r}")
        return node

    def refresh(self, end: float) -> None:
        """Read the slots from the first node that answers, if they are stale.

        Raises:
            redis.RedisError: no node answers until the time `end` of the monotonic clock, or most of them refuse.
        """
        if not self.is_stale:
            return
        errors: list[Exception] = []
        for node in self._by_health():
            try:
                self._adopt(_read_slots(node, end), node.address.host)
            except FAULTS as error:
                node.has_failed = True
                errors.append(error)
            else:
                node.has_failed = self.is_stale = False
                return
        raise decisive(errors or [ClusterDownError("the cluster has no nodes")])

    def follow(self, error: AskError, node: Node) -> Node:
        """Return the node that a redirection from a node names."""
        target = self._node_at(error.host or node.address.host, error.port)
        if isinstance(error, MovedError):
            # More slots may have moved.
            self.is_stale = True
            self._owners[error.slot_id] = target
            self.version += 1
        return target

    def disconnect(self) -> None:
        """Close all connections."""
        for node in [*self._nodes.values()]:
            node.disconnect()

    def _by_health(self) -> list[Node]:
        """Return the nodes, and the failed ones last."""
        return sorted(self._nodes.values(), key=lambda node: node.has_failed)

    def _adopt(self, ranges: Iterable[Any], host: str) -> None:
        owners: list[Node | None] = [None] * REDIS_CLUSTER_HASH_SLOTS
        for start, end, (owner_host, port, *_), *_ in ranges:
            # A node that does not know its own address leaves it empty.
            node = self._node_at(as_text(owner_host or b"") or host, int(port))
            owners[int(start) : int(end) + 1] = [node] * (int(end) + 1 - int(start))
        if owners != self._owners:
            self._owners = owners
            self.version += 1

    def _node_at(self, host: str, port: int) -> Node:
        address = Address(*self._manager.remap_host_port(host, port))
        node = self._nodes.get(address)
        if node is None:
            made = self._manager.create_redis_node(*address, **self._options)
            node = self._nodes.setdefault(address, Node(made.connection_pool, address))
        return node


def disconnect_nodes(client: Any) -> None:
    """Close the connections to the nodes of a client's cluster, if there are any."""
    slots: Slots | None = getattr(client, _ATTRIBUTE, None)
    if slots is not None:
        slots.disconnect()


def owner_of(client: Any, key: str) -> str:
    """Return the address of the node of a cluster that serves a key.

    Raises:
        redis.RedisError: no node serves it.
    """
    return "{}:{}".format(*Slots.of(client).node_of(Command("TYPE", key)).address)


def each_node(client: Any) -> Iterator[tuple[str, bool, Any]]:
    """Yield the address of each node that a cluster knows, whether it has no slots, and a client for it.

    Raises:
        redis.RedisError: no master answers.
    """
    manager, options = client.nodes_manager, client.get_connection_kwargs()
    for name, node in _listed(client).items():
        host, _, port = name.rpartition(":")
        if not {"noaddr", "handshake"} & set(node["flags"].split(",")):
            address = manager.remap_host_port(host, int(port))
            yield name, not node["slots"], manager.create_redis_node(*address, **options)


def _listed(client: Any) -> dict[str, Any]:
    fault: Exception = ClusterDownError("the cluster has no nodes")
    for node in client.get_primaries():
        try:
            listed: dict[str, Any] = client.get_redis_connection(node).cluster("NODES")
        except (RedisConnectionError, RedisTimeoutError) as error:
            fault = error
        else:
            return listed
    raise fault


def _read_slots(node: Node, end: float) -> list[Any]:
    connection = node.take(end)
    try:
        connection.send_packed_command([_READ_SLOTS.pack()])
        slots: list[Any] = connection.read_response()
    except ResponseError:
        node.give_back(connection)
        raise
    except BaseException:
        connection.disconnect()
        raise
    node.give_back(connection)
    if not slots:
        # The node has left the cluster, or was started without its configuration.
        raise ClusterDownError(f"the node at {node.address.host}:{node.address.port} knows no slots")
    return slots
