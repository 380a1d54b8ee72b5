"""Find settings and faults that lose pages, with advice. Nothing is changed.

The exit code is 1 if a crawl would lose something; with `--fail-on advice` also if there is advice.

for example:
  scrapy bloom doctor news
  scrapy bloom doctor news --json
  scrapy bloom doctor news --fail-on advice
  scrapy bloom doctor --key news:dupefilter --queue news:requests --redis-url redis://localhost:6379
"""

import argparse
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

from redis import exceptions
from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES, Settings
from scrapy.utils.misc import load_object
from scrapy_redis.pipelines import RedisPipeline
from scrapy_redis.queue import PriorityQueue
from scrapy_redis.scheduler import Scheduler
from scrapy_redis.spiders import RedisMixin

from scrapy_bloom.cli import _console, _examined
from scrapy_bloom.cli._examined import Crawl, Finding, Findings, Level, advice, in_partitions, known, loss, refused
from scrapy_bloom.cli._target import UNREADABLE, add_target_options, spider_loader
from scrapy_bloom.cli.plan import make_plan
from scrapy_bloom.codec import misread
from scrapy_bloom.dupefilter import require_request_seen
from scrapy_bloom.errors import BloomError, ConfigError, MismatchError, RefusedError, UnavailableError, WrongTypeError
from scrapy_bloom.filter.info import StoredFilter, read_filter
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.inspection import QueueState, first_request
from scrapy_bloom.queue.keys import FilterKey, QueueKeys, queue_of, tagged
from scrapy_bloom.queue.request_queue import RequestQueue
from scrapy_bloom.queue.start_urls import inspect
from scrapy_bloom.settings import PICKLE, SERIALIZER, BloomSettings
from scrapy_bloom.spiders import bypasses_fetch_data
from scrapy_bloom.text import as_error_rate, as_expected_pages, as_number, as_size, as_text, plural
from scrapy_bloom.transport.connect import is_cluster
from scrapy_bloom.transport.failures import describe
from scrapy_bloom.transport.scripts import Script

_WAITING_PIPELINE: type = load_object("scrapy_bloom.RedisPipeline")
_MISSING, _LEASES = Script("missing", "filter"), Script("leases")
_PACKAGES = ("scrapy-bloom", "Scrapy", "scrapy-redis", "redis")
_LOCAL = ("localhost", "127.", "::1", "unix:")
_FLUSH = "SCHEDULER_FLUSH_ON_START = True"
_START_OVER = f"start over, with {_FLUSH} for the first worker"
# A callback may block a worker for some seconds.
_SHORT_LEASE = 10.0
# A busy server may need the minimum for a reply; scrapy-redis's default is the maximum.
_SOCKET = 0.5, 30.0
# Pages per second that a worker is expected to fetch; layers that a check may read; names that a finding lists.
_PACE, _LAYERS, _EXAMPLES = 50, 5, 3
# The sign and the verdict of each level.
_SIGNS = {Level.OK: "ok  ", Level.ADVICE: "!   ", Level.LOSS: "LOSS"}
_VERDICTS = {
    Level.OK: "No losses found.",
    Level.ADVICE: "No losses found. See the advice behind each ! above.",
    Level.LOSS: "A crawl would lose pages, fetch them twice or not start: see each LOSS above.",
}


def versions(_: Crawl) -> Findings:
    """Report the versions of the packages."""
    yield ", ".join(f"{package} {version(package)}" for package in _PACKAGES)


