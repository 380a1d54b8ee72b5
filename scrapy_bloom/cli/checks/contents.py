"""Check the stored data of a crawl: its filter, its queues and its start URLs."""

from collections.abc import Iterator
from contextlib import suppress

from scrapy_redis import defaults
from scrapy_redis.queue import PriorityQueue

from scrapy_bloom._filter_key import MAX_NODE_BYTES, are_in_one_slot
from scrapy_bloom._format import as_error_rate, as_number, as_size, plural
from scrapy_bloom.cli import key_contents
from scrapy_bloom.cli.checks.case import Case, Finding, advice, is_a, load_class, loss, ok, refused, skipped
from scrapy_bloom.cli.checks.configuration import JSON
from scrapy_bloom.cli.importing.import_state import ImportKeys
from scrapy_bloom.cli.report import FilterReport
from scrapy_bloom.errors import BloomError, ConfigError, MismatchError, RefusedError, WrongTypeError
from scrapy_bloom.filter import stored_filter
from scrapy_bloom.filter.layer import NO_IDENTITY
from scrapy_bloom.filter.opening import foreign_string
from scrapy_bloom.filter.placement import Placement
from scrapy_bloom.filter.stored_filter import foreign_set
from scrapy_bloom.queue.inspection import QueueState, first_request
from scrapy_bloom.queue.queue_keys import QueueKeys
from scrapy_bloom.start_urls import leases
from scrapy_bloom.storage import shards
from scrapy_bloom.storage.filter_keys import FILTER_FIELD, forgotten_key
from scrapy_bloom.storage.shards import InspectShard
from scrapy_bloom.transport.server_info import is_cluster
from scrapy_bloom.transport.slots import owner_of

_PICKLE_MARK = b"\x80"
# The limit in docs/stats.md.
_MAX_LAYERS = 5


def check_slots(case: Case) -> Iterator[Finding]:
    """Check that a cluster has the filter in the slot of its queues, or tell why not."""
    check, key = "slots", case.key
    if key is not None and case.queues and case.target.is_separate:
        yield ok(
            check,
            "the filter and the queue are on different servers: requests that the queue's server loses with its last "
            "writes are known to the filter, and their pages are missed",
        )
        return
    if key is None or not is_cluster(case.target.filter_client):
        return
    for queue in case.queues:
        if are_in_one_slot(key, queue):
            yield ok(check, "the filter and the queue are in one slot, and so on one node")
            continue
        where = "in different slots"
        if case.found is not None and case.found.stored.identity.is_spread:
            where = f"in different slots: the filter's {plural(case.found.info.shards, 'shard')} spread over all nodes"
        large = case.parameters is not None and case.parameters.memory_bytes > MAX_NODE_BYTES
        yield advice(
            check,
            f"{key!r} and {queue!r} are {where}. A failover that loses writes may lose requests known to the filter, "
            "and their pages are missed",
            f"a filter of over {as_size(MAX_NODE_BYTES)} needs several nodes; keep a replica for each"
            if large
            else f"set a key like SCHEDULER_DUPEFILTER_KEY = {QueueKeys(queue).dupefilter!r} before the next new crawl",
        )


def check_filter(case: Case) -> Iterator[Finding]:
    """Check the stored filter, or the place of a new one, and an unfinished import."""
    key = case.key
    if key is None:
        reason = "see settings" if case.has_fixed_key else "each crawl draws one and logs it; give it by --key"
        yield ok("filter", f"unknown key: {reason}")
        return
    try:
        if isinstance(case.inspection, BloomError):
            raise case.inspection
        if case.found is None or not case.found.has_layers:
            _require_room_for_shards(case, key)
        yield from _missing_filter(case, key) if case.found is None else _stored_filter(case, case.found)
        yield from _unfinished_import(case, ImportKeys.of(key).staging)
    except (MismatchError, RefusedError, WrongTypeError) as error:
        yield loss("filter", f"no worker would start: {error}", "")


