"""Find settings and faults that lose pages, their cost, and the remedy. Nothing is changed.

The exit code is 1 if a crawl would lose something; with `--fail-on advice` also if there is advice.

for example:
  scrapy bloom doctor news
  scrapy bloom doctor news --json
  scrapy bloom doctor news --fail-on advice
  scrapy bloom doctor --key news:dupefilter --queue news:requests --redis-url redis://localhost:6379
"""

import argparse
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from importlib import import_module
from importlib.metadata import version
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar

from redis import exceptions
from scrapy.core.scheduler import Scheduler as ScrapyScheduler
from scrapy.settings import Settings
from scrapy.utils.misc import load_object
from scrapy_redis import defaults, pipelines
from scrapy_redis.scheduler import Scheduler
from scrapy_redis.spiders import RedisMixin
from scrapy_redis.stats import RedisStatsCollector

from scrapy_bloom.cli import console
from scrapy_bloom.cli.target import CrawlTarget, Place, add_target_options
from scrapy_bloom.codec import misread, order_of
from scrapy_bloom.components import way_to, without_effect
from scrapy_bloom.errors import BloomError, RefusedError, UnavailableError
from scrapy_bloom.pipelines import RedisPipeline
from scrapy_bloom.queue.inspection import first_request
from scrapy_bloom.queue.keys import FilterKey
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.scheduler import BloomScheduler
from scrapy_bloom.settings import PICKLE, RETRY_FAILED, BloomSettings, is_a, is_or_copies, load_setting
from scrapy_bloom.start_data import bypasses_fetch_data, start_key_of
from scrapy_bloom.text import as_error_rate, as_number, as_size, as_text, plural
from scrapy_bloom.transport import failures
from scrapy_bloom.transport.connect import evicts, is_cluster, policy, tagged
from scrapy_bloom.transport.scripts import FILTER, Script

T = TypeVar("T")

# The levels by weight: the sign and the verdict of each.
LEVELS = {
    "ok": ("ok  ", "No losses found."),
    "advice": ("!   ", "No losses found. See the advice behind each ! above."),
    "loss": ("LOSS", "A crawl would lose pages, fetch them twice or not start: see each LOSS above."),
}
_MISSING, _TRIAL = Script("missing", *FILTER), Script("trial")
_NO_START = "no crawl would start"


class Finding(NamedTuple):
    """A finding: its level, the fact, its cost, and the remedy."""

    level: str
    text: str
    harm: str = ""
    advice: str = ""


# The findings of a check, and at last the text for a crawl without any.
Findings = Iterator[Finding | str]
advice, loss = partial(Finding, "advice"), partial(Finding, "loss")


def refused(error: object, action: str = "change it as the text says") -> Finding:
    """Return the finding of a crawl that is refused at its start."""
    return loss(str(error), _NO_START, action)


class Node:
    """The server, or a master of a cluster; texts about that begin with `where`."""

    def __init__(self, client: Any, node: Any = None) -> None:
        self.where, self._client = f"{node.name}: " if node else "", client
        self._address = {"target_nodes": node} if node else {}

    @cached_property
    def info(self) -> dict[str, Any]:
        """INFO, with the options of persistence, unless the server is managed and hides its CONFIG."""
        info = dict(self._client.info(**self._address))
        for option in ("save", "appendfsync"):
            with suppress(exceptions.ResponseError):
                info.update(self._client.config_get(option, **self._address))
        return info


