"""Real clusters, whose nodes are processes of a test."""

import contextlib
from collections.abc import Iterator

from devtools.waiting import until
from tests.support.servers import Server, free_port, running

_SLOTS = 16_384


@contextlib.contextmanager
def running_cluster(number: int, *options: str) -> Iterator[list[Server]]:
    """Run a cluster of nodes with equal shares of the slots, in their order."""
    with contextlib.ExitStack() as stack:
        buses = [free_port() for _ in range(number)]
        own = [("--cluster-enabled", "yes", "--cluster-port", str(bus)) for bus in buses]
        nodes = [stack.enter_context(running("valkey", *each, *options)) for each in own]
        clients = [stack.enter_context(node.client()) for node in nodes]
        for index, client in enumerate(clients):
            client.cluster("addslotsrange", _SLOTS * index // number, _SLOTS * (index + 1) // number - 1)
            client.cluster("meet", "127.0.0.1", nodes[0].port, buses[0])
        until(lambda: all(client.cluster("info")["cluster_state"] == "ok" for client in clients))
        until(lambda: all(client.cluster("info")["cluster_known_nodes"] == str(number) for client in clients))
        yield nodes
