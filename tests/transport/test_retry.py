"""A filter whose server fails: no item is lost, and what is wrong is said once, in time and without a password.

The faults are real: a proxy that cuts connections at known places, servers that are killed, loading, demoted or full.
"""

import logging
import random
import socket
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.retry import Retry
from scrapy import Request
from scrapy.settings import Settings
from scrapy_redis.connection import get_redis_from_settings
from scrapy_redis.dupefilter import RFPDupeFilter

from devtools.waiting import LIMIT, until
from scrapy_bloom import (
    BloomError,
    BloomFilter,
    BloomRFPDupeFilter,
    BloomScheduler,
    ConfigError,
    RefusedError,
    UnavailableError,
)
from tests.support.fault_proxy import CUTS, DONE, Place, Proxy, at_random, proxying
from tests.support.scenario import tell
from tests.support.servers import KINDS, Server, free_port, running

PASSWORD = "pa55-w0rd-of-the-test"  # noqa: S105  # of servers that live as long as a test
# How long clients wait for a reply that does not come. It may be too short for a busy machine: then it is a stall more.
STALL_TIMEOUT = 0.3

# 1,000 faults over 10,000 items, 1,000 for each place one by one and as many in batches. How many faults, and how many
# commands they are apart on average: so few that all have come when every item was sent once.
ITEMS = 1000
BATCH = 20
WORKERS = 5
ONE_BY_ONE = dict.fromkeys(CUTS, (185, 6)) | {Place.STALL: (30, 30)}
IN_BATCHES = dict.fromkeys(CUTS, (50, 18)) | {Place.STALL: (30, 30)}

T = TypeVar("T")
every_place = pytest.mark.parametrize("place", ONE_BY_ONE)


@pytest.fixture
def proxy(valkey: Server) -> Iterator[Proxy]:
    """A proxy of a server, aimed at what filters and scrapy-redis add by."""
    with proxying(valkey.port, "BITFIELD", "SADD") as proxy:
        yield proxy


@contextmanager
def filter_at(port: int, key: str, **options: Any) -> Iterator[BloomFilter]:
    """A filter with a client of its own."""
    with redis.Redis("127.0.0.1", port, socket_timeout=options.pop("socket_timeout", LIMIT)) as client:
        yield BloomFilter(client, key, **{"capacity": 20_000, **options})


@pytest.fixture
def bloom(proxy: Proxy, key: str) -> Iterator[BloomFilter]:
    """A filter behind the proxy."""
    with filter_at(proxy.port, key) as bloom:
        yield bloom