class Crawl:
    """The examined crawl. A value is None, or empty, if settings and data do not determine it."""

    def __init__(self, target: CrawlTarget) -> None:
        self.target, self.settings, self.spider = target, target.settings, target.crawler.spidercls
        self.scheduler: Any = or_none(lambda: target.scheduler)
        self.shares, self.leases = is_a(self.scheduler, Scheduler), is_a(self.scheduler, BloomScheduler)
        self.is_fed = self.leases and is_a(self.spider, RedisMixin)
        self.retries = or_none(lambda: self.settings.getbool(RETRY_FAILED))

    @cached_property
    def nodes(self) -> list[Node]:
        """The server, or all masters of the cluster."""
        client = self.target.client
        return [Node(client, each) for each in client.get_primaries()] if is_cluster(client) else [Node(client)]

    @cached_property
    def partitions(self) -> list[Place]:
        """The partitions, unless the keys are unknown: under Scrapy's scheduler each crawl has its own."""
        return or_none(lambda: self.target.partitions) or []

    def filters_on(self, node: Node) -> Iterator[tuple[Any, bool]]:
        """Yield the parameters of each filter on a node, stored or by the settings, and whether it is still to come."""
        for part in self.partitions:
            if not node.where or f"{part.client.get_node_from_key(part.key).name}: " == node.where:
                found = or_none(part.read_filter)
                if parameters := found.parameters if found else or_none(self.target.parameters):
                    yield parameters, found is None or found.is_empty

    @property
    def starts(self) -> list[tuple[str, tuple[str, ...], str]]:
        """The key of the start data, the commands of its type, and the queue, if a spider is fed."""
        if not (self.is_fed and self.partitions):
            return []
        key = or_none(lambda: start_key_of(self.settings, self.target.spider))
        given = (kind for kind in ("set", "zset") if self.settings.getbool(f"REDIS_START_URLS_AS_{kind.upper()}"))
        return [(key, failures.START_COMMANDS[next(given, "list")], str(self.partitions[0].queue))] if key else []

    def show(self, setting: str) -> str:
        """Return a setting with its value."""
        return f"{setting} = {self.settings[setting]!r}"

    def subjects(self, kind: str) -> list[Any]:
        """Return the subjects of this kind."""
        if kind in ("nodes", "partitions"):
            return self.nodes if kind == "nodes" else self.partitions
        return [self] * (kind != "spider" or self.target.has_spider)


def or_none(read: Callable[[], T]) -> T | None:
    """Return the result, or None if a setting or stored data is invalid, which one of the checks reports."""
    try:
        return read()
    except UnavailableError:
        raise
    except (BloomError, ImportError, NameError, AttributeError, TypeError, ValueError):
        return None


# Checks of the settings.


def versions(_: Crawl) -> Findings:
    """Report the versions of the packages."""
    yield ", ".join(f"{package} {version(package)}" for package in ("scrapy-bloom", "Scrapy", "scrapy-redis", "redis"))


def settings(crawl: Crawl) -> Findings:
    """Report all refused settings, where a crawl would report the first one only."""
    given, spider = crawl.settings, crawl.target.spider
    reads: list[Callable[[], object]] = [lambda: crawl.target.scheduler, lambda: BloomSettings.from_settings(given)]
    reads += [lambda: crawl.scheduler.check_settings(given)] * crawl.leases
    reads += [lambda: FilterKey.of_workers(given, spider, is_clustered=False)] * crawl.shares
    reads += [lambda: FilterKey.of_process(given, spider)] * (not crawl.shares)
    reads += [lambda: start_key_of(given, spider)] * crawl.is_fed
    texts = [str(crawl.target.refusal)] if crawl.target.refusal else []
    for read in reads if crawl.target.has_spider else ():
        try:
            read()
        except BloomError as error:
            texts.append(str(error))
    yield from map(refused, dict.fromkeys(texts))
    for text, instead in or_none(lambda: without_effect(given)) or () if crawl.leases else ():
        yield advice(f"{text} has no effect under BloomScheduler", instead, "remove it")
    yield "no setting is refused"


def dupefilter(crawl: Crawl) -> Findings:
    """Check the DUPEFILTER_CLASS."""
    text = crawl.show("DUPEFILTER_CLASS")
    if crawl.target.filter_class is None:
        yield loss(text, "the crawl does not use the filter", crawl.target.way_to_filter)
    yield text


def scheduler(crawl: Crawl) -> Findings:
    """Check the SCHEDULER."""
    text = crawl.show("SCHEDULER")
    action = way_to("scrapy_bloom.BloomScheduler", "SCHEDULER", crawl.scheduler)
    if crawl.scheduler and not crawl.shares:
        harm = "it may lose requests as scrapy-redis's does; the log of a crawl says whether it uses the filter"
        if ScrapyScheduler in crawl.scheduler.__mro__:  # to issubclass every scheduler is one
            harm = "workers share nothing, each process crawls by itself"
        yield advice(text, harm, action)
    elif crawl.scheduler and not crawl.leases:
        harm = "requests are lost at Ctrl-C, with a lost reply, and when Redis is unreachable or a worker dies"
        yield loss(text, harm, f"{action}; or keep it with these losses, which are scrapy-redis's")
    yield text