def settings(crawl: Crawl) -> Findings:
    """Report all refused settings, where a crawl would report the first one only."""
    given, spider = crawl.settings, crawl.spider
    texts = [str(crawl.refusal)] if crawl.refusal else []
    reads: list[Callable[[], object]] = [lambda: crawl.start_key]
    if crawl.uses_filter:
        reads.append(lambda: FilterParameters.of(BloomSettings.from_settings(given)))
        if not crawl.leases:
            reads.append(lambda: BloomSettings.from_settings(given).refuse_queue_options())
        reads.append(lambda: require_request_seen(load_object(given["DUPEFILTER_CLASS"])))
    if crawl.has_spider and crawl.leases and crawl.kind("DUPEFILTER_CLASS") is not None:
        reads.append(lambda: load_object(given["SCHEDULER"]).check_settings(given))
    if crawl.has_spider and crawl.shares:
        reads.append(lambda: FilterKey.of_workers(given, spider, is_clustered=False).require_keeping())
    elif crawl.has_spider:
        reads.append(lambda: FilterKey.of_process(given, spider).require_keeping())
    for read in reads:
        try:
            read()
        except (BloomError, *UNREADABLE) as error:
            texts.append(describe(error))
    yield from map(refused, dict.fromkeys(texts))
    yield "no setting is refused"


def dupefilter(crawl: Crawl) -> Findings:
    """Check the DUPEFILTER_CLASS."""
    text = f"DUPEFILTER_CLASS = {_name_of(crawl, 'DUPEFILTER_CLASS')}"
    if crawl.kind("DUPEFILTER_CLASS") is None:
        yield refused(f"{text} cannot be imported", crawl.remedy_for_dupefilter())
    elif not crawl.uses_filter:
        yield loss(f"{text}: another package's class, which does not use the filter", crawl.remedy_for_dupefilter())
    yield text


def scheduler(crawl: Crawl) -> Findings:
    """Check the SCHEDULER."""
    text, remedy = f"SCHEDULER = {_name_of(crawl, 'SCHEDULER')}", "set SCHEDULER = 'scrapy_bloom.BloomScheduler'"
    if place := crawl.place_of("SCHEDULER"):
        remedy += f", in place of the one in {place}"
    if crawl.kind("SCHEDULER") is None:
        yield refused(f"{text} cannot be imported", remedy)
    elif not crawl.shares:
        yield advice(f"{text}: workers share nothing, each process crawls by itself", remedy)
    elif not crawl.leases:
        harm = "loses requests at Ctrl-C, with a lost reply, and when Redis is unreachable or a worker dies"
        yield loss(f"{text}: {harm}", remedy)
    yield text


def spider(crawl: Crawl) -> Findings:
    """Check that no start URL is popped."""
    kind, harm = crawl.crawler.spidercls, "a dead worker loses those it has popped"
    if not crawl.leases or not issubclass(kind, RedisMixin):
        pass
    elif not issubclass(kind, _examined.LEASED_START_URLS):
        text = f"{_path(kind)} pops its start URLs, like scrapy-redis's RedisSpider: {harm}"
        yield loss(text, "import RedisSpider or RedisCrawlSpider from scrapy_bloom")
    elif bypasses_fetch_data(kind):
        text = f"{_path(kind)} pops its start URLs by its own next_requests, without fetch_data: {harm}"
        yield loss(text, "iterate over self.fetch_data(self.redis_key, self.redis_batch_size)")
    yield _path(kind)


def item_pipelines(crawl: Crawl) -> Findings:
    """Check that no item pipeline loses items in an outage."""
    found = known(lambda: crawl.settings.getdict("ITEM_PIPELINES")) or {}
    kinds = [known(partial(load_object, each)) for each, order in found.items() if order is not None]
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, RedisPipeline) and not issubclass(kind, _WAITING_PIPELINE):
            text = f"ITEM_PIPELINES: {_path(kind)} loses the items of an outage of Redis"
            remedy = "set 'scrapy_bloom.RedisPipeline', or derive the class from it"
            if crawl.config and crawl.config.retry_failed:
                yield advice(f"{text} until the next run, which fetches their pages again", remedy)
            else:
                yield loss(f"{text}, and their pages count as done", remedy)
    yield "none of scrapy-redis's, which lose items in an outage"


def flush(crawl: Crawl) -> Findings:
    """Check that no starting worker deletes the data of others."""
    if not known(partial(crawl.settings.getbool, "SCHEDULER_FLUSH_ON_START")):
        return
    persists = known(partial(crawl.settings.getbool, "SCHEDULER_PERSIST"))
    kept = ", though SCHEDULER_PERSIST = True keeps it for the next crawl" if persists else ""
    if crawl.shares:
        text = f"{_FLUSH}: each starting worker deletes queue and filter, with the requests of other workers{kept}"
        yield loss(text, "remove it; to start over, run `scrapy bloom clear` before the first worker starts")
    else:
        yield advice(f"{_FLUSH}: the crawl deletes the filter at its start{kept}", "remove it after one crawl")


