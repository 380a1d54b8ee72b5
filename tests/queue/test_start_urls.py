"""Start URLs are leased, acknowledged and released, on each kind of server and of start key."""

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest
import redis

from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.queue.keys import QueueKeys, StartKeys
from scrapy_bloom.queue.start_urls import StartUrls, inspect
from scrapy_bloom.transport.retry import disable_client_retries
from tests.support.clusters import cluster_client, running_cluster
from tests.support.faults import Place, proxying
from tests.support.servers import Server, running

URLS = [b"a", b"b \xff", b"", b"d", b"e"]
KINDS = ("list", "set", "zset")


class Start:
    """A start key, its workers, and its contents in the order of leasing."""

    def __init__(self, client: Any, key: str, kind: str) -> None:
        self.client = client
        self.keys = StartKeys(f"{key}:start")
        self.kind = kind
        self._queue = f"{key}:queue"

    def fill(self, urls: Iterable[bytes]) -> None:
        """Append URLs to the start key."""
        for place, url in enumerate(urls):
            if self.kind == "list":
                self.client.rpush(self.keys.start, url)
            elif self.kind == "set":
                self.client.sadd(self.keys.start, url)
            else:
                self.client.zadd(self.keys.start, {url: 0.1 - place})

    def register(self, *workers: str, queue: str | None = None) -> None:
        """Register these workers, and no others."""
        key = QueueKeys(queue or self._queue).crawl
        self.client.delete(key)
        self.client.hset(key, mapping={"waiting": "0", **{f"@{worker}": "1 0" for worker in workers}})

    def seen_by(self, worker: str, client: Any = None, queue: str | None = None) -> StartUrls:
        """The start URLs of a worker."""
        return StartUrls(client or self.client, self.keys.start, self.kind, worker, queue or self._queue)

    @property
    def waiting(self) -> list[bytes]:
        """All waiting start URLs; those of a set are unordered."""
        if self.kind == "list":
            found = self.client.lrange(self.keys.start, 0, -1)
        elif self.kind == "set":
            found = self.client.smembers(self.keys.start)
        else:
            found = self.client.zrevrange(self.keys.start, 0, -1)
        return self.in_order(found)

    @property
    def leased(self) -> int:
        """The number of leased start URLs."""
        return int(self.client.hlen(self.keys.leased))

    def in_order(self, urls: Iterable[bytes]) -> list[bytes]:
        """Return URLs in a comparable form."""
        return sorted(urls) if self.kind == "set" else list(urls)


@pytest.fixture(params=KINDS)
def start(request: pytest.FixtureRequest, client: redis.Redis, key: str) -> Start:
    """Each kind of start key, with URLs and two workers."""
    start = Start(client, key, request.param)
    start.fill(URLS)
    start.register("one", "other")
    return start


def taken(urls: StartUrls, want: int) -> list[Any]:
    """Lease start URLs and return them."""
    urls.lease(want)
    found = list(urls.ready)
    urls.ready.clear()
    return found


def test_leased_and_acknowledged(start: Start) -> None:
    """A start URL is in Redis until it is acknowledged, and is taken in the order of scrapy-redis."""
    one = start.seen_by("one")
    first = taken(one, 2)
    assert start.leased == 2
    rest = taken(one, 10)
    assert start.in_order(url.data for url in (*first, *rest)) == start.in_order(URLS)
    assert start.waiting == []
    for url in (*first, *rest[1:]):
        one.acknowledge(url)
    one.sync()
    assert not one.needs_sync
    assert start.leased == 1
    assert one.release() == 1
    assert start.waiting == [rest[0].data]


def test_given_back_in_order(start: Start) -> None:
    """Released start URLs return to their places, with their scores."""
    before = start.client.dump(start.keys.start) if start.kind == "zset" else None
    one = start.seen_by("one")
    one.lease(2)
    one.lease(2)
    # Ready start URLs count as waiting.
    assert one.sync() == len(URLS)
    assert one.release() == 4
    assert start.waiting == start.in_order(URLS)
    assert before is None or start.client.dump(start.keys.start) == before
    assert not one.ready
    assert start.leased == 0


