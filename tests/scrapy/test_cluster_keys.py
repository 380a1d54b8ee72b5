"""In a cluster the filter is in the queue's slot: a failover rolls both back."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from scrapy_bloom import BloomFilter, BloomRFPDupeFilter, MismatchError, WrongTypeError
from tests.support import command
from tests.support.clusters import cluster_client, running_cluster
from tests.support.dupefilters import KEY, crawler_of, page, spider_of, warnings_in
from tests.support.servers import Server

OVER_A_CLUSTER: dict[str, Any] = {"REDIS_PARAMS": {"redis_cls": "redis.RedisCluster"}}
# The first layer of a filter of this capacity takes more than a gigabyte.
LARGE = 300_000_000
Build = Callable[..., BloomRFPDupeFilter]


@pytest.fixture(scope="module")
def node() -> Iterator[Server]:
    """A node of a cluster of two."""
    with running_cluster(2) as nodes:
        yield nodes[0]


@pytest.fixture
def client(node: Server) -> Iterator[Any]:
    """A client of the cluster."""
    with cluster_client(node) as client:
        yield client


@pytest.fixture
def build(node: Server, key: str) -> Build:
    """Builds the dupefilter of a worker, as its scheduler does."""

    def build_one(**settings: Any) -> BloomRFPDupeFilter:
        crawler = crawler_of(node, spider_name=key, **OVER_A_CLUSTER, **settings)
        return BloomRFPDupeFilter.from_spider(spider_of(crawler))

    return build_one


def keys_of(client: Any, spider: str) -> set[str]:
    """Return all keys of a crawl."""
    return {each.decode() for each in client.scan_iter(match=f"*{spider}*", count=10_000)}


def warnings_of_failovers(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings that a failover may cost pages."""
    return [each for each in warnings_in(caplog) if "a failover that loses writes may lose requests" in each]


def test_new_filter(build: Build, client: Any, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """All keys of a new filter are in the queue's slot, where every worker and later crawl finds it."""
    first, second = build(), build()
    assert [first.request_seen(page(1)), second.request_seen(page(1))] == [False, True]
    found = keys_of(client, key)
    assert found == {f"{{{key}:requests}}:dupefilter", f"{{{key}:requests}}:dupefilter:0:0"}
    assert {key_slot(each.encode()) for each in found} == {key_slot(f"{key}:requests".encode())}
    assert build().request_seen(page(1))
    assert warnings_of_failovers(caplog) == []


def test_larger_capacity_than_before(build: Build) -> None:
    """A filter in the queue's slot stays, even if the new capacity would not fit."""
    build().request_seen(page(1))
    with pytest.raises(MismatchError, match=f"capacity = {LARGE}"):
        build(BLOOMFILTER_CAPACITY=LARGE)


def test_queue_of_another_name(build: Build, key: str) -> None:
    """The slot is that of the queue named by the settings."""
    assert build(SCHEDULER_QUEUE_KEY="{%(spider)s}:jobs").key == f"{{{key}}}:jobs:dupefilter"


def test_filter_at_the_key_of_a_single_server(build: Build, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A filter at a single server's default key stays in use, with a warning."""
    build(**{KEY: "%(spider)s:dupefilter"}).request_seen(page(1))
    caplog.clear()
    dupefilter = build()
    assert dupefilter.key == f"{key}:dupefilter"
    assert dupefilter.request_seen(page(1))
    (warning,) = warnings_of_failovers(caplog)
    assert f"SCHEDULER_DUPEFILTER_KEY = '{{{key}:requests}}:dupefilter'" in warning
    dupefilter.clear()
    assert build().key == f"{{{key}:requests}}:dupefilter"


def test_set_at_the_key_of_a_single_server(build: Build, client: Any, key: str) -> None:
    """A SET of scrapy-redis is not overlooked: the start is refused, as on a single server."""
    client.sadd(f"{key}:dupefilter", "a fingerprint")
    with pytest.raises(WrongTypeError, match="holds a SET of 1 members"):
        build()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({KEY: "%(spider)s:dupefilter"}, "{}:dupefilter"),
        # The hash is in the queue's slot, and no shard is.
        ({KEY: "%(spider)s", "SCHEDULER_QUEUE_KEY": "{%(spider)s}:requests"}, "{}"),
        ({"BLOOMFILTER_CAPACITY": LARGE}, "{}:dupefilter"),
        ({"SCHEDULER_QUEUE_KEY": "requests of all"}, "{}:dupefilter"),
    ],
    ids=["key that was set", "key that is a tag", "large", "queue of several spiders"],
)
def test_filter_elsewhere(
    build: Build, key: str, settings: dict[str, Any], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A key outside the queue's slot causes one warning."""
    assert build(**settings).key == name.format(key)
    (warning,) = warnings_of_failovers(caplog)
    assert repr(name.format(key)) in warning


def test_key_that_was_set_to_the_slot(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    """A filter that the settings place in the queue's slot causes no warning."""
    build(**{KEY: "{%(spider)s:requests}:seen"})
    assert warnings_of_failovers(caplog) == []


def test_single_server(valkey: Server, key: str, caplog: pytest.LogCaptureFixture) -> None:
    """A single server replicates all keys in one stream: the filter has scrapy-redis's default key."""
    dupefilter = BloomRFPDupeFilter.from_spider(spider_of(crawler_of(valkey, spider_name=key)))
    assert dupefilter.key == f"{key}:dupefilter"
    assert warnings_of_failovers(caplog) == []


@pytest.mark.parametrize("name", ["{shop:requests}:dupefilter", "shop:dupefilter"])
def test_commands_find_it(node: Server, client: Any, name: str, tmp_path: Path) -> None:
    """Every action finds the crawl's filter."""
    bloom = BloomFilter(client, name, capacity=1000, fingerprint="scrapy-redis")
    bloom.add("an item")
    project = command.make_project(tmp_path, REDIS_URL=node.url, BLOOMFILTER_CAPACITY=1000, **OVER_A_CLUSTER)
    try:
        assert command.report("info", "shop", cwd=project)["key"] == name
        assert f"{name} on " in command.run("doctor", "shop", cwd=project).stdout
        cleared = command.run("clear", "shop", "--yes", cwd=project)
        assert (cleared.returncode, client.exists(name)) == (0, 0), cleared.stderr
    finally:
        bloom.clear()