def lease(crawl: Crawl) -> Findings:
    """Check BLOOMFILTER_LEASE."""
    if crawl.config and crawl.leases:
        short = "a blocking callback or a busy machine makes a live worker look dead, and its pages are fetched twice"
        long = "a dead worker's requests wait for so long"
        yield from _limits("BLOOMFILTER_LEASE", crawl.config.lease, (_SHORT_LEASE, 3600), short, long)


def timeouts(crawl: Crawl) -> Findings:
    """Check BLOOMFILTER_RETRY_TIMEOUT and the client's socket_timeout."""
    if crawl.config is None:
        return
    lease, start = crawl.config.lease, "a worker that starts while Redis is unreachable"
    short, long = f"{start} fails at once", f"{start} waits in silence for so long"
    yield from _limits("BLOOMFILTER_RETRY_TIMEOUT", crawl.config.retry_timeout, (1, 600), short, long)
    connection = known(lambda: crawl.client.get_connection_kwargs()) or {}  # noqa: PLW0108  # a client may be unusable
    seconds, harm = connection.get("socket_timeout", _SOCKET[0]), ""
    if seconds is None or seconds > _SOCKET[1]:
        harm = f"a hanging server blocks the worker {'forever' if seconds is None else 'for so long'}"
    elif seconds < _SOCKET[0]:
        harm = "a busy server counts as unreachable, and commands are sent again"
    elif seconds >= lease >= _SHORT_LEASE:
        harm = f"a worker that waits so long for a reply counts as dead (BLOOMFILTER_LEASE = {lease:g})"
    if harm:
        remedy = "remove it from REDIS_PARAMS and REDIS_URL: its default is 5"
        yield advice(f"socket_timeout = {seconds}: {harm}", remedy)


def _limits(name: str, seconds: float, limits: tuple[float, float], short: str, long: str) -> Findings:
    """Compare a setting with the least and the greatest value that causes no harm."""
    text, (least, most) = f"{name} = {seconds:g}", limits
    if not least <= seconds <= most:
        harm, remedy = (short, f"set {least:g} or more") if seconds < least else (long, f"set {most:g} or less")
        yield advice(f"{text}: {harm}", remedy)
    yield text


@in_partitions
def slots(crawl: Crawl) -> Findings:
    """Check that a cluster has the filter in the slot of its queues."""
    if crawl.filter_key and crawl.queues and is_cluster(crawl.client):
        for name in crawl.queues:
            try:
                RequestQueue(crawl.client, name, crawl.filter_key)
            except ConfigError as error:
                yield refused(error)
        yield "the filter and the queue are in one slot, and so on one node"


@in_partitions
def filter_(crawl: Crawl) -> Findings:
    """Check the stored filter, or the place of a new one."""
    if (key := crawl.filter_key) is None:
        yield "unknown key: see settings, or give the one in the crawl's log by --key"
        return
    try:
        found = crawl.read_filter()
        if found and found.unfinished:
            action = f"`scrapy bloom {found.unfinished}`"
            yield refused(f"incomplete: {action} is filling it, or was stopped", "run that again")
            return
        if found and crawl.has_spider and (wanted := known(crawl.parameters)):
            wanted.verify(key, found.parameters.to_json())
    except (MismatchError, WrongTypeError) as error:
        yield refused(error)
        return
    if found:
        yield from _stored(crawl, found)
        return
    shard = re.compile(re.escape(tagged(key)) + r":[0-9a-f]{16}:\d+:\d+")
    if shards := [*filter(shard.fullmatch, crawl.scan("*:????????????????:*:*")[0])]:
        text = f"its hash was evicted or deleted, and {plural(len(shards), 'shard')} of it are useless without it: all"
        remedy = "see the server's checks. A running worker makes a new filter, and deletes these"
        yield loss(f"{text} pages are fetched again", remedy)
    yield "none yet: the first worker creates it"


