"""`scrapy bloom doctor` on healthy crawls: no finding, for all kinds of servers and data."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from devtools.site import MadeUpLinks, serving
from scrapy_bloom import BloomFilter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.keys import QueueKeys, partition_keys
from scrapy_bloom.transport.failures import FILTER_COMMANDS, QUEUE_COMMANDS
from tests.support import crawling, spiders
from tests.support.examining import OURS, examine, wrong
from tests.support.servers import EACH_KIND, Server, running

JSON = {"SCHEDULER_SERIALIZER": "scrapy_bloom.serializer"}
KEY, QUEUE = "shop:dupefilter", "shop:requests"
SCHEME = "scrapy-redis"


class Setup(NamedTuple):
    """A crawl: its server's preparation, settings, spider, and denied checks."""

    prepare: Callable[[Any], object]
    settings: dict[str, Any] | None = None
    spider: str = "shop"
    unseen: frozenset[str] = frozenset()
    user: str = ""


def nothing(client: Any) -> None:
    """Leave the server as it is."""


def fill(count: int, key: str = KEY, **parameters: Any) -> Callable[[Any], None]:
    """Return a function that creates the crawl's filter with `count` requests."""

    def prepare(client: Any) -> None:
        bloom = BloomFilter(client, key, fingerprint=SCHEME, **parameters)
        bloom.add_many([f"{number}" for number in range(count)])

    return prepare


def at_work(client: Any, count: int = 1) -> None:
    """Create queues of JSON requests, a live worker with leases, and failed requests for the next run."""
    share = FilterParameters().of_partition(count).capacity
    for queue, key in partition_keys(QUEUE, KEY, count):
        fill(500, key, capacity=share)(client)
        client.zadd(queue, {f'{{"url": "http://localhost/{number}"}}': 0 for number in range(1000)})
        register(client, queue, key, "ShopSpider")
        client.hset(QueueKeys(queue).crawl, "partitions", count)
        client.zadd(QueueKeys(queue).of_worker("worker-1")[0], {"a": 1})
        client.hset(QueueKeys(queue).failed, "b", "1 0 c")


def register(client: Any, queue: str, key: str, spider: str) -> None:
    """Register a worker with one lease, which is not made."""
    now = client.time()[0] * 1000
    of_crawl = {"id": 1, "run": 1, "spider": f"tests.support.spiders.examined.{spider}", "filter": key}
    waiting = client.zcard(queue)
    client.hset(QueueKeys(queue).crawl, mapping={**of_crawl, "waiting": waiting, "losses": 0, "lost": 0})
    client.hset(QueueKeys(queue).crawl, "@worker-1", "1 1 ")
    client.hset(QueueKeys(queue).workers, "worker-1", f"1 0 {now} {now} 3600000 0")


def feed(client: Any) -> None:
    """Create a start URL, and a request that a live worker has leased."""
    queue = "fed:requests"
    fill(1, "fed:dupefilter")(client)
    register(client, queue, "fed:dupefilter", "FedSpider")
    client.zadd(QueueKeys(queue).of_worker("worker-1")[1], {"a": 1})
    client.rpush("fed:start_urls", "http://localhost/1")


def configure(**options: object) -> Callable[[Any], None]:
    """Return a function that sets options of the server."""

    def prepare(client: Any) -> None:
        for name, value in options.items():
            client.config_set(name.replace("_", "-"), value)

    return prepare


def allow(*commands: str) -> Callable[[Any], None]:
    """Return a function that creates a user with the documented permissions and these in addition."""

    def prepare(client: Any) -> None:
        fill(10)(client)
        keys = [f"~{name}" for key in (KEY, QUEUE) for name in (key, f"{{{key}}}:*")]
        rights = [f"+{name.lower()}" for name in (*FILTER_COMMANDS, *QUEUE_COMMANDS, *commands)]
        client.execute_command("ACL", "SETUSER", "worker", "on", ">secret", *keys, *rights)

    return prepare


