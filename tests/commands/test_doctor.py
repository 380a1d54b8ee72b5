"""`scrapy bloom doctor`: each state that loses pages is made on a real server, and reported with its remedy."""

import inspect
import json
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from devtools.site import MadeUpLinks, serving
from scrapy_bloom import BloomFilter, serializer
from scrapy_bloom.cli import doctor
from scrapy_bloom.cli._examined import Crawl, Level, Node, findings_of, replication
from scrapy_bloom.cli.doctor import OF_ANY, OF_SERVER, OF_SPIDER, name_of
from scrapy_bloom.queue.keys import QueueKeys, StartKeys
from scrapy_bloom.queue.values import Outcome
from scrapy_bloom.transport.failures import FILTER_COMMANDS, QUEUE_COMMANDS
from tests.support import command, crawling, waiting
from tests.support.clusters import cluster_client, replicated_cluster, running_cluster
from tests.support.documentation import tables
from tests.support.examining import OURS, examine, wrong
from tests.support.live_worker import LiveWorker
from tests.support.servers import EACH_KIND, Server, running

REQUEST = {"url": "http://localhost"}
SAFE = {"SCHEDULER_SERIALIZER": "scrapy_bloom.serializer"}


class State(NamedTuple):
    """A state of a crawl: its maker, and the finding: its check, level, and a part of the text or the advice.

    With settings the crawl is that of a spider. `others` are the checks with a finding beside it.
    """

    make: Callable[[Any, str], object]
    check: str
    level: str
    text: str
    settings: dict[str, Any] | None = None
    others: frozenset[str] = frozenset()


def queue_of(key: str) -> str:
    return f"{key}:fed:requests"


def filter_of(key: str) -> str:
    return f"{key}:dupefilter"


def opened(client: Any, key: str, **parameters: Any) -> BloomFilter:
    return BloomFilter(client, filter_of(key), **parameters)


def filled(number: int, **parameters: Any) -> Callable[[Any, str], BloomFilter]:
    """Return a function that fills a filter."""

    def make(client: Any, key: str) -> BloomFilter:
        bloom = opened(client, key, **parameters)
        bloom.add_many([f"{item}" for item in range(number)])
        return bloom

    return make


def pending(number: int, **parameters: Any) -> Callable[[Any, str], None]:
    """Return a function that makes a filter with a request, and a queue with some."""

    def make(client: Any, key: str) -> None:
        filled(1, **parameters)(client, key)
        client.zadd(queue_of(key), dict.fromkeys(range(number), 0))

    return make


def expiring(client: Any, key: str) -> None:
    filled(1)(client, key)
    client.expire(filter_of(key), 1000)


def working(client: Any, key: str) -> LiveWorker:
    """Register a worker with two requests, and one more that waits."""
    worker = LiveWorker(client, queue_of(key), filter_of(key))
    worker.push(b"a", b"b", b"c")
    worker.take(2)
    worker.call()
    return worker


def failed(client: Any, key: str) -> None:
    working(client, key).end(b"a", Outcome.FAILED)


def shards_of(client: Any, key: str) -> list[str]:
    return [*client.scan_iter(f"{{{filter_of(key)}}}:*:0")]


def without_shards(client: Any, key: str) -> None:
    filled(50, capacity=100)(client, key)
    client.delete(*shards_of(client, key))


def with_new_shards(client: Any, key: str) -> None:
    without_shards(client, key)
    opened(client, key, capacity=100).add("0")


def without_hash(client: Any, key: str) -> None:
    filled(50, capacity=100)(client, key)
    client.delete(filter_of(key))


def marked(client: Any, key: str) -> None:
    """Make a filter of other parameters as an import that was stopped leaves it."""
    text = filled(1, capacity=5)(client, key).parameters.to_json()
    client.hset(filter_of(key), "parameters", json.dumps({**json.loads(text), "unfinished": "import"}))


def silent(client: Any, key: str) -> None:
    working(client, key)
    crawl = QueueKeys(queue_of(key)).crawl
    client.hset(crawl, "@worker", re.sub(rb"\d{16}", b"1", client.hget(crawl, "@worker"), count=1))


def without_queue(client: Any, key: str) -> None:
    working(client, key)
    client.delete(queue_of(key))


def without_leases(client: Any, key: str) -> None:
    working(client, key)
    client.delete(*QueueKeys(queue_of(key)).of_worker("worker"))