def spider(crawl: Crawl) -> Findings:
    """Check that no start URL is popped."""
    path = f"{crawl.spider.__module__}.{crawl.spider.__qualname__}"
    if crawl.leases and is_a(crawl.spider, RedisMixin) and bypasses_fetch_data(crawl.spider):
        action = "iterate over self.fetch_data(self.redis_key, self.redis_batch_size) in its next_requests"
        yield loss(f"{path} pops its start URLs", "a dead worker loses the popped ones", action)
    elif crawl.leases and not crawl.is_fed and is_or_copies(crawl.spider, RedisMixin, "next_requests"):
        action = "derive it from scrapy_bloom.RedisSpider or RedisCrawlSpider"
        harm = "a dead worker loses the start URLs that it has popped"
        yield loss(f"{path} derives from a copy of scrapy-redis's RedisMixin", harm, action)
    yield path


def item_pipelines(crawl: Crawl) -> Findings:
    """Check that no item pipeline loses items in an outage."""
    given = or_none(lambda: crawl.settings.getdict("ITEM_PIPELINES")) or {}
    level, then = (advice, ": the next run fetches their pages again") if crawl.retries else (loss, "")
    for path in [each for each, order in given.items() if order is not None]:
        kind = or_none(partial(load_object, path))
        if is_or_copies(kind, pipelines.RedisPipeline, "_process_item") and not is_a(kind, RedisPipeline):
            action = "set 'scrapy_bloom.RedisPipeline', or derive the class from it"
            yield level(f"ITEM_PIPELINES: {path}", f"it loses the items of an outage of Redis{then}", action)
    yield "none of scrapy-redis's, which lose the items of an outage"


def stats_collector(crawl: Crawl) -> Findings:
    """Check that the stats, which Scrapy counts for each page, need no server."""
    text, action = (crawl.show("STATS_CLASS"), "remove it; `scrapy bloom info --json` has the crawl's numbers")
    if is_or_copies(or_none(lambda: load_object(crawl.settings["STATS_CLASS"])), RedisStatsCollector, "inc_value"):
        harm = "it calls Redis for each stat of a page, which blocks the crawl, and misses those of an outage"
        yield advice(text, harm, action)
    yield text


def flush(crawl: Crawl) -> Findings:
    """Check that no starting worker deletes the data of others."""
    if crawl.shares and or_none(lambda: crawl.settings.getbool("SCHEDULER_FLUSH_ON_START")):
        harm = "each starting worker deletes queue and filter, with the requests of other workers"
        action = "remove it; to start over, run `scrapy bloom clear` before the first worker starts"
        yield loss("SCHEDULER_FLUSH_ON_START = True", harm, action)


# Checks of the server.


def server(crawl: Crawl) -> Findings:
    """Check that the server answers. The client of a cluster has asked it already."""
    with suppress(exceptions.NoPermissionError):  # which another check covers
        if not is_cluster(crawl.target.client):
            crawl.target.client.ping()
    yield crawl.target.server


def permissions(crawl: Crawl) -> Findings:
    """Execute a script, which tries all commands of a crawl and changes nothing."""
    client = crawl.target.client
    user = client.get_connection_kwargs().get("username") or "default"
    parts, is_refused = crawl.partitions, False
    tried = [(key, failures.FILTER_COMMANDS, key) for key in [part.key for part in parts] or ["scrapy-bloom"]]
    tried += [(part.queue, failures.QUEUE_COMMANDS, part.queue) for part in parts if part.queue]
    for key, commands, place in [*tried, *crawl.starts]:
        if is_refused and key != place:  # start data need the rights of a queue, too
            return
        denied, unknown = list[bytes](), list[bytes]()
        words = [each for each in commands if not each.startswith("EVAL")]
        try:
            client.eval("return 0", 1, place)  # the next one may be cached
            denied, unknown = _TRIAL.call(client, [f"{tagged(place)}:doctor-{token_hex(8)}"], words)
            client.type(key)
        except exceptions.NoPermissionError as error:
            denied = [failures.describe(error).encode()]
        except failures.FAULTS as error:
            client.type(key)  # in an outage this fails as well; a proxy may close the connection at a script
            action = failures.advice_for(error)
            if action in (None, failures.UNKNOWN):
                action = "use a server, and a proxy, that execute Lua scripts: EVAL and EVALSHA"
            yield refused(f"the server refuses scripts: {failures.describe(error)}", str(action))
            return
        if denied:
            rights = " ".join(f"+{each.lower()}" for each in words)
            rule = f"~{key} ~{tagged(key)}:* +eval +evalsha {rights}" if key == place else f"~{key} {rights}"
            text = f"the user {user!r} lacks permissions: {', '.join(map(as_text, denied))}"
            yield refused(text, f"as an admin, run ACL SETUSER {user} {rule}")
        if unknown:
            text = f"the server does not know {', '.join(map(as_text, unknown))}"
            yield refused(text, "use Redis 6.2 or newer, or Valkey")
        is_refused = is_refused or bool(denied or unknown)
    yield f"scripts run, and the user {user!r} has all permissions of a crawl"


