"""Start URLs are leased, acknowledged and released, on each kind of server and of start key."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import redis

from scrapy_bloom.errors import WrongTypeError
from scrapy_bloom.queue.keys import QueueKeys, StartKeys
from scrapy_bloom.queue.start_urls import StartUrls
from scrapy_bloom.transport.retry import disable_client_retries
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
    """Start URLs of a lost reply are released by the next recovery, and leased again; one that is done is so once."""
    with proxying(server.port, "EVAL", "EVALSHA") as proxy, redis.Redis(port=proxy.port) as client:
        one = start.seen_by("one", disable_client_retries(client))
        one.sync()  # from now on the server knows the script, and executes it at the first attempt
        proxy.fail(Place.AFTER)
        with pytest.raises(redis.ConnectionError):
            one.lease(3)
        assert start.leased == 3
        assert one.recover() == 3
        assert start.waiting == start.in_order(URLS)
        urls = taken(one, 5)
        assert len(urls) == 5
        one.acknowledge(urls[0])
        for place in (Place.BEFORE, Place.AFTER):
            proxy.fail(place)
            with pytest.raises(redis.ConnectionError):
                one.sync()
            assert one.needs_sync
        one.sync()
        assert (start.leased, one.needs_sync) == (4, False)


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


def test_dead_letters(start: Start) -> None:
    """A buried start URL is in the list of dead letters, unchanged, and in no other."""
    one = start.seen_by("one")
    url, *_ = taken(one, 2)
    one.bury(url)
    assert [one.sync(), one.sync()] == [len(URLS) - 2] * 2
    assert start.client.lrange(start.keys.dead_letters, 0, -1) == [url.data]
    assert start.leased == 1
    assert one.release() == 1


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