def without_registration(client: Any, key: str) -> None:
    working(client, key)
    client.hdel(QueueKeys(queue_of(key)).crawl, "@worker")


def with_leftover(client: Any, key: str) -> None:
    BloomFilter(client, f"{key}:dupefilter:0123456789abcdef").add("a")


def with_dead_letter(client: Any, key: str) -> None:
    client.zadd(QueueKeys(queue_of(key)).dead_letters, {"a": 0})


def queued(request: bytes | str) -> Callable[[Any, str], object]:
    return lambda client, key: client.zadd(queue_of(key), {request: 0})


def start_urls(client: Any, key: str) -> None:
    """Make start URLs: one is leased by a live worker, and one by none."""
    keys, queue = StartKeys(f"{key}:fed"), QueueKeys(queue_of(key))
    client.hset(queue.crawl, "@here", "1 0 0 1 1 0 9000000000000000 60000000 1 1 0 0 0")
    client.hset(queue.crawl, mapping={"spider": "tests.support.spiders.examined.FedSpider", "filter": filter_of(key)})
    client.hset(keys.leased, f"1:here:{queue.queue}", " http://localhost/1")
    client.hset(keys.leased, f"2:gone:{queue.queue}", " http://localhost/2")


def dead_start_urls(client: Any, key: str) -> None:
    """Make one start URL a dead letter."""
    keys = StartKeys(f"{key}:fed")
    start_urls(client, key)
    client.hdel(keys.leased, f"2:gone:{queue_of(key)}")
    client.rpush(keys.dead_letters, "http://localhost/3")


# Each state beside a key prefix. A crawl by keys has no settings.
STATES = {
    "a SET": State(lambda client, key: client.sadd(filter_of(key), "a"), "filter", "loss", "scrapy bloom import"),
    "foreign data": State(lambda client, key: client.set(filter_of(key), "a"), "filter", "loss", "is not a filter"),
    "other parameters": State(filled(1, capacity=5), "filter", "loss", "capacity = 1000000 here, 5 in the stored", {}),
    "unfinished": State(marked, "filter", "loss", "incomplete: `scrapy bloom import` is filling it", {}),
    "lost shards": State(without_shards, "filter", "loss", "1 of 1 shard evicted or deleted"),
    "replaced shards": State(with_new_shards, "filter", "loss", "1 of 1 shard evicted or deleted"),
    "a lost hash": State(without_hash, "filter", "loss", "its hash was evicted or deleted, and 1 shard of it"),
    "EXPIRE": State(expiring, "filter", "loss", "run PERSIST"),
    "too full": State(filled(300, capacity=100, expansion=0), "filter", "loss", "too full: "),
    "many layers": State(filled(200, capacity=5, expansion=1), "filter", "advice", "layers"),
    "an error rate of the stored filter": State(
        filled(1, error_rate=1e-3), "error rate", "advice", "are missed, expected"
    ),
    "a small capacity": State(pending(3, capacity=2), "capacity", "advice", "3 pending requests, capacity 2: it grows"),
    "a small capacity without growth": State(
        pending(3, capacity=2, expansion=0), "capacity", "advice", "it cannot grow, and misses pages"
    ),
    "a short TTL": State(pending(52, ttl=1), "ttl", "advice", "at less than 52 pages a second"),
    "a list": State(lambda client, key: client.lpush(queue_of(key), "a"), "queue", "loss", "is a list, of FifoQueue"),
    "a string": State(lambda client, key: client.set(queue_of(key), "a"), "queue", "loss", "holds a string"),
    "a hash": State(lambda client, key: client.hset(queue_of(key), "a", "b"), "queue", "loss", "holds a hash"),
    "dead letters": State(with_dead_letter, "queue", "loss", "1 dead letter:"),
    "a lost queue": State(
        without_queue, "queue", "loss", "has lost requests that the filter takes for duplicates, 1 of them"
    ),
    "failed requests": State(failed, "queue", "advice", "1 failed request kept"),
    "workers of another spider": State(
        working, "queue", "loss", "workers of another spider, project.Shop, crawl", SAFE, others=frozenset({"filter"})
    ),
    "workers with another filter": State(
        lambda client, key: LiveWorker(client, queue_of(key), f"{key}:other"), "queue", "loss", "use another filter"
    ),
    "silent workers": State(
        silent, "queue", "advice", "1 worker silent for longer than the lease, with 2 requests: worker"
    ),
    "lost leases": State(without_leases, "leases", "loss", "worker has registered 2 leases, and 0 are there"),
    "a lost registration": State(without_registration, "leases", "loss", "ZUNIONSTORE"),
    "pickles in a crawl with MessagePack": State(
        queued(pickle.dumps(REQUEST)), "serializer", "loss", "written with 'scrapy_redis.picklecompat'", SAFE
    ),
    "MessagePack in a crawl with pickles": State(
        queued(serializer.dumps(REQUEST)), "serializer", "loss", "written with 'scrapy_bloom.serializer'", {}
    ),
    "abandoned start URLs": State(
        start_urls, "start URLs", "advice", "1 of '{key}:fed' leased by workers that are gone", {}
    ),
    "dead start URLs": State(dead_start_urls, "start URLs", "loss", "1 dead letter at '{{{key}:fed}}:dead-letter'", {}),
    "leftover filters": State(
        with_leftover, "leftover filters", "advice", "1 filter of crawls killed under Scrapy's own scheduler"
    ),
}