def role(_: Crawl, node: Node) -> Findings:
    """Report the version, and check that the server takes writes."""
    number = node.info.get("valkey_version") or node.info.get("redis_version", "unknown")
    if node.info.get("role") == "slave":
        yield loss("the server is a replica", "it takes no writes: a crawl waits", "set REDIS_URL to the master")
    yield f"a master, version {number}"


def eviction(crawl: Crawl, node: Node) -> Findings:
    """Check that a full server evicts neither the filter nor the queue."""
    text, harm = f"maxmemory-policy is {policy(node.info)}", ""
    if evicts(node.info, expires=False):
        harm = "a full server evicts pending requests, which are lost, or the filter: pages are fetched again"
    elif evicts(node.info, expires=True) and any(parameters.ttl for parameters, _ in crawl.filters_on(node)):
        harm = "a full server evicts keys with a TTL, as BLOOMFILTER_TTL sets one: pages are fetched again"
    if harm:
        yield loss(text, harm, "set maxmemory-policy noeviction")
    yield text if node.info.get("maxmemory") else f"none: maxmemory is not set (policy {policy(node.info)})"


def memory(crawl: Crawl, node: Node) -> Findings:
    """Check that a new filter has room on the node of its key."""
    limit, total, used = (int(node.info.get(each, 0)) for each in ("maxmemory", "total_system_memory", "used_memory"))
    needed = sum(parameters.sizes()[0].memory_bytes for parameters, is_new in crawl.filters_on(node) if is_new)
    text, action = f"{as_size(used)} used", "set a smaller BLOOMFILTER_CAPACITY"
    text += f"; the filter needs {as_size(needed)} more" if needed else ""
    text += f"; maxmemory is {as_size(limit)}" if limit else "; there is no maxmemory"
    if limit and used + needed > limit:
        yield advice(text, "without room a crawl waits", f"raise maxmemory, or {action}")
    elif total and used + needed > total:
        harm = "the machine swaps, or its kernel kills Redis"
        yield loss(f"{text}; the machine has {as_size(total)}", harm, f"use a larger machine, or {action}")
    yield text


def persistence(_: Crawl, node: Node) -> Findings:
    """Check how much a restart of the server loses."""
    info, fsync, action = node.info, node.info.get("appendfsync", "as its server hides it"), "set appendonly yes"
    file, status = ("AOF", "aof_last_write") if info.get("aof_enabled") else ("snapshots", "rdb_last_bgsave")
    if info.get(f"{status}_status", "ok") != "ok":
        yield loss(f"the server cannot write its {file}", "a restart loses the latest writes", "read its log")
    elif file == "AOF" and fsync == "no":
        harm = "a crash of the machine loses the writes that the kernel still buffers, half a minute or more"
        yield advice("AOF with appendfsync no", harm, "set appendfsync everysec")
    elif file == "AOF":
        yield f"AOF with appendfsync {fsync}: a restart loses {'nothing' if fsync == 'always' else 'a second at most'}"
    elif "rdb_last_save_time" in info and info.get("save", True):  # if a server hides it, it is assumed to save
        yield advice("snapshots", "a restart after a crash loses all writes since the last snapshot", action)
    else:
        yield loss("none", "a restart of the server loses the queue and the filter", action)