def test_lost_reply(start: Start, server: Server) -> None:
    """Start URLs of a lost reply are released by the next recovery, and leased again."""
    with proxying(server.port, "EVAL", "EVALSHA") as proxy, redis.Redis(port=proxy.port) as client:
        one = start.seen_by("one", disable_client_retries(client))
        one.sync()  # from now on the server knows the script, and executes it at the first attempt
        proxy.fail(Place.AFTER)
        with pytest.raises(redis.ConnectionError):
            one.lease(3)
        assert start.leased == 3
        assert one.recover() == 3
        assert start.waiting == start.in_order(URLS)
        assert len(taken(one, 5)) == 5


def test_late_lease(start: Start) -> None:
    """A lease that is executed late is released, too."""
    one = start.seen_by("one")
    sent: list[Any] = []

    class Slow:
        """A link that delays a command."""

        def execute_command(self, *command: Any, **options: Any) -> None:
            sent.append((command, options))
            raise redis.ConnectionError

    one.sync()
    client, one._client = one._client, Slow()
    with pytest.raises(redis.ConnectionError):
        one.lease(2)
    one._client = client
    first = taken(one, 2)
    ((command, options),) = sent
    client.execute_command(*command, **options)
    assert start.leased == 4
    assert one.recover() == 2
    assert {field.decode() for field in start.client.hkeys(start.keys.leased)} == {url.field for url in first}
    assert len(start.waiting) == 3


def test_orphans(start: Start) -> None:
    """Start URLs of other unregistered workers are released; those of registered ones stay leased."""
    one, other, dead = (start.seen_by(name) for name in ("one", "other", "dead"))
    lost = taken(dead, 2)
    one.lease(1)
    other.lease(1)
    assert one.recover() == 2
    assert one.others_hold
    assert {url.data for url in lost} < set(start.waiting)
    assert (one.recover(), other.recover(), start.leased) == (0, 0, 2)
    start.register("one")
    assert one.recover() == 1
    assert not one.others_hold
    # A worker presumed dead does not release the start URLs that it still holds.
    start.register("other")
    assert one.recover() == 0
    assert start.leased == 1


def test_workers_of_another_queue(start: Start) -> None:
    """Two queues may share a start key: each worker is looked up in its own queue."""
    queue = f"{start.keys.start}:another"
    start.register("one", queue=queue)
    foreign = start.seen_by("one", queue=queue)
    foreign.lease(2)
    one = start.seen_by("one")
    assert one.recover() == 0
    assert one.others_hold
    start.register(queue=queue)
    assert one.recover() == 2


class Interrupted:
    """A client: after its first HKEYS, or before its first command of another name, something else happens."""

    def __init__(self, client: Any, command: str, happens: Callable[[], object]) -> None:
        self._client = client
        self._at = {command: happens}

    def execute_command(self, name: str, *rest: Any, **options: Any) -> Any:
        happens = self._at.pop(name, lambda: None)
        if name != "HKEYS":
            happens()
        reply = self._client.execute_command(name, *rest, **options)
        if name == "HKEYS":
            happens()
        return reply


def test_both_give_back(start: Start) -> None:
    """Two workers that find the same orphans at once release them once."""
    start.seen_by("dead").lease(3)
    one = start.seen_by("one")
    found: list[int] = []
    other = start.seen_by("other", Interrupted(start.client, "EVALSHA", lambda: found.append(one.recover())))
    assert other.recover() == 0
    assert found == [3]
    assert start.waiting == start.in_order(URLS)


def test_registered_between(start: Start) -> None:
    """A worker that registers and leases during a recovery is not presumed dead."""
    late = start.seen_by("late")
    start.seen_by("other").lease(1)

    def begin() -> None:
        start.register("one", "other", "late")
        late.lease(1)

    assert start.seen_by("one", Interrupted(start.client, "HKEYS", begin)).recover() == 0
    assert start.leased == 2