@pytest.fixture(scope="module", params=EACH_KIND)
def own(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A well-configured server."""
    with running(request.param, "--appendonly", "yes") as server:
        yield server


@pytest.fixture
def mine(own: Server) -> Iterator[Any]:
    with own.client() as client:
        yield client


def place_of(state: State, key: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the arguments and settings for a state."""
    if state.settings is None:
        return ("--key", filter_of(key), "--queue", queue_of(key), "--idle", "0"), {}
    keys = {"SCHEDULER_QUEUE_KEY": f"{key}:%(spider)s:requests", "SCHEDULER_DUPEFILTER_KEY": filter_of(key)}
    return ("fed",), {**OURS, **keys, "REDIS_START_URLS_KEY": f"{key}:%(name)s", **state.settings}


def stored(client: Any, key: str) -> dict[str, Any]:
    """Return all data of a test."""
    return {name: client.dump(name) for name in client.scan_iter(f"*{key}*")}


@pytest.mark.parametrize("name", STATES)
def test_state(name: str, own: Server, mine: Any, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A state is reported by one check, with its remedy, and nothing is changed."""
    state = STATES[name]
    arguments, settings = place_of(state, key)
    state.make(mine, key)
    before = stored(mine, key)
    code, found = examine(own.url, capsys, *arguments, **settings)
    assert stored(mine, key) == before
    level, text, action = found[state.check]
    assert (level, wrong(found).keys() - state.others) == (state.level, {state.check}), found
    assert state.text.format(key=key) in text + action
    assert action or "no crawl would start: " in text
    assert code == ("loss" in wrong(found).values())
    mine.delete(*before)


def levels_of(check: doctor.Check) -> set[tuple[str, str]]:
    """Return the name of a check with each level of its findings, by its source."""
    limits = (doctor._limits,)
    helpers = {"filter": (doctor._stored,), "queue": (doctor._queue,), "lease": limits, "timeouts": limits}
    source = "".join(map(inspect.getsource, (inspect.unwrap(check), *helpers.get(name_of(check), ()))))
    kinds = {"loss": r"\b(loss|refused)\b", "advice": r"\b(advice|skipped)\b"}
    return {(name_of(check), level) for level, pattern in kinds.items() if re.search(pattern, source)}


def test_every_finding() -> None:
    """Each check of stored data has a state for each level, and the page has a row for each level of a check."""
    of_data = OF_SERVER[OF_SERVER.index(doctor.filter_) :]
    made = {(state.check, state.level) for state in STATES.values()}
    wanted = set().union(*map(levels_of, of_data)) - {("permissions", "loss"), ("serializer", "advice")}
    assert made == wanted
    rows = {
        (check, {"LOSS": "loss", "!": "advice"}[level]) for check, level, _ in tables("docs/commands.md", "doctor")[-1]
    }
    assert rows == set().union(*map(levels_of, (*OF_ANY, *OF_SPIDER, *OF_SERVER)))


class Configured(NamedTuple):
    """Options of a server, the only finding: its check, level, and text; and settings."""

    options: dict[str, str]
    check: str
    level: str
    text: str
    settings: dict[str, Any] = {}  # noqa: RUF012  # never changed


ALL_KEYS = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
WITH_TTL = {"maxmemory": "100mb", "maxmemory-policy": "volatile-lru"}
SERVERS = {
    "allkeys-lru": Configured(ALL_KEYS, "eviction", "loss", "with the queue its pending requests are lost"),
    "volatile-lru and a TTL": Configured(WITH_TTL, "eviction", "loss", "keys with a TTL", {"BLOOMFILTER_TTL": 3600}),
    "little memory": Configured({"maxmemory": "4mb"}, "memory", "advice", "MB more", {"BLOOMFILTER_CAPACITY": 10**7}),
    "nothing is kept": Configured({"appendonly": "no"}, "persistence", "loss", "none: a restart"),
    "snapshots": Configured({"appendonly": "no", "save": "3600 1"}, "persistence", "advice", "since the last snapshot"),
    "appendfsync no": Configured({"appendfsync": "no"}, "persistence", "advice", "a crash of the machine loses"),
}


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("kind", EACH_KIND)
def test_server(name: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Memory limits, eviction and persistence are reported where they lose data."""
    options, check, level, text, settings = SERVERS[name]
    with running(kind, "--appendonly", "yes") as server, server.client() as client:
        for option, value in options.items():
            client.config_set(option, value)
        code, found = examine(server.url, capsys, "shop", **{**OURS, **settings})
    assert (code, wrong(found), text in found[check][1]) == (level == "loss", {check: level}, True)


@pytest.mark.parametrize("kind", EACH_KIND)
def test_replicas(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A replica in step is reported with its lag; in place of the master it is a loss."""
    with (
        running(kind, "--appendonly", "yes", "--repl-diskless-sync-delay", "0") as server,
        running("valkey" if kind == "valkey" else kind, "--replicaof", "127.0.0.1", str(server.port)) as replica,
        server.client() as client,
    ):
        filled(100)(client, "shop")
        waiting.until(lambda: client.info().get("slave0", {}).get("state") == "online")
        code, found = examine(server.url, capsys, "--key", filter_of("shop"))
        assert (code, wrong(found), "behind" in found["replication"][1]) == (0, {}, True)
        code, found = examine(replica.url, capsys, "--key", filter_of("shop"))
        assert (code, found["replication"][0]) == (1, "loss")


LAGS = [
    ({}, Level.OK),
    ({"lag": 10}, Level.OK),
    ({"lag": 11}, Level.ADVICE),
    ({"offset": 20_000_000}, Level.OK),
    ({"offset": 19_999_999}, Level.ADVICE),
    ({"state": "wait_bgsave"}, Level.ADVICE),
]


@pytest.mark.parametrize(("replica", "level"), LAGS)
def test_lag(replica: dict[str, Any], level: Level) -> None:
    """A replica is reported if it is silent for more than 10 seconds, or 10 MB behind."""
    told = {"ip": "127.0.0.1", "port": 6380, "state": "online", "offset": 30_000_000, "lag": 0, **replica}
    info = {"role": "master", "master_repl_offset": 30_000_000, "slave0": told}
    crawl: Any = SimpleNamespace(nodes=[Node("", True, info)])
    assert [finding.level for finding in findings_of(replication(crawl))] == [level]


# The scripts of a crawl's filter and of its queue, and the commands that the package sends beside them.
FILTER = ("filter", "call", "open", "allocate", "add", "forget", "contains", "info")
QUEUE = ("queue", "join", "exchange", "heartbeat", "leave")
SENT = ({"EVAL", "EVALSHA", "PTTL"}, {"HKEYS", "HSCAN", "PING"})


def called_by(scripts: tuple[str, ...]) -> set[str]:
    """Return the commands that scripts call."""
    folder = Path(doctor.__file__).parents[1] / "lua"
    texts = ((folder / f"{name}.lua").read_text() for name in scripts)
    return {name for text in texts for name in re.findall(r"(?:call|in_parts)\('([A-Z]+)'", text)}


def test_commands_of_the_scripts() -> None:
    """The lists have the commands of the scripts, and those of the package."""
    of_filter, of_queue = (called_by(scripts) | sent for scripts, sent in zip((FILTER, QUEUE), SENT, strict=True))
    assert {*FILTER_COMMANDS} == of_filter
    assert {*QUEUE_COMMANDS} == of_queue - of_filter


def restrict(client: Any, *rules: str) -> None:
    """Create a user with these rules, and the documented keys."""
    client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", *KEYS, *rules)


KEYS = [f"~{name}" for key in ("shop:dupefilter", "shop:requests") for name in (key, f"{{{key}}}:*")]
PLACE = ("--key", "shop:dupefilter", "--queue", "shop:requests")
ALLOWED = [f"+{name.lower()}" for name in (*FILTER_COMMANDS, *QUEUE_COMMANDS)]


@pytest.mark.parametrize("own", ["valkey"], indirect=True)
def test_permissions(own: Server, mine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The suggested ACL rule is exactly the missing one, of a command or of keys; with it, permissions are complete."""
    url = own.url.replace("//", "//worker:secret@")

    def suggested() -> list[str]:
        code = command.call("doctor", *PLACE, "--redis-url", url)
        said = capsys.readouterr()
        assert "secret" not in said.out + said.err
        rules = re.findall(r"run ACL SETUSER worker (.*)\n", said.out)
        assert code == bool(rules)
        return rules

    looking = ["+info", "+config|get", "+scan", "+object"]
    for missing in ALLOWED:
        restrict(mine, *looking, *ALLOWED, missing.replace("+", "-"))
        assert suggested() == [missing]
    mine.execute_command("ACL", "SETUSER", "worker", missing)
    assert suggested() == []
    for missing in KEYS:
        restrict(mine, "resetkeys", *(each for each in KEYS if each != missing), "+@all")
        assert suggested() == [missing]
    restrict(mine, "resetkeys", "~other", "+@all")
    assert suggested() == [" ".join(KEYS)]
    assert not mine.keys("*shop*")


def test_permissions_of_start_urls(own: Server, mine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A spider that reads start URLs from a list needs its commands, too, and the keys of the list."""
    url = own.url.replace("//", "//worker:secret@")
    names = ("fed:dupefilter", "fed:requests", "fed:start_urls")
    keys = [f"~{name}" for key in names for name in (key, f"{{{key}}}:*")]
    lists = ["+llen", "+lrange", "+ltrim", "+lpush", "+rpush"]

    def suggested(*rules: str) -> str:
        restrict(mine, "resetkeys", *rules, *ALLOWED)
        return examine(url, capsys, "fed", **OURS)[1]["permissions"][2].removeprefix("as an admin, run ")

    assert suggested(*keys) == f"ACL SETUSER worker {' '.join(lists)}"
    assert suggested(*keys[:4], *lists) == f"ACL SETUSER worker {' '.join(keys[4:])}"
    assert suggested(*keys, *lists) == ""


@pytest.mark.parametrize("missing", ["hincrby", "getrange"])
def test_unknown_command(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that the server does not have, as a managed or a compatible one may not, is named."""
    with running("redis", "--appendonly", "yes", "--rename-command", missing, "") as server:
        assert command.call("doctor", *PLACE, "--redis-url", server.url) == 1
        said = capsys.readouterr().out
    assert f"the server does not know {missing.upper()}\n" in said
    assert "use Redis 6.2 or newer, or Valkey" in said


def test_a_worker_that_joins_or_leaves_meanwhile(
    own: Server, mine: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases are those of registered workers, even if one joins or leaves between two reads."""
    called, _ = command.parse("doctor", "--key", filter_of(key), "--queue", queue_of(key), "--redis-url", own.url)
    assert called.settings is not None
    scan, worker = Crawl.scan, None

    def join_after(crawl: Crawl, pattern: str) -> Any:
        nonlocal worker
        found = scan(crawl, pattern)
        if worker is None:
            worker = working(mine, key)
        else:
            worker.leave()
        return found

    monkeypatch.setattr(Crawl, "scan", join_after)
    for _ in range(2):
        crawl = Crawl(called._options, called.settings)
        assert [finding.level for finding in findings_of(doctor.leases(crawl))] == [Level.OK]


@pytest.mark.crawl
def test_a_killed_crawl(own: Server, mine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The filter of a crawl killed under Scrapy's own scheduler is found."""
    with serving(MadeUpLinks(pages=5000, links=5)) as site:
        settings = {"SCHEDULER": crawling.OWN_SCHEDULER, "REDIS_URL": own.url}
        with crawling.crawling("killed", site.url + "/", tmp_path, **settings):
            waiting.until(lambda: len(mine.keys("*links:dupefilter:*")) > 1)
    assert examine(own.url, capsys, *PLACE)[1]["leftover filters"] == ("ok", "none", "")
    level, text, action = examine(own.url, capsys, *PLACE, "--idle", "0")[1]["leftover filters"]
    (key,) = mine.scan_iter("links:dupefilter:*")
    assert (level, key.decode() in text, "scrapy bloom clear --yes --key KEY" in action) == ("advice", True, True)


def on_cluster(key: str) -> dict[str, Any]:
    """Return settings of a crawl with MessagePack, whose keys are the defaults of a cluster."""
    keys = {"SCHEDULER_QUEUE_KEY": f"{key}:%(spider)s", "REDIS_START_URLS_KEY": f"{key}:%(name)s"}
    return {**OURS, **SAFE, **keys}


def test_on_a_cluster(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every check asks all nodes of a cluster, and a filter in another slot than its queue is refused."""
    with running_cluster(2, "--appendonly", "yes") as nodes, cluster_client(nodes[0]) as client:
        settings, url = on_cluster(key), f"redis+cluster://127.0.0.1:{nodes[0].port}"
        filled(10, fingerprint="scrapy-redis")(client, f"{{{key}:fed}}")
        code, found = examine(url, capsys, "fed", **settings)
        assert (code, wrong(found)) == (0, {})
        assert {name_of(check) for check in (*OF_SPIDER, *OF_SERVER)} - found.keys() <= {"flush", "ttl", "replication"}
        elsewhere = {**settings, "SCHEDULER_DUPEFILTER_KEY": f"{key}:%(spider)s:dupefilter"}
        code, found = examine(url, capsys, "fed", **elsewhere)
        assert (code, wrong(found)) == (1, {"slots": "loss"})
        assert f"set SCHEDULER_DUPEFILTER_KEY = '{{{key}:fed}}:dupefilter'" in found["slots"][1]
        client.config_set("appendonly", "no", target_nodes=client.get_node(port=nodes[1].port, host="127.0.0.1"))
        code, found = examine(url, capsys, "fed", **settings)
        assert (code, wrong(found)) == (1, {"persistence": "loss"})
        assert found["persistence"][1].startswith(f"127.0.0.1:{nodes[1].port}: none")


@pytest.mark.long
def test_a_cluster_without_nodes(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A dead replica and then a dead master are named, with the checks that need them; the others are made."""
    with replicated_cluster("valkey") as cluster:
        name, settings = f"{key}:fed", on_cluster(key)
        master = next(node for node in cluster.nodes[:3] if node is not cluster.owner_of(name))
        replica = cluster._replica_of(master)
        for node in cluster.nodes:
            with node.client() as client:
                client.config_set("appendonly", "yes")
                client.config_set("cluster-replica-no-failover", "yes")
        cluster.until_ready()
        with cluster_client(cluster.nodes[0]) as client:
            filled(1, fingerprint="scrapy-redis")(client, f"{{{name}}}")
        assert examine(cluster.url, capsys, "fed", **settings)[1]["replication"][0] == "ok"
        replica.kill()
        level, text, _ = examine(cluster.url, capsys, "fed", **settings)[1]["server"]
        assert (level, f"127.0.0.1:{replica.port}: the replica" in text) == ("advice", True)
        master.kill()
        code, found = examine(cluster.url, capsys, "fed", **settings)
        level, text, _ = found["server"]
        assert (code, level, f"127.0.0.1:{master.port}: the master cannot be asked" in text) == (1, "loss", True)
        assert (found["leases"][0], "not checked" in found["leases"][1]) == ("loss", True)
        assert found["filter"][0] == found["queue"][0] == "ok"


def test_barely_too_full(own: Server, mine: Any, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A filter is too full exactly when its error rate exceeds the allowed one."""
    bloom = filled(100, capacity=100, error_rate=0.01, expansion=0)(mine, key)
    place = ("--key", filter_of(key))
    number = 100
    assert bloom.info().current_error_rate <= 0.01
    assert examine(own.url, capsys, *place)[1]["filter"][0] == "ok"
    while bloom.info().current_error_rate <= 0.01:
        bloom.add(f"{number}")
        number += 1
    assert bloom.info().current_error_rate < 0.015
    assert examine(own.url, capsys, *place)[1]["filter"][0] == "loss"