# Checks of the data of each partition.


def slots(_: Crawl, part: Place) -> Findings:
    """Check that a cluster has the filter in the slot of the queue: a RequestQueue refuses others."""
    if part.queue and is_cluster(part.client) and RequestQueue(part.client, part.queue, part.key):
        yield "the filter and the queue are in one slot, and so on one node"


def filter_(crawl: Crawl, part: Place) -> Findings:
    """Check the stored filter; one of other parameters, and foreign data, are refused."""
    if (found := part.read_filter()) is None:
        state = part.inspect_queue(part.queue) if part.queue else None
        if state and state.crawl and (number := state.waiting + state.leased) and part.read_filter() is None:
            text = f"there is none, but {plural(number, 'request')} of a crawl at {state.key}"
            yield loss(text, "pages are fetched again", "unless you have cleared it, see eviction and persistence")
        yield "none yet: the first worker creates it"
        return
    info = found.info
    if crawl.target.has_spider and (wanted := or_none(crawl.target.parameters)):
        wanted.verify(part.key, found.parameters.to_json())
    if lost := info.lost_shards + int(_MISSING.call(part.client, [found.key], [found.id])):
        text = f"{lost:,} of {plural(info.shards, 'shard')} evicted or deleted"
        yield loss(text, "their pages are fetched again", "see eviction; workers go on with empty ones")
    if found.ttl is not None and not found.parameters.ttl and not found.is_empty:
        action = f"run PERSIST {found.key}, and set BLOOMFILTER_TTL in place of that EXPIRE"
        yield loss(f"it expires in {found.ttl:,.0f} s, by somebody's EXPIRE", "then pages are fetched again", action)
    text = f"{info.count:,} of {info.capacity:,} {found.parameters.noun}s, "
    text += f"error rate {as_error_rate(info.current_error_rate)}"
    if info.current_error_rate > info.error_rate:
        action = "start over with a larger BLOOMFILTER_CAPACITY, or with a BLOOMFILTER_EXPANSION that lets it grow"
        yield loss(f"too full: {text}, allowed {as_number(info.error_rate)}", "new pages are missed", action)
    yield text


def queue(crawl: Crawl, part: Place) -> Findings:
    """Check the queue, and that it has lost no requests."""
    if part.queue and (state := part.inspect_queue(part.queue)):
        named = or_none(lambda: load_setting(crawl.settings, "SCHEDULER_QUEUE_CLASS", defaults.SCHEDULER_QUEUE_CLASS))
        if state.kind == "list" and not order_of(named) and (crawl.leases or not crawl.target.has_spider):
            action = "set the SCHEDULER_QUEUE_CLASS that has written it; the start of a crawl makes it a sorted set"
            yield refused(f"{state.key} is a list, of FifoQueue or LifoQueue, but workers need a sorted set", action)
        if state.has_losses:
            text = f"{state.key} was evicted or deleted, or the server lost data: {state.loss} lost"
            action = "start over, with SCHEDULER_FLUSH_ON_START = True for the first worker"
            yield loss(text, "the filter takes them for duplicates: their pages are missed", action)
        if silent := [each for each in state.workers if each.is_silent]:
            names, number = ", ".join(each.name for each in silent), sum(each.holds for each in silent)
            harm = f"{plural(number, 'request')} that they hold wait for another worker"
            yield advice(f"silent for longer than the lease: {names}", harm, "start a worker: it requeues them")
        alive = plural(len(state.workers) - len(silent), "live worker")
        yield f"{state.key}: {plural(state.waiting, 'pending request')}, {alive}"


def dead_letters(crawl: Crawl, part: Place) -> Findings:
    """Check for requests and start URLs that no worker fetches any more."""
    state, harm = part.inspect_queue(part.queue) if part.queue else None, "their pages are missing"
    if state and state.dead_letters:
        action = "correct the cause that the ERROR of each names in the log, and run `scrapy bloom requeue`"
        yield loss(f"{plural(state.dead_letters, 'request')} that workers could not read, or died with", harm, action)
    if state and state.failed and not crawl.retries:
        action = "crawl with BLOOMFILTER_RETRY_FAILED = True, or run `scrapy bloom requeue --failed`"
        yield advice(f"{plural(state.failed, 'failed request')} kept", harm, action)
    yield "none"