def _stored(crawl: Crawl, found: StoredFilter) -> Findings:
    info, parameters = found.info, found.parameters
    if lost := info.lost_shards + int(_MISSING.call(crawl.client, [found.key], [found.id])):
        text = f"{lost:,} of {plural(info.shards, 'shard')} evicted or deleted: their pages are fetched again"
        yield loss(text, "see the server's checks; workers go on with empty ones")
    if found.ttl is not None and not parameters.ttl and not found.is_empty:
        text = f"it expires in {found.ttl:,.0f} s, by somebody's EXPIRE: then all pages are fetched again"
        yield loss(text, f"run PERSIST {found.key}, and set BLOOMFILTER_TTL in place of that EXPIRE")
    text = f"{info.count:,} of {info.capacity:,} requests, error rate {as_error_rate(info.current_error_rate)}"
    text += f"; {info.forgotten:,} forgotten" if info.forgotten else ""
    if info.current_error_rate > info.error_rate:
        remedy = "start over with a larger BLOOMFILTER_CAPACITY, or with a BLOOMFILTER_EXPANSION that lets it grow"
        yield loss(f"too full: {text}, allowed {as_number(info.error_rate)}; new pages are missed", remedy)
    elif info.layers > _LAYERS and not parameters.ttl:
        yield advice(f"{text}, {info.layers} layers", "set a larger BLOOMFILTER_CAPACITY for the next crawl")
    yield text


def error_rate(crawl: Crawl) -> Findings:
    """Check the expected number of missed pages."""
    if sized := crawl.partitions[0].sized:
        missed = crawl.count * make_plan(sized)["expected_false_positives"]
        number, bound = f"{crawl.count * sized.capacity:,}", "at most" if sized.ttl else "expected"
        text = f"{as_number(sized.error_rate)}: {as_expected_pages(missed)} of {number} are missed, {bound}"
        if missed > 1:
            remedy = "set a smaller BLOOMFILTER_ERROR_RATE for the next crawl; `scrapy bloom plan --compare` lists them"
            yield advice(text, remedy)
        yield text


def capacity(crawl: Crawl) -> Findings:
    """Check the capacity for the pending requests."""
    if sized := crawl.partitions[0].sized:
        waiting, of_all = crawl.waiting, crawl.count * sized.capacity
        text = f"{plural(waiting, 'pending request')}, capacity {of_all:,}"
        if waiting > of_all:
            harm = "it grows, and each check takes longer" if sized.expansion else "it cannot grow, and misses pages"
            yield advice(f"{text}: {harm}", "set a larger BLOOMFILTER_CAPACITY for the next crawl")
        yield text


def ttl(crawl: Crawl) -> Findings:
    """Check the TTL for the pending requests."""
    first, waiting = crawl.partitions[0], crawl.waiting
    if first.sized and first.sized.ttl:
        alive = sum(not worker.is_silent for state in first.states for worker in state.workers)
        pace = waiting / first.sized.ttl
        text = f"{plural(waiting, 'pending request')}, forgotten by the filter after {first.sized.ttl:g} s"
        if pace > _PACE * max(1, alive):
            harm = f"at less than {pace:,.0f} pages a second some are found and fetched again"
            yield advice(f"{text}: {harm}", "set a longer BLOOMFILTER_TTL for the next crawl, or start more workers")
        yield f"{text}: {pace:.2g} pages a second are enough"


def queue(crawl: Crawl) -> Findings:
    """Check each queue and its workers, and that the project's other spiders have other queues."""
    if crawl.has_spider and crawl.shares and (others := _sharers(crawl)):
        harm = "After them a crawl takes their requests, and beside them none starts"
        text = f"other spiders ({_some(others)}) have the same queue, {crawl.queue!r}. {harm}"
        yield advice(text, "put %(spider)s into the SCHEDULER_QUEUE_KEY, unless you only ever run one of these spiders")
    yield from _queues(crawl)


