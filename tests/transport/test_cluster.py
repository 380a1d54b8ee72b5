"""Over a cluster each command of a batch has an outcome of its own, and only those not executed are sent again."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from devtools.proxy.faults import CUTS, DONE, FaultProxy, Place, proxying
from devtools.waiting import LIMIT, until
from scrapy_bloom import BloomFilter, UnavailableError
from scrapy_bloom.delivery.executor import Executor
from scrapy_bloom.queue.entries import OutboxEntry
from scrapy_bloom.queue.operations import Ending, RequestQueue
from scrapy_bloom.queue.worker import QueueWorker
from scrapy_bloom.queue.worker_state import Phase
from scrapy_bloom.transport.client import disconnect, transport_for
from scrapy_bloom.transport.commands import Command, Failure
from scrapy_bloom.transport.slots import Node
from scrapy_bloom.transport.transport import Transport
from tests.support.clusters import running_cluster
from tests.support.holder import Holder
from tests.support.scenario import tell
from tests.support.servers import Server

NODES = 3


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Server]]:
    """The nodes of a cluster."""
    with running_cluster(NODES) as nodes:
        yield nodes


@pytest.fixture
def proxies(nodes: list[Server]) -> Iterator[list[FaultProxy]]:
    """A proxy of each node, whose faults hit INCR."""
    with ExitStack() as stack:
        yield [stack.enter_context(proxying(node.port, "INCR")) for node in nodes]


@pytest.fixture
def client(nodes: list[Server], proxies: list[FaultProxy]) -> Iterator[Any]:
    """A client that reaches each node through its proxy."""
    ports = {node.port: proxy.port for node, proxy in zip(nodes, proxies, strict=True)}
    client = redis.RedisCluster(
        "127.0.0.1", nodes[0].port, socket_timeout=2, address_remap=lambda each: (each[0], ports.get(each[1], each[1]))
    )
    yield client
    disconnect(client)


@pytest.fixture
def transport(client: Any) -> Transport:
    """The transport of the client, which knows the slots."""
    transport = transport_for(client)
    transport.execute([Command("PING")])
    return transport


@pytest.fixture
def counters(key: str) -> list[str]:
    """Two keys on each node, in the nodes' order."""
    numbers = (f"{key}:{number}" for number in range(10_000))
    names: list[list[str]] = [[] for _ in range(NODES)]
    for name in numbers:
        owner = names[key_slot(name.encode()) * NODES // 16_384]
        if len(owner) < 2:
            owner.append(name)
        if all(len(each) == 2 for each in names):
            break
    return [name for each in names for name in each]


def incr(names: list[str]) -> list[Command]:
    return [Command("INCR", name) for name in names]


def counts(nodes: list[Server], names: list[str]) -> list[int]:
    """Return how often each counter was incremented, as its node says."""
    found = []
    for name in names:
        values = []
        for node in nodes:
            with node.client() as direct:
                try:
                    values.append(int(direct.get(name) or 0))
                except redis.ResponseError:  # MOVED
                    continue
        found.append(sum(values))
    return found


def test_replies_are_in_the_order_of_the_commands(transport: Transport, counters: list[str]) -> None:
    """Each command has its own reply, in the order of the commands; an error takes the place of one reply."""
    mixed = [counters[index] for index in (4, 0, 2, 5, 1, 3, 4, 0)]
    assert transport.execute(incr(mixed)) == [1, 1, 1, 1, 1, 1, 2, 2]
    wrong = [Command("INCR", counters[0]), Command("LPUSH", counters[2], "x"), Command("INCR", counters[4])]
    first, second, third = transport.attempt(wrong)
    assert (first, third) == (3, 3)
    assert isinstance(second, Failure)
    assert "WRONGTYPE" in str(second.error)
    assert transport.attempt([]) == []


@pytest.mark.parametrize("place", CUTS)
def test_a_cut_concerns_the_commands_of_its_node(
    place: Place, transport: Transport, proxies: list[FaultProxy], nodes: list[Server], counters: list[str]
) -> None:
    """Commands on other nodes have their replies; those of the node are in doubt, and none is sent twice."""
    proxies[1].fail(place)
    outcomes = transport.attempt(incr(counters))
    assert [outcomes[index] for index in (0, 1, 4, 5)] == [1, 1, 1, 1]
    assert [outcome.is_in_doubt for outcome in outcomes[2:4]] == [True, True]
    assert counts(nodes, counters) == [1, 1, int(place in DONE), 0, 1, 1]
    # The next batch is not affected: no reply is taken for that of another command.
    assert transport.execute(incr(counters[4:])) == [2, 2]
    assert transport.execute(incr(counters[2:4])) == [1 + (place in DONE), 1]


def test_all_nodes_are_written_to_before_one_is_read(
    transport: Transport, proxies: list[FaultProxy], nodes: list[Server], counters: list[str]
) -> None:
    """While a node is silent, the others execute their commands; one deadline holds for all."""
    ends: list[float] = []
    limit = Node.limit

    def noted(connection: Any, end: float) -> None:
        ends.append(end)
        limit(connection, end)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Node, "limit", staticmethod(noted))
        proxies[0].fail(Place.STALL)
        proxies[1].fail(Place.STALL)
        outcomes = transport.attempt(incr(counters))
    assert [isinstance(outcome.error, redis.TimeoutError) for outcome in outcomes[:4]] == [True] * 4
    assert outcomes[4:] == [1, 1]
    assert len(set(ends)) == 1
    assert counts(nodes, counters) == [1, 0, 1, 0, 1, 1]


