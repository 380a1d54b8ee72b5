"""`scrapy bloom doctor`: each state that loses pages is made on a real server, and found with its remedy."""

import pickle
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from lupa.lua51 import LuaRuntime

from scrapy_bloom import BloomFilter, serializer
from scrapy_bloom.cli import doctor
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.messages import Outcome
from scrapy_bloom.transport.failures import FILTER_COMMANDS, QUEUE_COMMANDS, START_COMMANDS
from scrapy_bloom.transport.scripts import Script
from tests.support import command, proxy
from tests.support.clusters import cluster_client, running_cluster
from tests.support.documentation import tables
from tests.support.examining import OURS, SPIDERS, examine, wrong
from tests.support.live_worker import LiveWorker
from tests.support.servers import EACH_KIND, Server, running
from tests.support.waiting import until

Make = Callable[[Any, str], object]
REQUEST = {"url": "http://localhost"}
OTHER = {"SCHEDULER_SERIALIZER": "scrapy_bloom.serializer"}
ADDON = {"ADDONS": {"scrapy_bloom.Addon": 500}}
SCRAPYS = "scrapy.core.scheduler.Scheduler"
STOCK = "scrapy_redis.dupefilter.RFPDupeFilter"


def queue_of(key: str) -> str:
    return f"{key}:shop:requests"


def filter_of(key: str) -> str:
    return f"{key}:dupefilter"


def filled(number: int, **parameters: Any) -> Callable[[Any, str], BloomFilter]:
    """Return a function that fills a filter."""

    def make(client: Any, key: str) -> BloomFilter:
        bloom = BloomFilter(client, filter_of(key), **parameters)
        bloom.add_many([f"{item}" for item in range(number)])
        return bloom

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


def without_shards(client: Any, key: str) -> None:
    filled(50, capacity=100)(client, key)
    client.delete(*client.scan_iter(f"{{{filter_of(key)}}}:*:0"))


def with_new_shards(client: Any, key: str) -> None:
    without_shards(client, key)
    BloomFilter(client, filter_of(key), capacity=100).add("0")


def without_filter(client: Any, key: str) -> None:
    working(client, key)
    client.delete(filter_of(key))


def silent(client: Any, key: str) -> None:
    working(client, key)
    workers = QueueKeys(queue_of(key)).workers
    client.hset(workers, "worker", re.sub(rb"\d{13}", b"1", client.hget(workers, "worker"), count=1))


def without_queue(client: Any, key: str) -> None:
    working(client, key)
    client.delete(queue_of(key))


def queued(request: bytes | str) -> Make:
    return lambda client, key: client.zadd(queue_of(key), {request: 0})


def nothing(client: Any, key: str) -> None:
    """Leave the server as it is."""


class State(NamedTuple):
    """A state, and its only finding: the check, its level, and words of the text, the harm or the advice.

    `make` makes data at keys. With settings the crawl is a spider's. `others` are the checks with further findings.
    """

    check: str
    level: str
    words: str
    make: Make = nothing
    settings: dict[str, Any] | None = None
    spider: str = "shop"
    others: frozenset[str] = frozenset()


def refused(words: str, spider: str = "shop", others: tuple[str, ...] = (), **settings: Any) -> State:
    """Return a state in which a setting is refused."""
    return State("settings", "loss", words, nothing, {**OURS, **settings}, spider, frozenset(others))


def mistake(check: str, level: str, words: str, spider: str = "shop", **settings: Any) -> State:
    """Return a state in which a setting loses something."""
    others = {"dupefilter": ("settings",), "scheduler": ("settings",)}.get(check, ())
    return State(check, level, words, nothing, {**OURS, **settings}, spider, frozenset(others))


def data(check: str, level: str, words: str, make: Make) -> State:
    """Return a state of a crawl by its keys alone."""
    return State(check, level, words, make)