@in_partitions
def _queues(crawl: Crawl) -> Findings:
    for name in crawl.queues:
        try:
            yield from _queue(crawl, crawl.inspect_queue(name))
        except WrongTypeError as error:
            yield refused(error)


def _sharers(crawl: Crawl) -> list[str]:
    """Return the names of the project's other spiders with the same queue, under a scheduler that shares queues."""
    found, queue, loader = [], known(lambda: crawl.queue), spider_loader(crawl.project)
    for name in sorted({*loader.list()} - {crawl.spider.name}):
        other = Crawler(loader.load(name), crawl.project)
        # A spider that sets no scheduler gets this crawl's, which an add-on may have set.
        is_set = other.settings.getpriority("SCHEDULER") != SETTINGS_PRIORITIES["default"]
        kind = known(partial(load_object, (other if is_set else crawl).settings["SCHEDULER"]))
        if kind and issubclass(kind, Scheduler) and known(partial(queue_of, other.settings, other.spidercls)) == queue:
            found.append(name)
    return found


def _queue(crawl: Crawl, state: QueueState) -> Findings:
    is_sorted = crawl.leases or not crawl.shares
    if state.kind == "list" and (is_sorted or crawl.kind("SCHEDULER_QUEUE_CLASS", PriorityQueue, PriorityQueue)):
        remedy = "crawl its requests with the SCHEDULER that queued them, or set another SCHEDULER_QUEUE_KEY"
        yield refused(f"{state.key} is a list, of FifoQueue or LifoQueue, but workers need a sorted set", remedy)
    if state.dead_letters:
        text = f"{plural(state.dead_letters, 'dead letter')}: requests that no worker could read, or that killed "
        remedy = "start a worker with the SCHEDULER_SERIALIZER and the code that queued them, or fix the callback, and "
        text += "BLOOMFILTER_MAX_DELIVERIES workers; their pages are missing"
        yield loss(text, remedy + "run `scrapy bloom requeue`")
    if state.has_losses:
        text = f"{state.key} has lost requests that the filter takes for duplicates, {state.lost:,} of them counted: "
        yield loss(f"{text}the key was deleted or evicted, or the server lost data", _START_OVER)
    if state.failed and not (crawl.config and crawl.config.retry_failed):
        text = f"{plural(state.failed, 'failed request')} kept: their pages are missing"
        yield advice(text, "crawl with BLOOMFILTER_RETRY_FAILED = True, or run `scrapy bloom requeue --failed`")
    others = {worker.spider for worker in state.workers} - {_path(crawl.crawler.spidercls)}
    if others and crawl.has_spider and crawl.leases and state.key == crawl.queue:
        remedy = "put %(spider)s into the SCHEDULER_QUEUE_KEY, and the project, if two have spiders of one name"
        yield refused(f"workers of another spider, {', '.join(others)}, crawl {state.key}", remedy)
    if state.workers and crawl.filter_key and state.filter != crawl.filter_key:
        text = f"the workers of {state.key} use another filter, {state.filter!r}, than {crawl.filter_key!r}"
        yield refused(text, "set the same SCHEDULER_DUPEFILTER_KEY for all workers")
    if silent := [worker for worker in state.workers if worker.is_silent]:
        requests, names = plural(sum(each.holds for each in silent), "request"), ", ".join(each.name for each in silent)
        text = f"{plural(len(silent), 'worker')} silent for longer than the lease, with {requests}: {names}"
        yield advice(text, "start a worker: it requeues their requests")
    alive = plural(len(state.workers) - len(silent), "live worker")
    yield Finding(Level.OK, f"{state.key}: {plural(state.waiting, 'pending request')}, {alive}")