def _unfinished_import(case: Case, staging: str) -> Iterator[Finding]:
    try:
        found = case.target.run_steps(stored_filter.read(staging))
    except RefusedError:
        yield ok("import", f"unknown: the user may not read {staging!r}, which a crawl does not need")
        return
    if found is not None:
        yield advice("import", f"`scrapy bloom import` is copying the SET to {staging!r}", "run it again to resume")


def _require_room_for_shards(case: Case, key: str) -> None:
    """Raise a WrongTypeError if foreign data is at a shard key of a new filter."""
    if case.parameters is None or case.config is None:
        return
    placement = Placement.on(case.target.filter_client, key, case.config.shard_bytes)
    identity = NO_IDENTITY._replace(is_spread=placement.is_spread)
    keys = case.parameters.first_layer(key, identity, 0, 0.0, placement.max_shard_bytes).shard_keys
    inspections = case.target.store.execute([InspectShard(name) for name in keys])
    for name, inspection in zip(keys, inspections, strict=True):
        if inspection.kind == shards.FOREIGN:
            raise foreign_string(name)


def _missing_filter(case: Case, key: str) -> Iterator[Finding]:
    contents = key_contents.inspect_key(case.target.store, key)
    if contents.kind == key_contents.FORGOTTEN:
        yield advice("filter", f"none yet, but {contents.description}", "delete them by `scrapy bloom clear --yes`")
        return
    if contents.kind != key_contents.SHARDS:
        yield ok("filter", "none yet: the first request creates it")
        return
    yield loss(
        "filter",
        f"its hash was evicted or deleted, and {plural(contents.shards, 'shard')} of it are useless without it: all "
        "pages are fetched again",
        "a running worker restores the hash; without workers see the server's checks, and start over by `scrapy bloom "
        "clear`",
    )


def _stored_filter(case: Case, found: FilterReport) -> Iterator[Finding]:
    check, info, action = "filter", found.info, found.stored.unfinished
    try:
        if case.target.has_spider and case.wanted is not None:
            case.wanted.verify_stored(found.stored.key, found.stored.fields[FILTER_FIELD])
    except MismatchError as error:
        yield loss(check, f"no worker would start: {error}", "")
    if action:
        yield loss(check, f"incomplete: `scrapy bloom {action}` is filling it, or was stopped", "run that again")
    if info.lost_shards:
        yield loss(
            check,
            f"{info.lost_shards} of {plural(info.shards, 'shard')} evicted or deleted: their pages are fetched again",
            "see the server's checks; the next addition of a worker creates empty ones",
        )
    yield from _forgotten(case, found)
    rate = as_error_rate(info.estimated_error_rate)
    text = f"about {info.estimated_count:,} of {info.capacity:,} requests, error rate {rate}"
    if info.estimated_error_rate > info.error_rate:
        yield loss(
            check,
            f"too full: {text}, allowed {as_number(info.error_rate)}; new pages are missed",
            "start over with a larger BLOOMFILTER_CAPACITY, or with a BLOOMFILTER_EXPANSION that lets it grow",
        )
    elif info.layers > _MAX_LAYERS and not found.stored.parameters.ttl:
        yield advice(check, f"{text}, {info.layers} layers", "set a larger BLOOMFILTER_CAPACITY for the next crawl")
    else:
        yield ok(check, text)


def _forgotten(case: Case, found: FilterReport) -> Iterator[Finding]:
    check, key = "filter", found.stored.key
    if found.forgotten.is_foreign:
        yield loss(check, f"no request can be forgotten: {foreign_set(key)}", "")
    if found.has_lost_forgotten:
        yield loss(
            check,
            "its forgotten requests were evicted or deleted: it begins anew, and all pages are fetched again",
            "see the server's checks",
        )
    if found.forgotten.items:
        client, name = case.target.filter_client, forgotten_key(key)
        where = f" on {owner_of(client, name)}" if is_cluster(client) else ""
        yield ok(check, f"{plural(found.forgotten.items, 'forgotten request')} at {name!r}{where}")