STATES = {
    # Settings.
    "a value": refused("capacity (BLOOMFILTER_CAPACITY) = 0: must", BLOOMFILTER_CAPACITY=0),
    "a value, by the add-on": refused("(BLOOMFILTER_CAPACITY) = 0", BLOOMFILTER_CAPACITY=0, ADDONS=ADDON["ADDONS"]),
    "another filter": refused("DUPEFILTER_CLASS = ", others=("dupefilter",), DUPEFILTER_CLASS=STOCK),
    "no such filter": refused("cannot be imported", others=("dupefilter",), DUPEFILTER_CLASS="nothing.X"),
    "no such scheduler": refused("cannot be imported", SCHEDULER="nothing.X"),
    "no such serializer": refused("SCHEDULER_SERIALIZER = ", SCHEDULER_SERIALIZER="nothing"),
    "no queue": refused("SCHEDULER_QUEUE_CLASS", SCHEDULER_QUEUE_CLASS="scrapy_redis.queue.Base"),
    "own queue": refused("overrides push", SCHEDULER_QUEUE_CLASS=f"{SPIDERS}.Hosts"),
    "own request_seen": refused("overrides request_seen", DUPEFILTER_CLASS=f"{SPIDERS}.InSet"),
    "own flush": refused("overrides flush", SCHEDULER=f"{SPIDERS}.Keeping"),
    "one key for both": refused("same keys", SCHEDULER_QUEUE_KEY="a", SCHEDULER_DUPEFILTER_KEY="a"),
    "a queue key": refused("SCHEDULER_QUEUE_KEY = '%(x)s'", SCHEDULER_QUEUE_KEY="%(x)s"),
    "a key": refused("may have %(spider)s", others=("scheduler",), SCHEDULER=SCRAPYS, SCHEDULER_DUPEFILTER_KEY="%(x)s"),
    "a start key": refused("REDIS_START_URLS_KEY = '%(x)s'", "fed", ("dead letters",), REDIS_START_URLS_KEY="%(x)s"),
    "a setting without effect": mistake("settings", "advice", "JOBDIR = 'job' has no effect", JOBDIR="job"),
    "scrapy-redis's filter": mistake("dupefilter", "loss", "500 in ADDONS", DUPEFILTER_CLASS=STOCK),
    "a filter by custom_settings": mistake("dupefilter", "loss", "remove DUPEFILTER_CLASS", "foreign"),
    "a filter by update_settings": mistake("dupefilter", "loss", "remove DUPEFILTER_CLASS", "late", **ADDON),
    "Scrapy's scheduler": mistake("scheduler", "advice", "workers share nothing", SCHEDULER=SCRAPYS),
    "Scrapy's scheduler of a spider": mistake("scheduler", "advice", "remove SCHEDULER from", "local", **ADDON),
    "a copy of scrapy-redis's scheduler": mistake(
        "scheduler", "advice", "may lose requests", SCHEDULER="tests.support.vendored.CopiedScheduler"
    ),
    "scrapy-redis's scheduler": mistake(
        "scheduler", "loss", "requests are lost at Ctrl-C", SCHEDULER="scrapy_redis.scheduler.Scheduler"
    ),
    "own next_requests": mistake("spider", "loss", "iterate over self.fetch_data", "hasty"),
    "a copy of scrapy-redis's spider": mistake("spider", "loss", "derive it from scrapy_bloom.RedisSpider", "copying"),
    "scrapy-redis's items": mistake(
        "item pipelines", "loss", "loses the items", ITEM_PIPELINES={"scrapy_redis.pipelines.RedisPipeline": 1}
    ),
    "the items of a copy of scrapy-redis": mistake(
        "item pipelines", "loss", "loses the items", ITEM_PIPELINES={"tests.support.vendored.CopiedPipeline": 1}
    ),
    "the same with retries": mistake(
        "item pipelines", "advice", "the next run fetches their pages again",
        ITEM_PIPELINES={"scrapy_redis.pipelines.RedisPipeline": 1}, BLOOMFILTER_RETRY_FAILED=True,
    ),
    "stats in Redis": mistake(
        "stats collector", "advice", "blocks the crawl", STATS_CLASS="scrapy_redis.stats.RedisStatsCollector"
    ),
    "stats of a copy of scrapy-redis": mistake(
        "stats collector", "advice", "blocks the crawl", STATS_CLASS="tests.support.vendored.CopiedStats"
    ),
    "flush": mistake("flush", "loss", "each starting worker deletes", SCHEDULER_FLUSH_ON_START=True),
    # The filter.
    "a SET": data("filter", "loss", "scrapy bloom import", lambda client, key: client.sadd(filter_of(key), "a")),
    "foreign data": data("filter", "loss", "is not a filter", lambda client, key: client.set(filter_of(key), "a")),
    "other parameters": State("filter", "loss", "capacity = 1000000 here, 5 in", filled(1, capacity=5), OURS),
    "lost shards": data("filter", "loss", "1 of 1 shard evicted or deleted", without_shards),
    "replaced shards": data("filter", "loss", "1 of 1 shard evicted or deleted", with_new_shards),
    "a lost filter": data("filter", "loss", "there is none, but 3 requests of a crawl", without_filter),
    "EXPIRE": data("filter", "loss", "run PERSIST", expiring),
    "too full": data("filter", "loss", "too full: ", filled(300, capacity=100, expansion=0)),
    # The queue.
    "a list": data("queue", "loss", "is a list, of FifoQueue", lambda client, key: client.lpush(queue_of(key), "a")),
    "a string": State(
        "queue", "loss", "holds a string", lambda client, key: client.set(queue_of(key), "a"),
        others=frozenset({"dead letters", "filter"}),
    ),
    "a lost queue": data("queue", "loss", "at least 1 request lost", without_queue),
    "silent workers": data("queue", "advice", "2 requests that they hold wait for another worker", silent),
    "dead letters": data(
        "dead letters", "loss", "1 request that workers could not read",
        lambda client, key: client.zadd(QueueKeys(queue_of(key)).dead_letters, {"a": 0}),
    ),
    "failed requests": data("dead letters", "advice", "1 failed request kept", failed),
    "pickles for another serializer": State(
        "serializer", "loss", "written with scrapy_redis.picklecompat", queued(pickle.dumps(REQUEST)), {**OURS, **OTHER}
    ),
    "no pickles": State(
        "serializer", "loss", "written with scrapy_bloom.serializer", queued(serializer.dumps(REQUEST)), OURS
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=EACH_KIND)
def own(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A well-configured server."""
    with running(request.param, "--appendonly", "yes") as server:
        yield server


@pytest.fixture
def mine(own: Server) -> Iterator[Any]:
    with own.client() as client:
        yield client


def dumps(client: Any, key: str) -> dict[str, Any]:
    """Return all data of a test; a server may reorder a hash whenever it is read."""
    return {
        name: client.hgetall(name) if client.type(name) in (b"hash", "hash") else client.dump(name)
        for name in client.scan_iter(f"*{key}*")
    }


@pytest.mark.parametrize("name", STATES)
def test_state(name: str, own: Server, mine: Any, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A state is found by one check, with harm and remedy; nothing is changed, and the other checks are made."""
    state = STATES[name]
    arguments, settings = ["--key", filter_of(key), "--queue", queue_of(key)], dict[str, Any]()
    if state.settings is not None:
        keys = {"SCHEDULER_QUEUE_KEY": f"{key}:%(spider)s:requests", "SCHEDULER_DUPEFILTER_KEY": filter_of(key)}
        arguments, settings = [state.spider], {**keys, "REDIS_START_URLS_KEY": f"{key}:%(name)s", **state.settings}
    state.make(mine, key)
    before = dumps(mine, key)
    code, found = examine(own.url, capsys, *arguments, **settings)
    assert dumps(mine, key) == before
    level, text, harm, action = found[state.check]
    assert (level, wrong(found).keys() - state.others) == (state.level, {state.check}), found
    assert state.words in f"{text} {harm} {action}"
    assert harm
    assert action
    assert code == ("loss" in wrong(found).values())
    assert {"server", "permissions", "eviction", "memory", "persistence"} <= found.keys()
    for each in before:
        mine.delete(each)


# Options of a server, and the only finding of a spider with these settings.
ALL_KEYS = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
SERVERS: dict[str, tuple[dict[str, str], State]] = {
    "allkeys-lru": (ALL_KEYS, mistake("eviction", "loss", "evicts pending requests")),
    "volatile-lru and a TTL": (
        {"maxmemory": "100mb", "maxmemory-policy": "volatile-lru"},
        mistake("eviction", "loss", "keys with a TTL", BLOOMFILTER_TTL=3600),
    ),
    "little memory": ({"maxmemory": "4mb"}, mistake("memory", "advice", "MB more", BLOOMFILTER_CAPACITY=10**7)),
    "a small machine": (
        {},
        mistake("memory", "loss", "its kernel kills Redis", BLOOMFILTER_CAPACITY=10**12, BLOOMFILTER_PARTITIONS=200),
    ),
    "nothing is kept": ({"appendonly": "no"}, mistake("persistence", "loss", "loses the queue and the filter")),
    "snapshots": ({"appendonly": "no", "save": "3600 1"}, mistake("persistence", "advice", "since the last snapshot")),
    "appendfsync no": ({"appendfsync": "no"}, mistake("persistence", "advice", "a crash of the machine loses")),
}


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("kind", EACH_KIND)
def test_server(name: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Memory, eviction and persistence are reported where they lose data."""
    options, state = SERVERS[name]
    with running(kind, "--appendonly", "yes") as server, server.client() as client:
        for option, value in options.items():
            client.config_set(option, value)
        code, found = examine(server.url, capsys, "shop", **(state.settings or {}))
    assert (code, wrong(found)) == (state.level == "loss", {state.check: state.level})
    assert state.words in " ".join(found[state.check])


def test_replica(own: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A replica in place of the master is a loss."""
    with running("valkey", "--replicaof", "127.0.0.1", str(own.port)) as replica, replica.client() as client:
        until(lambda: client.info("replication")["master_link_status"] == "up")
        assert examine(replica.url, capsys, "--key", "shop:dupefilter")[1]["role"].level == "loss"


def test_every_check() -> None:
    """Each check has a state for each of its levels, and the page has a row for each."""
    made = {(state.check, state.level) for state in (*STATES.values(), *(state for _, state in SERVERS.values()))}
    elsewhere = {("server", "loss"), ("permissions", "loss"), ("role", "loss"), ("slots", "loss")}
    levels = {"LOSS": "loss", "!": "advice"}
    rows = {(check, levels[level]) for check, level, _ in tables("docs/commands.md", "doctor")[-1]}
    assert rows == made | elsewhere
    assert {check for check, _ in rows} == {
        doctor.name_of(check) for checks in doctor.CHECKS.values() for check in checks
    } - {"versions"}


# The scripts of a crawl's filter, those of its queue and `clear`, and the commands that the package sends beside them.
FILTER = ("block", "filter", "steps", "call", "open", "allocate", "add", "forget", "contains", "info")
QUEUE = ("steps", "queue", "join", "sync", "heartbeat", "leave", "clear")
OF_STARTS = {"LPUSH", "SADD"}  # on the keys of start data
SENT = ({"EVAL", "EVALSHA", "PTTL"}, {"HSCAN", "PING"})


def called_by(scripts: tuple[str, ...]) -> set[str]:
    """Return the commands that scripts call."""
    folder = Path(doctor.__file__).parents[1] / "lua"
    texts = ((folder / f"{name}.lua").read_text() for name in scripts)
    return {name for text in texts for name in re.findall(r"(?:call|in_parts)\('([A-Z]+)'", text)}


def test_commands_of_the_scripts() -> None:
    """The lists have the commands of the scripts, and those of the package."""
    of_filter, of_queue = (called_by(scripts) | sent for scripts, sent in zip((FILTER, QUEUE), SENT, strict=True))
    assert {*FILTER_COMMANDS} == of_filter
    assert {*QUEUE_COMMANDS} == of_queue - of_filter - OF_STARTS
    pops = re.search(r"local pop = .*", (Path(doctor.__file__).parents[1] / "lua" / "sync.lua").read_text())
    of_starts = {*re.findall(r"'([A-Z]+)'", pops[0] if pops else ""), *OF_STARTS, "ZADD"}
    assert {each for commands in START_COMMANDS.values() for each in commands} == of_starts


PLACE = ("--key", "shop:dupefilter", "--queue", "shop:requests")
KEYS = [f"~{name}" for key in ("shop:dupefilter", "shop:requests") for name in (key, f"{{{key}}}:*")]
RIGHTS = [f"+{name.lower()}" for name in dict.fromkeys((*FILTER_COMMANDS, *QUEUE_COMMANDS))]


@pytest.mark.parametrize("own", ["redis", "valkey"], indirect=True)
@pytest.mark.parametrize("missing", [*RIGHTS, *KEYS])
def test_permissions(missing: str, own: Server, mine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Each missing right is found; with the suggested rules, nothing is missing, and no password is shown."""
    url, rights = own.url.replace("//", "//worker:secret@"), [each for each in (*KEYS, *RIGHTS) if each != missing]
    mine.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", *rights)
    said = [command.call("doctor", *PLACE, "--redis-url", url), capsys.readouterr().out]
    if missing in ("+evalsha", "+ping"):  # EVAL alone will do
        return
    rules = re.findall(r"-> as an admin, run ACL SETUSER worker (.*)\n", str(said[1]))
    assert said[0] == 1
    assert mine.keys("*:doctor-*") == []
    assert "secret" not in str(said)
    assert missing[1:].upper() in str(said[1]) or "permission" in str(said[1])
    for rule in rules:
        mine.execute_command("ACL", "SETUSER", "worker", *rule.split())
    assert rules
    assert command.call("doctor", *PLACE, "--redis-url", url) == 0
    assert "has all permissions of a crawl" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "pop", "push"), [("list", "lpop", "lpush"), ("set", "spop", "sadd"), ("zset", "zpopmax", "zadd")]
)
@pytest.mark.parametrize("missing", ["the key", "pop", "push", None])
def test_permissions_for_start_data(
    kind: str, pop: str, push: str, missing: str | None, *, own: Server, mine: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a spider is fed, each missing right to its start data is found, and the suggested rule grants it."""
    starts = {"the key": "~fed:starts", "pop": f"+{pop}", "push": f"+{push}"}
    given = [right for name, right in starts.items() if name != missing]
    keys = [each.replace("shop", "fed") for each in KEYS]
    mine.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">secret", *keys, *RIGHTS, *given)
    url = own.url.replace("//", "//worker:secret@")
    settings = {**OURS, "REDIS_START_URLS_KEY": "fed:starts", f"REDIS_START_URLS_AS_{kind.upper()}": True}
    told = examine(url, capsys, "fed", **settings)[1]["permissions"]
    assert mine.keys("*fed*") == []
    if missing is None or starts[missing] in RIGHTS:
        assert told.level == "ok"
        return
    assert told.level == "loss"
    assert "secret" not in str(told)
    (rule,) = re.findall(r"run ACL SETUSER worker (.*)", told.advice)
    assert set(rule.split()) == set(starts.values())
    mine.execute_command("ACL", "SETUSER", "worker", *rule.split())
    assert examine(url, capsys, "fed", **settings)[1]["permissions"].level == "ok"


class RefusingProxy(proxy.TcpProxy):
    """A proxy that refuses scripts in its own words, or closes the connection without any."""

    def __init__(self, upstream: int, words: str) -> None:
        self.words = words
        super().__init__(upstream)

    def serve(self, client: socket.socket, server: socket.socket) -> None:
        """Forward commands one by one."""
        while command := client.recv(proxy.CHUNK):
            if b"\r\nEVAL" not in command:
                server.sendall(command)
                client.sendall(server.recv(proxy.CHUNK))
            elif self.words:
                client.sendall(f"-{self.words}\r\n".encode())
            else:
                return


@pytest.mark.parametrize("words", ["ERR unknown command", "ERR unsupported command", "ERR it is not allowed", ""])
def test_scripts_refused(words: str, own: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """A server or a proxy without scripts is a loss, and its words do not matter."""
    with proxy.running(RefusingProxy(own.port, words)) as between:
        code, found = examine(between.url, capsys, "shop", **OURS)
    assert (code, wrong(found)) == (1, {"permissions": "loss"})
    assert "the server refuses scripts" in found["permissions"].text


def test_computed_keys_refused() -> None:
    """The script that tries commands fails on a server that allows the keys of its call alone, as Dragonfly does.

    There is no such server here: its answer is made in Lua.
    """
    lua = LuaRuntime()
    run = lua.eval(
        "function(text) KEYS, ARGV = {'shop'}, {'TYPE'}; redis = {pcall = function(_, key) return"
        " {err = key and key ~= 'shop' and 'ERR script tried accessing undeclared key' or"
        " 'ERR wrong number of arguments'} end}; return loadstring(text)() end"
    )
    assert run(Script("trial").text)["err"] == "ERR script tried accessing undeclared key"


@pytest.mark.parametrize("missing", ["hincrby", "getrange", "zadd"])
def test_unknown_command(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that a server does not have is named."""
    with running("redis", "--appendonly", "yes", "--rename-command", missing, "") as server:
        code, found = examine(server.url, capsys, *PLACE)
    assert (code, found["permissions"].text) == (1, f"the server does not know {missing.upper()}")


def test_on_a_cluster(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each master of a cluster is asked, and a filter in another slot than its queue is refused."""
    with running_cluster(2, "--appendonly", "yes") as nodes, cluster_client(nodes[0]) as client:
        url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
        settings = {**OURS, "SCHEDULER_QUEUE_KEY": f"{key}:%(spider)s"}
        BloomFilter(client, f"{{{key}:shop}}:dupefilter", fingerprint="scrapy-redis").add("a")
        code, found = examine(url, capsys, "shop", **settings)
        assert (code, wrong(found), found["slots"].level) == (0, {}, "ok")
        elsewhere = {**settings, "SCHEDULER_DUPEFILTER_KEY": f"{key}:%(spider)s:dupefilter"}
        code, found = examine(url, capsys, "shop", **elsewhere)
        assert (code, wrong(found)) == (1, {"slots": "loss"})
        assert f"set SCHEDULER_DUPEFILTER_KEY = '{{{key}:shop}}:dupefilter'" in found["slots"].text
        client.config_set("appendonly", "no", target_nodes=client.get_node(port=nodes[1].port, host="127.0.0.1"))
        code, found = examine(url, capsys, "shop", **settings)
        assert (code, wrong(found)) == (1, {"persistence": "loss"})
        assert found["persistence"].text == f"127.0.0.1:{nodes[1].port}: none"


@pytest.mark.parametrize("own", ["valkey"], indirect=True)
def test_an_address_that_cannot_be_used(own: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """An invalid URL, and a refused database or password, are findings, behind those of the settings."""
    cases = {
        "redis://:secret@[": "REDIS_URL cannot be read",
        f"{own.url}/99": "out of range",
        own.url.replace("//", "//nobody:secret@"): "check the user name and the password",
    }
    for url, text in cases.items():
        code, found = examine(url, capsys, "shop", **OURS)
        assert (code, wrong(found)) == (1, {"server": "loss"}), (url, found)
        assert text in found["server"].text
        assert "secret" not in str(found)


@pytest.mark.parametrize("own", ["valkey"], indirect=True)
def test_for_people(own: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """The text has the four parts of each finding; only losses change the exit code, unless advice is to count."""
    lines = {
        "!     stats collector  STATS_CLASS = 'scrapy_redis.stats.RedisStatsCollector'",
        f"{'':21}  => it calls Redis for each stat of a page, which blocks the crawl, and misses those of an outage",
        f"{'':21}  -> remove it; `scrapy bloom info --json` has the crawl's numbers",
    }
    stats = {"STATS_CLASS": "scrapy_redis.stats.RedisStatsCollector"}
    cases: list[tuple[dict[str, Any], int, int]] = [
        (OURS, 0, 0),
        ({**OURS, "SCHEDULER_FLUSH_ON_START": True}, 1, 1),
        ({**OURS, **stats}, 0, 1),
    ]
    for settings, by_default, by_advice in cases:
        given = {"SPIDER_MODULES": [SPIDERS], "REDIS_URL": own.url, **settings}
        assert command.call("doctor", "shop", **given) == by_default
        said = capsys.readouterr().out
        assert command.call("doctor", "shop", "--fail-on", "advice", **given) == by_advice
        capsys.readouterr()
    assert said.startswith(f"shop:dupefilter on 127.0.0.1:{own.port}, database 0\n")
    assert lines <= {*said.splitlines()}


@pytest.mark.parametrize("own", ["valkey"], indirect=True)
def test_barely_too_full(own: Server, mine: Any, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A filter is too full exactly when its error rate exceeds the allowed one."""
    bloom = filled(100, capacity=100, error_rate=0.01, expansion=0)(mine, key)
    place, number = ("--key", filter_of(key)), 100
    assert examine(own.url, capsys, *place)[1]["filter"].level == "ok"
    while bloom.info().current_error_rate <= 0.01:
        bloom.add(f"{number}")
        number += 1
    assert bloom.info().current_error_rate < 0.015
    assert examine(own.url, capsys, *place)[1]["filter"].level == "loss"