def test_inspected(start: Start) -> None:
    """The state of a start key; a worker that leaves meanwhile has abandoned nothing."""
    one, dead = start.seen_by("one"), start.seen_by("dead")
    one.lease(2)
    dead.lease(1)
    one.bury(one.ready.popleft())
    one.sync()
    keys = start.keys
    assert inspect(start.client, keys.start) == (keys.start, 2, 1, 1, keys.dead_letters)

    def leave() -> None:
        start.register("other")
        assert one.release() == 1

    class Late(Interrupted):
        def llen(self, name: str) -> int:
            return int(start.client.llen(name))

    assert inspect(Late(start.client, "HKEYS", leave), keys.start).abandoned == 1
    assert inspect(start.client, f"{keys.start}:other") == (
        f"{keys.start}:other",
        0,
        0,
        0,
        f"{{{keys.start}:other}}:dead-letter",
    )


def test_dead_letters(start: Start) -> None:
    """A buried start URL is in the list of dead letters, unchanged, and in no other."""
    one = start.seen_by("one")
    url, *_ = taken(one, 2)
    one.bury(url)
    assert [one.sync(), one.sync()] == [len(URLS) - 2] * 2
    assert start.client.lrange(start.keys.dead_letters, 0, -1) == [url.data]
    assert start.leased == 1
    assert one.release() == 1


def test_newer_score_stays(client: redis.Redis, key: str) -> None:
    """A start URL that was added again meanwhile keeps its new score."""
    start = Start(client, key, "zset")
    start.fill([b"a"])
    one = start.seen_by("one")
    one.lease(1)
    start.client.zadd(start.keys.start, {b"a": 7})
    one.release()
    assert start.client.zrange(start.keys.start, 0, -1, withscores=True) in ([(b"a", 7.0)], [[b"a", 7.0]])


def test_other_type(start: Start) -> None:
    """A key of another type is refused by its type; no lease is lost, and no start URL is fetched twice."""
    one = start.seen_by("one")
    done, dead, _ = taken(one, 3)
    start.client.delete(start.keys.start)
    start.client.set(start.keys.start, "x")
    with pytest.raises(WrongTypeError):
        one.lease(1)
    assert start.leased == 3
    one.acknowledge(done)
    one.bury(dead)
    for work in (one.sync, one.release):
        with pytest.raises(WrongTypeError, match=f"holds a string, but start URLs are read from a {start.kind}"):
            work()
    assert start.leased == 1
    assert start.client.lrange(start.keys.dead_letters, 0, -1) == [dead.data]


def test_another_type_than_before(client: redis.Redis, key: str) -> None:
    """Start URLs that were leased from a list return to a sorted set, if the settings have changed."""
    start = Start(client, key, "list")
    start.fill([b"a b"])
    start.seen_by("dead").lease(1)
    start.kind = "zset"
    assert start.seen_by("one").recover() == 1
    assert client.zscore(start.keys.start, b"a b") == 0


@pytest.mark.parametrize("kind", KINDS)
def test_full_server(kind: str, key: str) -> None:
    """On a full server, start URLs can be leased and released."""
    with running("valkey") as server, server.client() as client:
        start = Start(client, key, kind)
        start.fill(URLS)
        client.config_set("maxmemory", 1)
        one = start.seen_by("one")
        url, *_ = taken(one, 3)
        one.bury(url)
        one.sync()
        assert one.release() == 2
        assert len(start.waiting) == 4
        assert client.lrange(start.keys.dead_letters, 0, -1) == [url.data]


def test_many(start: Start) -> None:
    """Many start URLs keep their order when released, with any number of digits."""
    urls = [b"%d" % number for number in range(1234)]
    start.client.delete(start.keys.start)
    start.fill(urls)
    dead = start.seen_by("dead")
    dead.lease(1000)
    dead.lease(1000)
    assert start.seen_by("one").recover() == 1234
    assert start.waiting == start.in_order(urls)
    assert start.leased == 0


def test_cluster(key: str) -> None:
    """All keys are in one slot of a cluster, also if the start key has braces."""
    with running_cluster(1) as (server,), cluster_client(server) as client:
        for kind, name in product(KINDS, (key, f"{{{key}}}:news")):
            start = Start(client, f"{name}:{kind}", kind)
            start.fill(URLS)
            start.register("one")
            start.seen_by("dead").lease(1)
            one = start.seen_by("one")
            assert one.recover() == 1
            url, other, *_ = taken(one, 4)
            one.bury(url)
            one.acknowledge(other)
            one.sync()
            assert one.release() == 2
            assert (one.sync(), start.leased) == (3, 0)