def serializer(crawl: Crawl, part: Place) -> Findings:
    """Check that the SCHEDULER_SERIALIZER reads the first pending request."""
    if crawl.target.has_spider and crawl.shares and part.queue:
        setting = crawl.settings["SCHEDULER_SERIALIZER"] or PICKLE
        module = or_none(partial(import_module, setting)) if isinstance(setting, str) else setting
        if (first := first_request(part.client, part.queue)) and (writer := misread(first, module)):
            text = f"the pending requests were written with {writer}, but this crawl reads {setting}"
            yield refused(text, f"set SCHEDULER_SERIALIZER = {writer!r} until they are crawled, or start over")
        yield f"{setting}"


# The checks by their subject, in this order; each has the name of its function.
CHECKS: dict[str, tuple[Callable[..., Findings], ...]] = {
    "crawl": (versions, settings),
    "spider": (dupefilter, scheduler, spider, item_pipelines, stats_collector, flush),
    "server": (server, permissions),
    "nodes": (role, eviction, memory, persistence),
    "partitions": (slots, filter_, queue, dead_letters, serializer),
}


def name_of(check: Callable[..., Findings]) -> str:
    """Return the name of a check."""
    return check.__name__.replace("_", " ").strip()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    failing = "the lowest level that makes the exit code 1 (default %(default)s)"
    parser.add_argument("--fail-on", choices=("loss", "advice"), default="loss", help=failing)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    crawl, weights = Crawl(CrawlTarget(options, settings, may_be_refused=True)), [*LEVELS]
    findings = [*examine(crawl)]
    key, server = (or_none(partial(getattr, crawl.target, each)) for each in ("key", "server"))
    lines = [f"{key or f'the spider {crawl.spider.name!r}'} on {server or 'an unknown server'}", ""]
    for check, (level, text, harm, action) in findings:
        lines.append(f"{LEVELS[level][0]}  {check:<15}  {text}")
        lines += [f"{'':21}  {sign} {part}" for sign, part in (("=>", harm), ("->", action)) if part]
    worst = max((finding.level for _, finding in findings), key=weights.index)
    told = [{"check": check, **finding._asdict()} for check, finding in findings]
    report, text = {"server": server, "key": key, "findings": told}, "\n".join([*lines, "", LEVELS[worst][1]])
    fails = weights.index(worst) >= weights.index(options.fail_on)
    return console.report(options, report, text, answer=not fails)


def examine(crawl: Crawl) -> Iterator[tuple[str, Finding]]:
    """Run all checks, or up to a server that no crawl can use; yield each finding with the name of its check.

    One text stands for all subjects without a finding.
    """
    for kind, check in ((kind, check) for kind, checks in CHECKS.items() for check in checks):
        found = [each for subject in crawl.subjects(kind) for each in _findings(crawl, check, subject)]
        bad = [each for each in found if each.level != "ok"]
        yield from ((name_of(check), each) for each in bad or found[:1])
        if kind == "server" and any(each.harm == _NO_START for each in bad):
            return


def _findings(crawl: Crawl, check: Callable[..., Findings], subject: Any) -> list[Finding]:
    """Return the findings of a check of one subject, or the one of its error, or its text."""
    try:
        told = crawl.target.retry(lambda: [*check(crawl, *[subject] * (subject is not crawl))])
    except RefusedError as error:
        told = [refused(error) if check is server else _unseen(error, "run it as a user with the permission")]
    except UnavailableError as error:
        if not is_cluster(crawl.target.client):
            raise
        told = [_unseen(error, "run it again when all nodes of the cluster answer")._replace(level="loss")]
    except BloomError as error:
        told = [refused(error)]
    where, findings = getattr(subject, "where", ""), [each for each in told if isinstance(each, Finding)]
    findings = findings or [Finding("ok", text) for text in told if isinstance(text, str)]
    return [each._replace(text=where + each.text) for each in findings]


def _unseen(error: Exception, action: str) -> Finding:
    cause = error.__context__ if isinstance(error.__context__, failures.FAULTS) else error
    return advice(f"not checked: {failures.describe(cause)}", "a loss may be there, unseen", action)