def test_no_connection_is_made_after_the_deadline(
    transport: Transport, client: Any, counters: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When silent nodes have used up the time, the commands for the others are not executed, and not in doubt."""
    disconnect(client)
    begin = time.monotonic()
    times = iter([begin])
    monkeypatch.setattr(time, "monotonic", lambda: next(times, begin + 1000))
    outcomes = transport.attempt(incr(counters))
    assert [outcome.is_in_doubt for outcome in outcomes] == [False] * len(counters)
    monkeypatch.undo()
    assert transport.execute(incr(counters)) == [1] * len(counters)


def test_an_unreachable_node(transport: Transport, proxies: list[FaultProxy], client: Any, counters: list[str]) -> None:
    """If no connection can be made, the commands were not executed; the others have their replies."""
    disconnect(client)
    upstream, proxies[1].upstream = proxies[1].upstream, 1
    outcomes = transport.attempt(incr(counters))
    assert outcomes[:2] + outcomes[4:] == [1, 1, 1, 1]
    assert [outcome.is_in_doubt for outcome in outcomes[2:4]] == [False, False]
    proxies[1].upstream = upstream
    assert transport.execute(incr(counters)) == [2, 2, 1, 1, 2, 2]


def test_a_command_without_a_key(transport: Transport, proxies: list[FaultProxy], client: Any) -> None:
    """A command that any node may execute goes to another one while the first is unreachable."""
    disconnect(client)
    proxies[0].upstream = 1
    outcomes = [transport.attempt([Command("PING")])[0] for _ in range(2)]
    assert isinstance(outcomes[0], Failure)
    assert outcomes[1] == b"PONG"


@pytest.fixture
def moved(nodes: list[Server], counters: list[str]) -> Iterator[tuple[int, int]]:
    """The slot of the first counter, which the test may move to the last node; it is moved back."""
    slot = key_slot(counters[0].encode())
    yield slot, NODES - 1
    with nodes[-1].client(single_connection_client=True) as direct:
        for name in direct.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000):
            direct.execute_command("ASKING")
            direct.delete(name)
    _move(slot, nodes, 0)


def _move(slot: int, nodes: list[Server], target: int) -> None:
    """Move an empty slot, and wait until every node knows its new owner."""
    identity = _identity(nodes[target])
    for node in (nodes[target], *nodes):
        with node.client() as direct:
            direct.execute_command("CLUSTER", "SETSLOT", slot, "NODE", identity)
            if node is nodes[target]:
                # Without a newer epoch of its own, a node that has not heard of the move yet may undo it.
                direct.execute_command("CLUSTER", "BUMPEPOCH")
    for node in nodes:
        with node.client() as direct:
            until(partial(_is_owner, direct, slot, identity))


def _is_owner(client: Any, slot: int, identity: str) -> bool:
    """Return whether a node knows this one as a slot's owner."""
    ranges = client.execute_command("CLUSTER", "SLOTS")
    return any(first <= slot <= last and owner[2].decode() == identity for first, last, owner, *_ in ranges)


def test_a_moved_slot(transport: Transport, nodes: list[Server], counters: list[str], moved: tuple[int, int]) -> None:
    """A command that is redirected is executed once, in the same call, and later ones go to the new node at once."""
    slot, target = moved
    transport.execute([Command("GET", name) for name in counters])
    before = transport.connections
    _move(slot, nodes, target)
    assert transport.execute(incr(counters)) == [1] * len(counters)
    # The new owner may lack writes: it counts as a new connection.
    assert transport.connections > before
    assert counts(nodes, counters) == [1] * len(counters)
    assert transport.execute(incr(counters)) == [2] * len(counters)


def test_a_slot_on_the_move(
    transport: Transport, nodes: list[Server], counters: list[str], moved: tuple[int, int]
) -> None:
    """Keys that are still at the old node, and keys that are already at the new one, are both found."""
    slot, target = moved
    tag = "{" + counters[0] + "}"
    stays, goes = f"{tag}:stays", f"{tag}:goes"
    assert transport.execute(incr([stays])) == [1]
    with nodes[target].client() as new, nodes[0].client() as old:
        new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", _identity(nodes[0]))
        old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", _identity(nodes[target]))
        batch = [Command("INCR", stays), Command("INCR", goes), Command("INCR", counters[2]), Command("INCR", goes)]
        assert transport.execute(batch) == [2, 1, 1, 2]
        assert old.get(stays) == b"2"
        assert old.execute_command("CLUSTER", "COUNTKEYSINSLOT", slot) == 1
        # Both commands on a key arrive at the new node in their order.
        assert transport.execute(batch) == [3, 3, 2, 4]


def test_a_slot_that_no_node_serves(transport: Transport, nodes: list[Server], counters: list[str]) -> None:
    """Its commands are not executed and not in doubt; once a node serves it, they are executed."""
    slot = key_slot(counters[0].encode())
    for node in nodes:
        with node.client() as direct:
            direct.config_set("cluster-require-full-coverage", "no")
            direct.execute_command("CLUSTER", "DELSLOTS", slot)
    outcomes = transport.attempt(incr(counters))
    assert isinstance(outcomes[0], Failure)
    assert not outcomes[0].is_in_doubt
    assert outcomes[1:] == [1] * (len(counters) - 1)
    (known,) = transport.attempt(incr(counters[:1]))
    assert str(known.error) == f"no node serves the hash slot of the key {counters[0]!r}"
    with nodes[0].client() as direct:
        direct.execute_command("CLUSTER", "ADDSLOTS", slot)
        until(lambda: direct.cluster("info")["cluster_slots_assigned"] == "16384")
    assert transport.execute(incr(counters[:1])) == [1]


def test_a_node_that_has_left_the_cluster() -> None:
    """A node that answers but knows no slots is passed over, although it is the first one of the client."""
    with running_cluster(NODES) as nodes, ExitStack() as stack:
        left, *others = (stack.enter_context(node.client()) for node in nodes)
        client = redis.RedisCluster("127.0.0.1", nodes[0].port, socket_timeout=2)
        stack.callback(disconnect, client)
        transport = transport_for(client)
        name = next(each for each in map(str, range(999)) if key_slot(each.encode()) < 16_384 // NODES)
        assert transport.execute(incr([name])) == [1]
        number = left.cluster("myid")
        left.flushall()
        left.cluster("reset")
        for other in others:
            other.cluster("forget", number)
        others[0].cluster("addslotsrange", 0, 16_384 // NODES - 1)
        until(lambda: all(other.cluster("info")["cluster_state"] == "ok" for other in others))
        until(lambda: transport.attempt(incr([name])) == [1])


def test_an_interrupt_leaves_no_reply_unread(
    transport: Transport, proxies: list[FaultProxy], counters: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C between two nodes no late reply is taken for that of another command."""
    proxies[1].late_seconds = LIMIT
    proxies[1].fail(Place.LATE)
    limit, calls = Node.limit, iter(range(100))

    def interrupted(connection: Any, end: float) -> None:
        if next(calls) == NODES + 1:
            raise KeyboardInterrupt
        limit(connection, end)

    monkeypatch.setattr(Node, "limit", staticmethod(interrupted))
    with pytest.raises(KeyboardInterrupt):
        transport.execute(incr(counters))
    monkeypatch.undo()
    proxies[1].late.set()
    assert transport.execute([Command("SET", counters[2], 70), Command("GET", counters[2])])[1] == b"70"
    assert transport.execute(incr(counters))[2] == 71


def test_a_filter_is_sure_of_other_nodes(client: Any, proxies: list[FaultProxy], key: str) -> None:
    """A filter over several nodes doubts only the items of the node that lost a reply."""
    bloom = BloomFilter(client, key, capacity=200_000_000, error_rate=1e-12, cache_size=0)
    bloom.add("first")
    items = [f"item {number}" for number in range(60)]
    proxies[1]._names = frozenset({b"BITFIELD"})
    proxies[1].fail(Place.AFTER)
    assert bloom.add_many(items) == [True] * 60
    assert bloom.counters.ambiguous in range(1, 2)
    assert bloom.add_many(items) == [False] * 60
    bloom.clear()


@pytest.fixture
def in_use(client: Any, key: str) -> Iterator[tuple[BloomFilter, list[str], list[str], list[str]]]:
    """A filter over several nodes that retries nothing; known and new items, and the items of the second node."""
    bloom = BloomFilter(client, key, capacity=200_000_000, error_rate=1e-12, cache_size=0, retry_timeout=0)
    known, new = [f"known {number}" for number in range(60)], [f"new {number}" for number in range(40)]
    bloom.add_many(known)
    layer = bloom._stack.newest
    of_second = [
        item for item in (*known, *new) if key_slot(layer.locate(item.encode())[0].encode()) * NODES // 16_384 == 1
    ]
    assert {*known} & {*of_second}
    assert {*new} & {*of_second} not in (set(), {*new})
    yield bloom, known, new, of_second
    bloom.clear()


def test_a_failed_call_is_sure_of_other_nodes(
    nodes: list[Server],
    in_use: tuple[BloomFilter, list[str], list[str], list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If a node is silent, known items are ambiguous on this node alone, and new ones on each node."""
    bloom, known, new, of_second = in_use
    with nodes[1].silent(), pytest.raises(UnavailableError):
        bloom.add_many([*known, *new])
    in_doubt = {*new, *of_second}
    tell(capsys, f"of {len(known)} known items in a batch of 100, {len(in_doubt & {*known})} are in doubt")
    assert {item for item in (*known, *new) if bloom.is_ambiguous(item)} == in_doubt
    assert bloom.add_many([*known, *new]) == [item in in_doubt for item in (*known, *new)]


def test_a_worker_is_sure_of_other_nodes(
    nodes: list[Server], in_use: tuple[BloomFilter, list[str], list[str], list[str]], client: Any, key: str
) -> None:
    """A queue worker whose check fails makes requests unsure if their items are in doubt, and drops the known ones."""
    bloom, known, new, of_second = in_use
    worker = QueueWorker("one", "60", 100)
    executor = Executor(worker, RequestQueue(client, f"{key}:requests"), Holder(bloom))
    for item in (*known, *new):
        worker.offer(OutboxEntry(item.encode(), 0, item.encode()))
    while not worker.state.to_check:
        executor.execute_next()
    with nodes[1].silent(), pytest.raises(UnavailableError):
        executor.execute_next()
    in_doubt = {*new, *of_second}
    assert {entry.member.decode() for entry in worker.undelivered() if entry.is_unsure} == in_doubt
    repeats: set[str] = set()
    while worker.has_news:
        _, found = executor.execute_next()
        repeats |= {entry.member.decode() for entry in found}
    assert repeats == {*known} - in_doubt
    worker.leave(Ending.STOPPED)
    while worker.phase is not Phase.GONE:
        executor.execute_next()


def _identity(node: Server) -> str:
    with node.client() as direct:
        return str(direct.execute_command("CLUSTER", "MYID").decode())