def serializer(crawl: Crawl) -> Findings:
    """Check the SCHEDULER_SERIALIZER, and that it reads the first pending request."""
    setting = crawl.settings["SCHEDULER_SERIALIZER"] or PICKLE
    if not (crawl.has_spider and crawl.shares):
        return
    name = "pickle" if setting == PICKLE else _name_of(crawl, "SCHEDULER_SERIALIZER")
    module = known(partial(import_module, setting)) if isinstance(setting, str) else setting
    if module is None:
        yield refused(f"{name} cannot be imported", "set SCHEDULER_SERIALIZER to a module")
    elif setting != SERIALIZER and not crawl.server.startswith(_LOCAL):
        text = f"{name}: anybody who can write to this Redis can execute code in the workers"
        yield advice(text, f"set SCHEDULER_SERIALIZER = {SERIALIZER!r} when the queue is empty")
    requests = [first_request(crawl.client, name) for part in crawl.partitions for name in part.queues[:1]]
    first = next((request for request in requests if request is not None), None)
    if first is not None and module is not None and (writer := misread(first, module)):
        text = f"the pending requests were written with {writer!r}, and workers of this crawl are refused"
        yield loss(text, f"set SCHEDULER_SERIALIZER = {writer!r} until they are crawled, or start over")
    if setting == SERIALIZER:
        handlers = known(partial(crawl.settings.getdict, "DOWNLOAD_HANDLERS"))
        has_objects = crawl.leases and "scrapy_playwright" in str(handlers)
        note = "; a request with a PageMethod is not shared: the process that found it crawls it" if has_objects else ""
        yield f"MessagePack: write access to Redis is no way to execute code in the workers{note}"
    else:
        yield f"{name}, on this machine; {SERIALIZER!r} is safer if others can write to Redis"


@in_partitions
def leases(crawl: Crawl) -> Findings:
    """Check that all leases are those of registered workers, and that none is missing."""
    number = 0
    for name in crawl.queues:
        keys = QueueKeys(name)
        # Before the registrations: a worker registers before it leases.
        found = (*crawl.scan("*:leases:*")[0], *crawl.scan("*:taken:*")[0])
        held = {key for key in found if key.startswith(keys.of_worker(""))}
        for registered, counted, exist in _LEASES.call(crawl.client, [keys.crawl], []):
            number, worker = number + 1, as_text(registered)
            held.difference_update(keys.of_worker(worker))
            if counted != exist:
                text = f"{worker} has registered {plural(counted, 'lease')}, and {exist:,} are there"
                harm = "evicted or deleted; if the worker is dead, their pages are missed"
                yield loss(f"{text}: {harm}", f"see the server's checks; {_START_OVER}")
        # A worker that has left in between has no leases any more.
        if strays := sorted(key for key in held if crawl.client.exists(key)):
            text = f"leases of workers whose registration was evicted or deleted: {_some(strays)}"
            remedy = "a live worker joins again. If they stay, move them: ZUNIONSTORE {0} 2 {0} KEY, and DEL KEY"
            yield loss(text, remedy.format(name))
    yield f"those of {plural(number, 'registered worker')}"


def start_urls(crawl: Crawl) -> Findings:
    """Check leases and dead letters of the start URLs."""
    if (key := known(lambda: crawl.start_key)) is None or not crawl.leases:
        return
    state = inspect(crawl.client, key)
    if state.dead_letters:
        text = f"{plural(state.dead_letters, 'dead letter')} at {state.dead_key!r}: make_request_from_data made "
        remedy = "fix make_request_from_data, and move them back to the start key"
        yield loss(f"{text}no request: no worker reads them again", remedy)
    if state.abandoned:
        text = f"{state.abandoned:,} of {state.key!r} leased by workers that are gone"
        yield advice(text, "start a worker of the spider: it requeues them")
    yield f"{state.leased:,} of {state.key!r} leased"


def leftover_filters(crawl: Crawl) -> Findings:
    """Check for filters of killed crawls under Scrapy's own scheduler, whose keys no setting names."""
    keys, scope = crawl.scan("*:dupefilter:*")
    drawn = [key for key in keys if re.fullmatch(r"(?s).*:dupefilter:[0-9a-f]{16}", key)]
    idle = [key for key in drawn if (crawl.client.object("idletime", key) or 0) >= crawl.idle]
    if found := [each for key in idle if (each := known(partial(read_filter, crawl.client, key)))]:
        size, names = as_size(sum(each.info.memory_bytes for each in found)), _some([each.key for each in found])
        text = f"{plural(len(found), 'filter')} of crawls killed under Scrapy's own scheduler, {size}, unused for "
        remedy = "unless a crawl is paused, run `scrapy bloom clear --yes --key KEY` for each"
        yield advice(f"{text}{crawl.idle:g} s{scope}: {names}", remedy)
    yield f"none{scope}"