def said(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    """The warnings that have a part."""
    return [record.getMessage() for record in caplog.records if part in record.getMessage()]


# Replies that are lost: 1,000 random faults, that several workers meet.


def by_url(proxy: Proxy) -> dict[str, object]:
    """The settings of a client by REDIS_URL."""
    return {"REDIS_URL": proxy.url}


def by_host(proxy: Proxy) -> dict[str, object]:
    """The settings of a client by REDIS_HOST."""
    return {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": proxy.port}


def by_params(proxy: Proxy, **params: object) -> dict[str, object]:
    """The settings of a client by REDIS_PARAMS alone."""
    return {"REDIS_PARAMS": {"host": "127.0.0.1", "port": proxy.port, **params}}


def lost_requests(stock: RFPDupeFilter, items: list[str]) -> int:
    """How many requests, all of them different, are never scheduled: called seen, or ended by an exception."""
    lost = 0
    for item in items:
        try:
            lost += stock.request_seen(Request(f"http://shop.test/{item}"))
        except redis.RedisError:
            lost += 1
    return lost


def lost_in_batches(stock: RFPDupeFilter, items: list[str]) -> int:
    """The same for whoever sends its command in batches."""
    lost = 0
    for batch in batches_of(items):
        pipeline = stock.server.pipeline(transaction=False)
        for item in batch:
            pipeline.sadd(stock.key, item)
        try:
            lost += pipeline.execute().count(0)
        except redis.RedisError:
            lost += len(batch)
    return lost


def batches_of(items: list[str]) -> list[list[str]]:
    """The same items, some at a time."""
    return [items[first : first + BATCH] for first in range(0, len(items), BATCH)]


class Run:
    """Workers that add different items at the same time while faults come; what they lose and find ambiguous."""

    def __init__(self, proxy: Proxy, key: str, place: Place, faults: int, apart: int) -> None:
        self._proxy, self._key, self._place = proxy, key, place
        self._faults, self._apart = faults, apart
        self._parts = [[f"{place} {number}" for number in range(ITEMS)][worker::WORKERS] for worker in range(WORKERS)]
        self._timeout = STALL_TIMEOUT if place is Place.STALL else LIMIT

    def lost_here(self, add: Callable[[BloomFilter, list[str]], int]) -> tuple[int, int]:
        """What a filter loses, and what it calls ambiguous, which must be what the server has carried out twice."""
        with ExitStack() as stack:
            each = (filter_at(self._proxy.port, self._key, socket_timeout=self._timeout) for _ in range(WORKERS))
            blooms = [stack.enter_context(bloom) for bloom in each]
            lost = self._lost(add, blooms)
            assert self._proxy.faults == self._faults
            ambiguous = sum(bloom.counters.ambiguous for bloom in blooms)
            assert ambiguous == self._proxy.resent
            assert not any(any(blooms[0].add_many(items)) for items in self._parts)
        return lost, ambiguous

    def lost_by_stock(self, settings: dict[str, object], add: Callable[[RFPDupeFilter, list[str]], int]) -> int:
        """What scrapy-redis's filter loses, with clients as it makes them, but for their socket timeout of 30 s."""
        settings = {**settings, "REDIS_PARAMS": {"socket_timeout": self._timeout}}
        key = f"{self._key}:{','.join(settings)}"
        clients = [get_redis_from_settings(Settings(settings)) for _ in range(WORKERS)]
        lost = self._lost(add, [RFPDupeFilter(client, key) for client in clients])
        for client in clients:
            client.close()
        return lost

    def _lost(self, add: Callable[[T, list[str]], int], workers: list[T]) -> int:
        self._proxy.plan = at_random(random.Random(1), [self._place], self._faults, self._apart)
        with ThreadPoolExecutor(WORKERS) as threads:
            return sum(threads.map(add, workers, self._parts))


@every_place
def test_one_by_one(proxy: Proxy, key: str, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Every item is new when it is added, wherever its connection ends; what was carried out twice is ambiguous.

    The same faults make scrapy-redis take requests for seen that it never scheduled.
    """
    run = Run(proxy, key, place, *ONE_BY_ONE[place])
    lost, ambiguous = run.lost_here(lambda bloom, items: [bloom.add(item) for item in items].count(False))
    stock = [run.lost_by_stock(connect(proxy), lost_requests) for connect in (by_url, by_host)]
    tell(
        capsys,
        f"{ONE_BY_ONE[place][0]} x {place} in {ITEMS:,} additions: {lost} lost, {ambiguous} ambiguous; "
        f"scrapy-redis: {stock[0]} lost with REDIS_URL, {stock[1]} with REDIS_HOST",
    )
    assert lost == 0
    assert (ambiguous > 0) == (place in DONE)
    assert place not in DONE or min(stock) > 0


@every_place
def test_in_batches(proxy: Proxy, key: str, place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Every item of a batch is new, wherever its connection ends; what was carried out twice is ambiguous.

    The same faults make a client that sends scrapy-redis's SADD in batches lose items.
    """
    run = Run(proxy, key, place, *IN_BATCHES[place])
    lost, ambiguous = run.lost_here(
        lambda bloom, items: sum(bloom.add_many(batch).count(False) for batch in batches_of(items))
    )
    stock = run.lost_by_stock(by_url(proxy), lost_in_batches)
    tell(
        capsys,
        f"{IN_BATCHES[place][0]} x {place} in {ITEMS:,} additions by {BATCH}: {lost} lost, {ambiguous} ambiguous; "
        f"SADD in batches: {stock} lost",
    )
    assert lost == 0
    assert ambiguous > 0
    assert stock > 0


# Replies that are lost: one at a time, where it matters.


def test_ambiguous_item_is_new_once(proxy: Proxy, bloom: BloomFilter) -> None:
    """An item whose reply was lost is new, as often as it is lost, and seen when it is added again."""
    proxy.fail(Place.AFTER, Place.REPLY, Place.AFTER)
    assert bloom.add("a")
    assert not bloom.add("a")
    assert bloom.counters.ambiguous == 1
    assert bloom.counters.added == 1


def test_known_item_is_ambiguous_too(proxy: Proxy, bloom: BloomFilter, valkey: Server, key: str) -> None:
    """An item that another worker has added is new here too if the reply was lost: nobody can tell; it is counted."""
    with filter_at(valkey.port, key) as other:
        assert other.add("a")
    proxy.fail(Place.AFTER)
    assert bloom.add("a")
    assert bloom.counters.ambiguous == 1


@pytest.mark.parametrize("place", [Place.BEFORE, Place.REQUEST])
def test_known_item_is_seen_by_the_next(
    place: Place, proxy: Proxy, bloom: BloomFilter, valkey: Server, key: str
) -> None:
    """What is ambiguous is one addition, not those after it on the same filter."""
    with filter_at(valkey.port, key) as other:
        other.add_many(["a", "b"])
    proxy.fail(place)
    bloom.add("a")
    assert not bloom.add("b")


def test_item_of_an_addition_that_failed(proxy: Proxy, key: str) -> None:
    """Whoever adds an item again after UnavailableError is told that it is new: nobody else was."""
    with filter_at(proxy.port, key, retry_timeout=0) as bloom:
        proxy.fail(Place.AFTER, Place.AFTER)
        with pytest.raises(UnavailableError):
            bloom.add("a")
        with pytest.raises(UnavailableError):
            bloom.add_many(["b", "c"])
        assert bloom.add("a")
        assert bloom.add_many(["b", "c"]) == [True, True]
        assert not bloom.add("a")


def test_two_workers_while_the_filter_grows(valkey: Server, key: str) -> None:
    """Two workers meet the same items, one over a bad line, while layers are sealed and made: one of them gets each."""
    options = {"capacity": 100, "error_rate": 1e-4, "cache_size": 0}
    source = random.Random(3)
    items = [f"item {number}" for number in range(1200)]
    with proxying(valkey.port) as proxy, ExitStack() as stack:
        proxy.plan = at_random(source, CUTS, 60, 60)
        bad = stack.enter_context(filter_at(proxy.port, key, **options))
        good = stack.enter_context(filter_at(valkey.port, key, **options))
        left = list(items)
        unclaimed: set[str] = set()
        while left:
            batch = [left.pop() for _ in range(min(len(left), source.randrange(1, 12)))]
            new: set[str] = set()
            for worker in source.sample([bad, good], 2):
                answers = worker.add_many(batch) if source.random() < 0.5 else map(worker.add, batch)
                new.update(item for item, is_new in zip(batch, answers, strict=True) if is_new)
            unclaimed.update(set(batch) - new)
        assert proxy.faults == 60
        assert bad.info().layers >= 4
        # What the filter takes for seen by its error rate, and no more.
        assert len(unclaimed) <= 2
        assert all(good.contains_many(items))


def test_late_replies(proxy: Proxy, bloom: BloomFilter) -> None:
    """A reply that is merely late is a reply: nothing is sent again, and nothing ambiguous."""
    proxy.fail(Place.LATE, Place.LATE, Place.LATE)
    assert bloom.add("a")
    assert bloom.add_many(["b", "c"]) == [True, True]
    assert proxy.faults == 3
    assert proxy.resent == bloom.counters.ambiguous == 0


def test_reading_again_is_no_doubt(proxy: Proxy, bloom: BloomFilter) -> None:
    """A look that adds nothing answers right whatever is lost on the way."""
    bloom.add("a")
    proxy.fail(Place.AFTER, Place.REPLY)
    assert "b" not in bloom
    assert bloom.contains_many(["a", "b", "c"]) == [True, False, False]
    assert bloom.add("b")
    assert bloom.counters.ambiguous == 0


# Every way to a client.


def factory(**kwargs: Any) -> redis.Redis:
    """A redis_cls that is no class, as Sentinel needs one."""
    return redis.Redis(**kwargs)


class OwnRedis(redis.Redis):
    """A redis_cls of the user's own."""


WAYS: dict[str, Callable[[Proxy], dict[str, object]]] = {
    "REDIS_URL": by_url,
    "REDIS_HOST": by_host,
    "REDIS_PARAMS": by_params,
    "a retry of the user's": lambda proxy: by_params(
        proxy, retry=Retry(ExponentialBackoff(), 5), retry_on_error=[redis.ConnectionError, redis.TimeoutError]
    ),
    "a single connection": lambda proxy: by_params(proxy, single_connection_client=True),
    "class": lambda proxy: by_params(proxy, redis_cls=OwnRedis),
    "class and URL": lambda proxy: {"REDIS_URL": proxy.url, "REDIS_PARAMS": {"redis_cls": OwnRedis}},
    "path": lambda proxy: by_params(proxy, redis_cls=f"{__name__}.{OwnRedis.__qualname__}"),
    "factory": lambda proxy: by_params(proxy, redis_cls=factory),
    "path of a factory": lambda proxy: by_params(proxy, redis_cls=f"{__name__}.{factory.__qualname__}"),
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def assert_resent_by_us_alone(proxy: Proxy, dupefilter: BloomRFPDupeFilter) -> None:
    """A command whose reply is cut once comes twice, and one whose reply is never cut, once."""
    proxy.done.clear()
    proxy.fail(Place.AFTER)
    request = Request("http://shop.test/1")
    assert not dupefilter.request_seen(request)
    assert sorted(proxy.done.values()) == [2]
    assert dupefilter.filter.counters.ambiguous == 1
    assert dupefilter.request_seen(request)
    # As often as it is cut: redis-py has none of these attempts.
    proxy.done.clear()
    proxy.fail(Place.REPLY, Place.AFTER, Place.REPLY)
    assert not dupefilter.request_seen(Request("http://shop.test/2"))
    assert sorted(proxy.done.values()) == [4]
    # In a batch it is the cut one and those before it.
    proxy.done.clear()
    proxy.plan = iter([None, Place.AFTER])
    assert dupefilter.filter.add_many(["a", "b", "c"]) == [True, True, True]
    assert sorted(proxy.done.values()) == [1, 2, 2]
    assert dupefilter.filter.counters.ambiguous == 4


@every_way
def test_hidden_resending_is_off(proxy: Proxy, key: str, way: Callable[[Proxy], dict[str, object]]) -> None:
    """However the client is configured, a command goes out again only where the filter knows of it."""
    settings = {"SCHEDULER_DUPEFILTER_KEY": key, "BLOOMFILTER_CAPACITY": 1000, **way(proxy)}
    assert_resent_by_us_alone(proxy, BloomRFPDupeFilter.from_settings(Settings(settings)))


@pytest.fixture
def cluster() -> Iterator[Proxy]:
    """A proxy of a cluster of one node, which sends its clients to the proxy."""
    options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    with running("valkey", *options) as server, proxying(server.port, "BITFIELD") as proxy:
        with server.client() as client:
            client.config_set("cluster-announce-port", proxy.port)
            client.cluster("addslotsrange", 0, 16383)
            until(lambda: client.cluster("info")["cluster_state"] == "ok")
        yield proxy


def test_hidden_resending_is_off_in_a_cluster(cluster: Proxy, key: str) -> None:
    """A client of a cluster has its own ways to send a command again; they are off too."""
    settings = {"REDIS_URL": cluster.url, "REDIS_PARAMS": {"redis_cls": redis.RedisCluster}}
    common = {"SCHEDULER_DUPEFILTER_KEY": key, "BLOOMFILTER_CAPACITY": 1000}
    assert_resent_by_us_alone(cluster, BloomRFPDupeFilter.from_settings(Settings({**settings, **common})))


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[tuple[Server, str]]:
    """A server, and the URL of its TLS port."""
    certificate, private = (str(tmp_path / name) for name in ("certificate.pem", "key.pem"))
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-out", certificate, "-keyout", private]
    subprocess.run([*command, *subject], check=True, capture_output=True)
    port = str(free_port())
    options = (
        "--tls-port",
        port,
        "--tls-cert-file",
        certificate,
        "--tls-key-file",
        private,
        "--tls-auth-clients",
        "no",
    )
    with running("redis", *options) as server:
        yield server, f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}"


def test_tls_connection_cut(encrypted: tuple[Server, str], key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A connection by TLS that is cut while a reply is waited for is like any other."""
    server, url = encrypted
    settings = {"REDIS_URL": url, "SCHEDULER_DUPEFILTER_KEY": key, "BLOOMFILTER_CAPACITY": 1000}
    bloom = BloomRFPDupeFilter.from_settings(Settings(settings)).filter
    with server.client() as admin, ThreadPoolExecutor(1) as thread:
        for work, answer in ((lambda: bloom.add("a"), True), (lambda: bloom.add_many(["b", "c"]), [True, True])):
            admin.execute_command("CLIENT", "PAUSE", int(LIMIT * 1000), "WRITE")
            added = thread.submit(work)
            until(lambda: admin.info("clients")["blocked_clients"])
            admin.client_kill_filter(_type="normal", skipme=True)
            admin.client_unpause()
            assert added.result(LIMIT) == answer
            assert_waited_once(caplog, "ConnectionError")
            caplog.clear()
    assert bloom.add_many(["a", "b", "c"]) == [False, False, False]


# Redis away, and back.


class Cue(logging.Handler):
    """Does something in a thread when a filter first says that Redis is away."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self._thread = threading.Thread(target=action)

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("Redis is away") and self._thread.ident is None:
            self._thread.start()

    def join(self) -> None:
        self._thread.join()


@contextmanager
def when_away(action: Callable[[], object]) -> Iterator[None]:
    """Do something as soon as a filter waits for Redis, which must happen in the block."""
    cue = Cue(action)
    logger = logging.getLogger("scrapy_bloom")
    logger.addHandler(cue)
    try:
        yield
    finally:
        logger.removeHandler(cue)
    cue.join()


def assert_waited_once(caplog: pytest.LogCaptureFixture, *parts: str) -> None:
    """One line says that Redis is away, and why, and one that it is back."""
    (away,) = said(caplog, "Redis is away")
    (_,) = said(caplog, "Redis is back")
    assert [part for part in parts if part not in away] == []


@contextmanager
def durable(kind: str, *options: str) -> Iterator[Server]:
    """A server that forgets nothing when it is killed."""
    with running(kind, "--appendonly", "yes", "--appendfsync", "always", *options) as server:
        yield server


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_back(kind: str, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """An addition waits until a killed server is back and is answered right, and so is everything after it."""
    with durable(kind) as server, filter_at(server.port, key, cache_size=0) as bloom:
        bloom.add_many(["a", "b"])
        server.kill()
        with when_away(server.start):
            assert bloom.add("c")
        assert_waited_once(caplog)
        assert bloom.add_many(["a", "b", "c", "d"]) == [False, False, False, True]
        caplog.clear()
        server.kill()
        with when_away(server.start):
            assert bloom.add_many(["e", "f"]) == [True, True]
        assert_waited_once(caplog)
        assert not any(map(bloom.add, "abcdef"))
        assert len(caplog.records) == 2


def test_not_up_yet(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A filter that is opened before its server is up waits for it."""
    with running("valkey") as server:
        server.kill()
        with when_away(server.start), filter_at(server.port, key) as bloom:
            assert bloom.add("a")
        assert_waited_once(caplog)


def test_pauses_grow(proxy: Proxy, bloom: BloomFilter, caplog: pytest.LogCaptureFixture) -> None:
    """A server that stays away is tried ever more seldom, and however often, it is said once."""
    proxy.fail(*[Place.BEFORE] * 5)
    begin = time.monotonic()
    assert bloom.add("a")
    assert time.monotonic() - begin >= 0.05 * (1 + 2 + 4 + 8 + 16)
    assert proxy.faults == 5
    assert_waited_once(caplog)


USES: dict[str, Callable[[BloomFilter], object]] = {
    "add": lambda bloom: bloom.add("a"),
    "add_many": lambda bloom: bloom.add_many(["a", "b"]),
    "contains": lambda bloom: "a" in bloom,
    "info": BloomFilter.info,
    "clear": BloomFilter.clear,
}


def assert_names_the_timeout(error: BaseException, seconds: float) -> None:
    """The error says how long was waited, and by which setting, as NAME = value."""
    assert f"BLOOMFILTER_RETRY_TIMEOUT = {seconds:g}" in str(error)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_away_for_too_long(use: Callable[[BloomFilter], object], key: str, caplog: pytest.LogCaptureFixture) -> None:
    """After the retry timeout an error names the setting and its value; when the server is back, all goes on."""
    with running("valkey") as server, filter_at(server.port, key, retry_timeout=0.3) as bloom:
        server.kill()
        begin = time.monotonic()
        with pytest.raises(UnavailableError) as caught:
            use(bloom)
        assert time.monotonic() - begin >= 0.3
        assert len(said(caplog, "Redis is away")) == 1
        assert said(caplog, "Redis is back") == []
        server.start()
        use(bloom)
        assert_names_the_timeout(caught.value, 0.3)


def test_not_up_for_too_long(key: str) -> None:
    """A filter whose server does not come up is refused with the same error."""
    with running("valkey") as server:
        server.kill()
        with pytest.raises(UnavailableError) as caught, filter_at(server.port, key, retry_timeout=0.2):
            pass
        assert_names_the_timeout(caught.value, 0.2)


def test_timeout_of_0(proxy: Proxy, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever does not want to wait gets the error at once, after one attempt."""
    with filter_at(proxy.port, key, retry_timeout=0) as bloom:
        proxy.fail(Place.BEFORE)
        with pytest.raises(UnavailableError):
            bloom.add("a")
        assert said(caplog, "Redis is away") == []
        assert bloom.add("a")


def test_stalled_for_too_long(proxy: Proxy, key: str) -> None:
    """A server that takes commands and never answers is away too; the last attempt may take a socket timeout more."""
    with filter_at(proxy.port, key, retry_timeout=0.5, socket_timeout=STALL_TIMEOUT) as bloom:
        proxy.fail(*[Place.STALL] * 100)
        with pytest.raises(UnavailableError, match="TimeoutError"):
            bloom.add("a")
        assert proxy.faults in {1, 2}


# Away, as the server says itself.


def test_loading(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server that is loading its data is away; it says that it has done nothing, so that nothing is ambiguous."""
    # Microseconds for each command that it reads back; after each 1,024 it looks whether anybody has come.
    with durable("valkey", "--key-load-delay", "100") as server, ExitStack() as stack:
        client = stack.enter_context(server.client(retry=Retry(NoBackoff(), 0)))
        with filter_at(server.port, key, cache_size=0) as bloom:
            bloom.add("a")
            pipeline = client.pipeline(transaction=False)
            for number in range(12_000):
                pipeline.set(f"{key}:ballast:{number}", number)
            pipeline.execute()
            server.kill()
            starting = threading.Thread(target=server.start)
            starting.start()
            until(lambda: is_loading(client))
            assert not bloom.add("a")
            assert bloom.add("b")
            assert bloom.counters.ambiguous == 0
            starting.join()
        assert_waited_once(caplog, "BusyLoadingError")


def is_loading(client: redis.Redis) -> bool:
    """Whether a server is up, and still loading."""
    try:
        client.ping()
    except redis.exceptions.BusyLoadingError:
        return True
    except redis.ConnectionError:
        return False
    raise AssertionError("the server has loaded before anyone could ask it")


@pytest.mark.parametrize("kind", KINDS)
def test_readonly(kind: str, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server that has become a replica is away until it is promoted, and then answers right."""
    at_once = ("--repl-diskless-sync-delay", "0")
    with running(kind, *at_once) as server, running(kind, *at_once) as other, ExitStack() as stack:
        bloom = stack.enter_context(filter_at(server.port, key, cache_size=0))
        client, copy = (stack.enter_context(each.client()) for each in (server, other))
        bloom.add_many(["a", "b"])
        follow(copy, server)
        copy.replicaof("NO", "ONE")
        follow(client, other)
        with when_away(lambda: client.replicaof("NO", "ONE")):
            assert not bloom.add("a")
        assert bloom.counters.ambiguous == 0
        assert_waited_once(caplog, "ReadOnlyError")
        assert bloom.add_many(["b", "c"]) == [False, True]
        follow(client, other)
        with when_away(lambda: client.replicaof("NO", "ONE")):
            assert bloom.add_many(["d", "e"]) == [True, True]


def follow(client: redis.Redis, master: Server) -> None:
    """Make a server the replica of another, and wait until it has everything."""
    client.replicaof("127.0.0.1", master.port)
    until(lambda: client.info("replication")["master_link_status"] == "up")


def test_masterdown(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A replica that has lost its master and will not answer from old data is away."""
    with running("valkey") as server, server.client() as client:
        client.config_set("replica-serve-stale-data", "no")
        client.config_set("replica-read-only", "no")
        with filter_at(server.port, key, cache_size=0) as bloom:
            bloom.add("a")
            # Its master does not answer, so that it keeps what it has.
            with socket.create_server(("127.0.0.1", 0)) as silent:
                client.replicaof("127.0.0.1", silent.getsockname()[1])
                with when_away(lambda: client.replicaof("NO", "ONE")):
                    assert not bloom.add("a")
            assert bloom.add("b")
            assert bloom.counters.ambiguous == 0
        assert_waited_once(caplog, "MasterDownError")


# Errors that no waiting changes.


def with_wrong_password(server: Server, key: str, options: dict[str, Any]) -> BloomFilter:
    """Whoever has the password wrong."""
    return BloomFilter(server.client(password=f"{PASSWORD}-mistaken"), key, **options)


def without_password(server: Server, key: str, options: dict[str, Any]) -> BloomFilter:
    """Whoever has none."""
    return BloomFilter(server.client(), key, **options)


def unlucky(server: Server, key: str, options: dict[str, Any]) -> BloomFilter:
    """A user who may do all but set bits."""
    with server.client(password=PASSWORD) as admin:
        admin.acl_setuser(
            "unlucky", enabled=True, passwords=[f"+{PASSWORD}-own"], keys="*", commands=["+@all", "-bitfield"]
        )
    return BloomFilter(server.client(username="unlucky", password=f"{PASSWORD}-own"), key, **options)


def without_memory(server: Server, key: str, options: dict[str, Any]) -> BloomFilter:
    """A server that is full."""
    with server.client(password=PASSWORD) as admin:
        admin.config_set("maxmemory", 1)
    return BloomFilter(server.client(password=PASSWORD), key, **options)


Opening = Callable[[Server, str, dict[str, Any]], BloomFilter]
REFUSALS: dict[str, tuple[Opening, str]] = {
    "wrong password": (with_wrong_password, "password in REDIS_URL"),
    "no password": (without_password, "password in REDIS_URL"),
    "no permission": (unlucky, "allow BITFIELD"),
    "no memory": (without_memory, "maxmemory"),
}
every_refusal = pytest.mark.parametrize(("opening", "advice"), REFUSALS.values(), ids=REFUSALS)


@pytest.fixture(params=KINDS)
def guarded(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of its own with a password."""
    with running(request.param, "--requirepass", PASSWORD) as server:
        yield server


def told(error: BaseException) -> str:
    """Everything that is shown of an error, anywhere."""
    return "".join(traceback.format_exception(error)) + repr(error)


def assert_refused_at_once(error: RefusedError, advice: str, caplog: pytest.LogCaptureFixture) -> None:
    """The error says what to do, nobody has waited, and no password is anywhere."""
    assert advice in str(error)
    assert said(caplog, "Redis is away") == []
    assert PASSWORD not in told(error) + caplog.text


@every_refusal
def test_refused_at_the_start(
    opening: Opening, advice: str, guarded: Server, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What a server refuses is an error at once that says what to do, and never a password."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises(RefusedError) as caught:
        opening(guarded, key, {"capacity": 1000})
    assert_refused_at_once(caught.value, advice, caplog)


def lock_out(admin: redis.Redis) -> None:
    """Change the password, and make everybody say it anew."""
    admin.config_set("requirepass", f"{PASSWORD}-changed")
    admin.client_kill_filter(_type="normal", skipme=True)


def forbid(admin: redis.Redis) -> None:
    """Take BITFIELD from everybody."""
    admin.acl_setuser("default", enabled=True, commands=["-bitfield"], reset=False)


def fill_up(admin: redis.Redis) -> None:
    """Give the server less memory than it has in use."""
    admin.config_set("maxmemory", 1)


TURNS: dict[str, tuple[Callable[[redis.Redis], None], str]] = {
    "password changed": (lock_out, "password in REDIS_URL"),
    "permission taken": (forbid, "allow BITFIELD"),
    "memory full": (fill_up, "maxmemory"),
}


@pytest.mark.parametrize("use", [USES["add"], USES["add_many"]], ids=["add", "add_many"])
@pytest.mark.parametrize("turn", TURNS)
def test_refused_in_the_middle(
    turn: str, use: Callable[[BloomFilter], object], guarded: Server, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that refuses from one moment on is an error at once, in single additions and in batches."""
    caplog.set_level(logging.DEBUG)
    refuse, advice = TURNS[turn]
    with guarded.client(password=PASSWORD) as admin, guarded.client(password=PASSWORD) as client:
        bloom = BloomFilter(client, key, capacity=1000)
        bloom.add("x")
        refuse(admin)
        with pytest.raises(RefusedError) as caught:
            use(bloom)
    assert_refused_at_once(caught.value, advice, caplog)
    assert PASSWORD not in repr(bloom)


def test_other_refusals_are_errors_of_ours(key: str) -> None:
    """A server that has too few replicas to write refuses too; a crawl must hear of it by an error that ends it.

    Any other would be raised in `enqueue_request`, where it loses one request after another.
    """
    with running("valkey") as server, filter_at(server.port, key, retry_timeout=0.2) as bloom:
        with server.client() as admin:
            admin.config_set("min-replicas-to-write", 1)
            with pytest.raises(BloomError, match="NOREPLICAS"):
                bloom.add("a")
            admin.config_set("min-replicas-to-write", 0)
        assert bloom.add("a")


@pytest.mark.parametrize("scheduled", [False, True])
def test_password_in_a_command_that_is_not_known(scheduled: bool, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server that knows no HELLO cites its arguments, the password too: they are not told, but what to do is."""
    caplog.set_level(logging.DEBUG)
    with running("redis", "--requirepass", PASSWORD, "--rename-command", "HELLO", "") as server:
        settings = {
            "REDIS_URL": server.url.replace("//", f"//:{PASSWORD}@"),
            "REDIS_PARAMS": {"protocol": 3},
            "DUPEFILTER_CLASS": "scrapy_bloom.BloomRFPDupeFilter",
            "SCHEDULER_DUPEFILTER_KEY": key,
        }
        with pytest.raises(RefusedError, match="'protocol': 2") as caught:
            (BloomScheduler if scheduled else BloomRFPDupeFilter).from_settings(Settings(settings))
    assert PASSWORD not in told(caught.value) + caplog.text


@pytest.mark.parametrize("scheduled", [False, True])
def test_password_that_cannot_be_read(scheduled: bool, key: str) -> None:
    """Of a URL that is not one, because of a character in the password, nothing is told but how it must be."""
    settings = {
        "REDIS_URL": "redis://:s3cr#3t@127.0.0.1:6379",
        "DUPEFILTER_CLASS": "scrapy_bloom.BloomRFPDupeFilter",
        "SCHEDULER_DUPEFILTER_KEY": key,
    }
    with pytest.raises(ConfigError, match="REDIS_URL") as caught:
        (BloomScheduler if scheduled else BloomRFPDupeFilter).from_settings(Settings(settings))
    assert "s3cr" not in told(caught.value)


def test_password_of_a_server_that_is_away(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """No password is told while a server is waited for, nor when that is given up."""
    caplog.set_level(logging.DEBUG)
    with running("valkey", "--requirepass", PASSWORD) as server:
        settings = {
            "REDIS_URL": server.url.replace("//", f"//:{PASSWORD}@"),
            "SCHEDULER_DUPEFILTER_KEY": key,
            "BLOOMFILTER_CAPACITY": 1000,
            "BLOOMFILTER_RETRY_TIMEOUT": 0.2,
        }
        dupefilter = BloomRFPDupeFilter.from_settings(Settings(settings))
        server.kill()
        with pytest.raises(UnavailableError) as caught:
            dupefilter.request_seen(Request("http://shop.test/1"))
        assert said(caplog, "Redis is away")
        assert PASSWORD not in told(caught.value) + caplog.text + repr(dupefilter) + repr(dupefilter.filter)