def check_queues(case: Case) -> Iterator[Finding]:
    """Check each queue, its workers, and whether the crawl can read the pending requests."""
    kind = load_class(case.settings.get("SCHEDULER_QUEUE_CLASS") or defaults.SCHEDULER_QUEUE_CLASS)
    may_be_list = case.is_shared and not case.has_bloom_scheduler and not is_a(kind, PriorityQueue)
    for inspection in case.queue_inspections:
        if isinstance(inspection, QueueState):
            yield from _queue(inspection, may_be_list=may_be_list)
            if case.target.has_spider:
                yield from _first_request(case, inspection.key)
        elif isinstance(inspection, WrongTypeError):
            yield refused("queue", str(inspection))
        else:
            yield skipped("queue", inspection)


def _queue(state: QueueState, *, may_be_list: bool) -> Iterator[Finding]:
    check = "queue"
    if state.kind == "list" and not may_be_list:
        yield loss(
            check,
            f"{state.key} is a list, of FifoQueue or LifoQueue, but workers need a sorted set: no crawl would start",
            "crawl its requests with the SCHEDULER and the SCHEDULER_QUEUE_CLASS that queued them, or set another "
            "SCHEDULER_QUEUE_KEY",
        )
    if state.dead_letters:
        yield loss(
            check,
            f"{plural(state.dead_letters, 'dead letter')}: requests that no worker could read, or that killed "
            "BLOOMFILTER_MAX_DELIVERIES workers; their pages are missing",
            "start a worker with the SCHEDULER_SERIALIZER and the code that queued them, or fix the callback, and run "
            "`scrapy bloom requeue`",
        )
    if state.has_losses:
        yield loss(
            check,
            f"{state.key} has lost requests that the filter takes for seen, {state.lost:,} of them counted: the key "
            "was deleted or evicted, or the server lost data",
            "start over, with SCHEDULER_FLUSH_ON_START = True for the first worker",
        )
    if len(spiders := sorted({worker.spider for worker in state.workers} - {""})) > 1:
        yield loss(
            check,
            f"workers of {len(spiders)} spiders take each other's requests from {state.key}: {', '.join(spiders)}",
            "put %(spider)s into the SCHEDULER_QUEUE_KEY",
        )
    silent = [worker for worker in state.workers if worker.is_silent]
    if silent:
        requests = plural(sum(worker.holds for worker in silent), "request")
        names = ", ".join(worker.name for worker in silent)
        yield advice(
            check,
            f"{plural(len(silent), 'worker')} silent for longer than the lease, with {requests}: {names}",
            "start a worker: it requeues their requests",
        )
    alive = plural(len(state.workers) - len(silent), "live worker")
    yield ok(check, f"{state.key}: {plural(state.waiting, 'pending request')}, {alive}")


def _first_request(case: Case, queue: str) -> Iterator[Finding]:
    """Check that the SCHEDULER_SERIALIZER reads the first pending request."""
    name, first = case.serializer, first_request(case.target.queue_client, queue)
    if first is None or name not in (None, JSON):
        return
    is_pickle = first.startswith(_PICKLE_MARK)
    if is_pickle != (name is None):
        stored, read = ("pickles", "JSON") if is_pickle else ("JSON", "pickles")
        yield loss(
            "serializer",
            f"the pending requests are {stored}, but this crawl reads {read}: all of them would become dead letters",
            "let workers with the old SCHEDULER_SERIALIZER finish, or start over",
        )


def check_start_urls(case: Case) -> Iterator[Finding]:
    """Check leases and dead letters of the start URLs."""
    check, key = "start URLs", None
    with suppress(ConfigError):
        key = case.start_key
    if key is None or not case.has_bloom_scheduler:
        return
    state = leases.inspect(case.target.queue_client, key)
    if state.dead_letters:
        yield loss(
            check,
            f"{plural(state.dead_letters, 'dead letter')} at {state.dead_key!r}, for which make_request_from_data made "
            "no request: no worker reads them again",
            "fix make_request_from_data, and move them back to the start key",
        )
    if state.abandoned:
        yield advice(
            check,
            f"{state.abandoned:,} of {state.key!r} leased by workers that are gone",
            "start a worker of the spider: it requeues them",
        )
    if not state.dead_letters and not state.abandoned:
        yield ok(check, f"{state.leased:,} of {state.key!r} leased")