HEALTHY = {
    "empty": Setup(nothing),
    "by the add-on": Setup(nothing, {"ADDONS": {"scrapy_bloom.Addon": 500}, "SCHEDULER": None}),
    "filled": Setup(fill(5000)),
    "grown": Setup(fill(5000, capacity=2000), {"BLOOMFILTER_CAPACITY": 2000}),
    "may not grow": Setup(
        fill(900, capacity=1000, expansion=0), {"BLOOMFILTER_CAPACITY": 1000, "BLOOMFILTER_EXPANSION": 0}
    ),
    "with a TTL": Setup(fill(100, ttl=604_800), {"BLOOMFILTER_TTL": 604_800}),
    "at work": Setup(at_work, {**JSON, "BLOOMFILTER_RETRY_FAILED": True}),
    "in five partitions": Setup(
        partial(at_work, count=5), {**JSON, "BLOOMFILTER_RETRY_FAILED": True, "BLOOMFILTER_PARTITIONS": 5}
    ),
    "five empty partitions": Setup(nothing, {"BLOOMFILTER_PARTITIONS": 5}),
    "fed": Setup(feed, spider="fed"),
    "appendfsync always": Setup(configure(appendfsync="always")),
    "AOF and snapshots": Setup(configure(save="3600 1")),
    "volatile-lru without a TTL": Setup(configure(maxmemory="100mb", maxmemory_policy="volatile-lru")),
    "noeviction with room": Setup(configure(maxmemory="100mb", maxmemory_policy="noeviction")),
    "no room for a second one": Setup(
        lambda client: (
            fill(9, capacity=10**7)(client),
            configure(maxmemory="60mb", maxmemory_policy="noeviction")(client),
        ),
        {"BLOOMFILTER_CAPACITY": 10**7},
    ),
    "allkeys-lru without maxmemory": Setup(configure(maxmemory_policy="allkeys-lru")),
    "the documented rights": Setup(
        allow(), unseen=frozenset({"role", "eviction", "memory", "persistence"}), user="worker:secret@"
    ),
    "a managed server": Setup(allow("INFO"), user="worker:secret@"),
}


@pytest.fixture(params=EACH_KIND)
def own(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A well-configured server of this test's own."""
    with running(request.param, "--appendonly", "yes") as server:
        yield server


def stored(client: Any) -> dict[str, Any]:
    """Return all data of a server."""
    return {key: client.dump(key) for key in client.scan_iter()}


@pytest.mark.parametrize("name", HEALTHY)
def test_no_alarm(name: str, own: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A healthy crawl has no finding but the checks that its user is denied."""
    setup = HEALTHY[name]
    with own.client(decode_responses=True) as client:
        setup.prepare(client)
        before = stored(client)
        settings = {name: value for name, value in {**OURS, **(setup.settings or {})}.items() if value is not None}
        code, found = examine(own.url.replace("//", f"//{setup.user}"), capsys, setup.spider, **settings)
        assert stored(client) == before
    assert (code, wrong(found)) == (0, dict.fromkeys(setup.unseen, "advice"))
    assert all("not checked" in found[check].text for check in setup.unseen)


@pytest.mark.crawl
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("own", ["valkey"], indirect=True)
def test_no_alarm_in_a_crawl(
    own: Server, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crawl whose workers join, grow the filter and leave has no finding at any moment."""
    settings: dict[str, Any] = {
        **OURS,
        "BLOOMFILTER_CAPACITY": 60,
        "BLOOMFILTER_PARTITIONS": count,
        "REDIS_URL": own.url,
        "TELNETCONSOLE_ENABLED": False,
    }
    at_work = 0
    # The workers run a file, so their spider has no package.
    monkeypatch.syspath_prepend(str(Path(spiders.__file__).parent))
    with serving(MadeUpLinks(pages=200, links=5)) as site, ExitStack() as stack:
        workers = [
            stack.enter_context(crawling.crawling(name, site.url + "/", tmp_path, **settings)) for name in ("a", "b")
        ]
        while any(worker.process.poll() is None for worker in workers):
            code, found = examine(own.url, capsys, "links", SPIDER_MODULES=["links"], **settings)
            assert (code, wrong(found)) == (0, {})
            at_work = max(at_work, int(found["queue"].text.rpartition(", ")[2].split()[0]))
        assert {url for worker in workers for url in worker.wait().fetched}
    assert at_work >= 1
