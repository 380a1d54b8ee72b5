"""Real clusters: masters with equal shares of the slots, their replicas, and the faults of both."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from scrapy_bloom.transport.connect import disconnect
from tests.support.servers import Server, free_port, running, until_replicated
from tests.support.waiting import until

# A master without slots stays a master: others may still have to tell it the owners of slots.
_OPTIONS = (
    *("--cluster-enabled", "yes", "--cluster-allow-replica-migration", "no"),
    *("--repl-diskless-sync-delay", "0"),
)
# Slots that are moved together, and by how many connections: Valkey has each change of a slot's owner acknowledged by
# the replicas. Keys of a slot that are moved together.
_SLOTS_AT_ONCE = 128
_CONNECTIONS = 16
_KEYS_AT_ONCE = 100
_MIGRATE_MILLISECONDS = 10_000
# The other masters let a replica take over after 2 seconds without an answer.
_NODE_TIMEOUT = ("--cluster-node-timeout", "2000")


class Cluster:
    """The nodes of a cluster: first its original masters in the order of their slots, then their replicas."""

    def __init__(self, nodes: Sequence[Server]) -> None:
        self.nodes = nodes
        self._away: set[Server] = set()

    def __iter__(self) -> Iterator[Server]:
        return iter(self.nodes)

    def __getitem__(self, index: int) -> Server:
        return self.nodes[index]

    @property
    def url(self) -> str:
        """The addresses of all nodes, as REDIS_URL takes them."""
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    def client(self, **options: Any) -> Any:
        """Make a new client, which knows all nodes."""
        return redis.RedisCluster("127.0.0.1", self._present()[0].port, **options)

    def owner(self, slot: int) -> Server:
        """Return the master of a slot, in the view of the first node that answers."""
        return self._owner_seen_by(self._present()[0], slot)

    def owner_of(self, key: str) -> Server:
        """Return the master of a key's slot."""
        return self.owner(slot_of(key))

    def other_than(self, master: Server) -> Server:
        """Return another master."""
        return next(node for node in self._masters() if node is not master)

    def slots_of(self, master: Server) -> list[int]:
        """Return the slots of a master."""
        with self._present()[0].client() as client:
            ranges = client.execute_command("CLUSTER SLOTS")
        return [slot for start, end, owner in _owners(ranges) if owner == master.port for slot in range(start, end + 1)]

    def kill(self, master: Server) -> None:
        """Kill a master for good, and wait until its replica has its slots.

        The replica lacks at most the writes of the last milliseconds.
        """
        slot = self.slots_of(master)[0]
        until_replicated(master, self._replica_of(master))
        master.kill()
        self._away.add(master)
        self._until_promoted(slot, master)

    def restart_empty(self, master: Server) -> None:
        """Kill a master, and start it again without its data, before a replica takes over."""
        for node in self._present():
            with node.client() as client:
                client.config_set("cluster-replica-no-failover", "yes")
        master.kill()
        master.start()
        self.until_ready()

    def silence(self, master: Server, seconds: float) -> None:
        """Stop a master's process for so long, and until a replica has its slots; it returns as a replica."""
        slot = self.slots_of(master)[0]
        with master.silent():
            self._away.add(master)
            threading.Event().wait(seconds)
            self._until_promoted(slot, master)
        self._away.remove(master)
        self.until_ready()

    def move(self, slots: Sequence[int], source: Server, target: Server) -> None:
        """Move slots with their keys, as `redis-cli --cluster reshard` does."""
        masters = [target, source, *(node for node in self._masters() if node not in {source, target})]
        parts = [slots[start : start + _SLOTS_AT_ONCE] for start in range(0, len(slots), _SLOTS_AT_ONCE)]
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            for moved in [pool.submit(_move, part, masters) for part in parts]:
                moved.result()

    def until_ready(self) -> None:
        """Wait until all nodes serve all slots, and each replica has its master's data."""
        until(lambda: all(map(self._is_ready, self._present())))

    def _is_ready(self, node: Server) -> bool:
        with node.client() as client:
            replication = client.info("replication")
            is_linked = replication["role"] == "master" or replication["master_link_status"] == "up"
            return bool(is_linked and client.cluster("info")["cluster_state"] == "ok")

    def _until_promoted(self, slot: int, former: Server) -> None:
        until(lambda: all(self._owner_seen_by(node, slot) is not former for node in self._present()))
        self.until_ready()

    def _present(self) -> list[Server]:
        return [node for node in self.nodes if node not in self._away]

    def _masters(self) -> list[Server]:
        with self._present()[0].client() as client:
            ports = {port for _, _, port in _owners(client.execute_command("CLUSTER SLOTS"))}
        return [node for node in self.nodes if node.port in ports]

    def _replica_of(self, master: Server) -> Server:
        with master.client() as client:
            ports = {replica["port"] for replica in _replicas_in(client.info("replication"))}
        return next(node for node in self._present() if node.port in ports)

    def _owner_seen_by(self, node: Server, slot: int) -> Server:
        with node.client() as client:
            owners = _owners(client.execute_command("CLUSTER SLOTS"))
        port = next(port for start, end, port in owners if start <= slot <= end)
        return next(node for node in self.nodes if node.port == port)