def _some(names: list[str]) -> str:
    return ", ".join([*names[:_EXAMPLES], *["…"] * (len(names) > _EXAMPLES)])


def _name_of(crawl: Crawl, setting: str) -> str:
    value = crawl.settings[setting]
    return repr(value if isinstance(value, str) else getattr(value, "__qualname__", str(value)))


def _path(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


Check = Callable[[Crawl], Findings]

# The checks without a server, of any keys and of a spider; and those of a server. See `name_of`.
OF_ANY: tuple[Check, ...] = (versions, settings)
OF_SPIDER: tuple[Check, ...] = (dupefilter, scheduler, spider, item_pipelines, flush, lease, timeouts)
_OF_NODES = (_examined.server, _examined.eviction, _examined.memory, _examined.persistence, _examined.replication)
_OF_DATA = (slots, filter_, error_rate, capacity, ttl, queue, serializer, leases, start_urls)
OF_SERVER: tuple[Check, ...] = (*_OF_NODES, *_OF_DATA, _examined.permissions, leftover_filters)


def name_of(check: Check) -> str:
    """Return the name of a check for people."""
    return check.__name__.strip("_").replace("_", " ").replace("urls", "URLs")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this action."""
    add_target_options(parser)
    failing = "the lowest level that makes the exit code 1 (default %(default)s)"
    parser.add_argument("--fail-on", choices=("loss", "advice"), default="loss", help=failing)
    idle = "the time without use after which a filter counts as left over (default %(default)s)"
    parser.add_argument("--idle", type=float, default=3600, metavar="SECONDS", help=idle)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command and return its exit code."""
    crawl = Crawl(options, settings)
    findings = [*_examine(crawl)]
    server, weights = known(lambda: crawl.server), [*Level]
    worst = max((finding.level for _, finding in findings), key=weights.index)
    lines = [f"{crawl.filter_key or f'the spider {crawl.spider.name!r}'} on {server or 'an unknown server'}", ""]
    width = max(len(check) for check, _ in findings)
    for check, (level, text, action) in findings:
        lines.append(f"{_SIGNS[level]}  {check:<{width}}  {text}")
        lines += [f"{'':{width + 6}}  -> {action}"] * bool(action)
    lines += ["", _VERDICTS[worst]]
    told = [{"check": check, **finding._asdict()} for check, finding in findings]
    report = {"server": server, "key": crawl.filter_key, "findings": told}
    fails = weights.index(worst) >= weights.index(options.fail_on)
    return _console.report(options, report, "\n".join(lines), answer=not fails)


def _examine(crawl: Crawl) -> Iterator[tuple[str, Finding]]:
    """Run all checks; yield each finding with the name of its check."""
    yield from _run(crawl, OF_ANY)
    if crawl.has_spider:
        yield from _run(crawl, OF_SPIDER)
    try:
        crawl.retry(partial(_ping, crawl))
    except UnavailableError:
        raise
    except (BloomError, *UNREADABLE) as error:
        yield "server", refused(describe(error))
    else:
        yield from _run(crawl, OF_SERVER)


def _run(crawl: Crawl, table: Iterable[Check]) -> Iterator[tuple[str, Finding]]:
    for check in table:
        try:
            found = crawl.retry(partial(_examined.findings_of, check(crawl)))
        except RefusedError as error:
            found = [_examined.skipped(error)]
        except UnavailableError as error:
            if not is_cluster(crawl.client):
                raise
            found = [_examined.unreachable(error)]
        except BloomError as error:
            found = [refused(error)]
        yield from ((name_of(check), each) for each in found)


def _ping(crawl: Crawl) -> None:
    """Ask the server; the client of a cluster has done so. Another check covers the permission."""
    with suppress(exceptions.NoPermissionError):
        if not is_cluster(crawl.client):
            crawl.client.ping()