def slot_of(key: str) -> int:
    """Return the slot of a key."""
    return int(key_slot(key.encode()))


def _replicas_in(replication: Any) -> list[dict[str, Any]]:
    return [replication[f"slave{number}"] for number in range(replication["connected_slaves"])]


def _owners(ranges: Any) -> Iterator[tuple[int, int, int]]:
    """Yield the first and the last slot of each range, and its master's port, from the reply to CLUSTER SLOTS."""
    if isinstance(ranges, dict):  # parsed by redis-py
        for (start, end), nodes in ranges.items():
            yield start, end, nodes["primary"][1]
    else:
        for start, end, primary, *_ in ranges:
            yield start, end, primary[1]


def _move(slots: Sequence[int], masters: Sequence[Server]) -> None:
    """Move slots from the second of the masters to the first."""
    target, *_ = masters
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(node.client()) for node in masters]
        new, old, *_ = clients
        identities = [_identity(client) for client in (new, old)]
        _set_slots(new, slots, "IMPORTING", identities[1])
        _set_slots(old, slots, "MIGRATING", identities[0])
        for slot in slots:
            while keys := old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, _KEYS_AT_ONCE):
                address = ("127.0.0.1", target.port, "", 0, _MIGRATE_MILLISECONDS)
                old.execute_command("MIGRATE", *address, "KEYS", *keys)
        # The target first: no slot is ever without an owner.
        for client in clients:
            _set_slots(client, slots, "NODE", identities[0])


def _identity(client: Any) -> str:
    identity: Any = client.execute_command("CLUSTER", "MYID")
    return identity.decode() if isinstance(identity, bytes) else str(identity)


def _set_slots(client: Any, slots: Sequence[int], state: str, identity: str) -> None:
    with client.pipeline(transaction=False) as pipe:
        for slot in slots:
            pipe.execute_command("CLUSTER", "SETSLOT", slot, state, identity)
        pipe.execute()


@contextlib.contextmanager
def running_cluster(masters: int, *options: str, kind: str = "valkey", replicas: int = 0) -> Iterator[Cluster]:
    """Run a cluster in the block, whose masters have so many replicas each."""
    with contextlib.ExitStack() as stack:
        number = masters * (1 + replicas)
        buses = [free_port() for _ in range(number)]
        nodes = [stack.enter_context(running(kind, *_OPTIONS, "--cluster-port", f"{bus}", *options)) for bus in buses]
        with contextlib.ExitStack() as while_joining:
            clients = [while_joining.enter_context(node.client()) for node in nodes]
            for index, client in enumerate(clients[:masters]):
                first, last = (REDIS_CLUSTER_HASH_SLOTS * each // masters for each in (index, index + 1))
                client.cluster("addslotsrange", first, last - 1)
            for client in clients:
                client.cluster("meet", "127.0.0.1", nodes[0].port, buses[0])
            until(lambda: all(_knows(client, number) for client in clients))
            for index, client in enumerate(clients[masters:]):
                client.execute_command("CLUSTER", "REPLICATE", _identity(clients[index % masters]))
        cluster = Cluster(nodes)
        cluster.until_ready()
        until(lambda: all(_count_replicas(node) == replicas * masters for node in nodes))
        yield cluster


def _knows(client: redis.Redis, number: int) -> bool:
    state = client.cluster("info")
    return bool(state["cluster_known_nodes"] == f"{number}" and state["cluster_slots_assigned"] == "16384")


def _count_replicas(node: Server) -> int:
    with node.client() as client:
        nodes = client.cluster("nodes")
    return sum("slave" in each["flags"] for each in nodes.values())


@contextlib.contextmanager
def replicated_cluster(kind: str) -> Iterator[Cluster]:
    """Run a cluster of three masters with a replica each."""
    with running_cluster(3, *_NODE_TIMEOUT, kind=kind, replicas=1) as cluster:
        yield cluster


@contextlib.contextmanager
def cluster_client(node: Server, **options: Any) -> Iterator[Any]:
    """A client of a node's cluster, in the block. Its own `close` leaves the connections of filters and queues open."""
    client: Any = redis.RedisCluster("127.0.0.1", node.port, **options)
    try:
        yield client
    finally:
        disconnect(client)


def begin_move(slot: int, source: Server, target: Server) -> None:
    """Begin to move a slot: its keys are still on the old node."""
    with source.client() as old, target.client() as new:
        _set_slots(new, [slot], "IMPORTING", _identity(old))
        _set_slots(old, [slot], "MIGRATING", _identity(new))


def kill(cluster: Cluster, key: str) -> None:
    """Kill the master of a key; its replica takes over."""
    cluster.kill(cluster.owner_of(key))


def reshard(cluster: Cluster, key: str) -> None:
    """Move all slots of the master of a key to another master."""
    source = cluster.owner_of(key)
    cluster.move(cluster.slots_of(source), source, cluster.other_than(source))
