"""The stored data of a crawl, and what they mean for it: its filter, its queue, its start URLs."""

from scrapy_bloom._filter_key import are_in_one_slot
from scrapy_bloom.cli import key_contents
from scrapy_bloom.cli.checks.findings import Finding, advice, loss, ok
from scrapy_bloom.cli.key_contents import KeyContents
from scrapy_bloom.cli.report import FilterReport
from scrapy_bloom.errors import MismatchError
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.inspection import QueueState
from scrapy_bloom.queue.queue_keys import QueueKeys
from scrapy_bloom.start_urls.leases import StartState
from scrapy_bloom.storage.filter_keys import FILTER_FIELD


def stored_filter(found: FilterReport, wanted: FilterParameters | None) -> list[Finding]:
    """Check a stored filter, also against the parameters that the settings want, if they are known."""
    check = "filter"
    findings = []
    try:
        if wanted is not None:
            wanted.verify_stored(found.stored.key, found.stored.fields[FILTER_FIELD])
    except MismatchError as error:
        findings.append(loss(check, f"no worker would start: {error}", ""))
    if found.stored.unfinished:
        by = found.stored.unfinished
        findings.append(loss(check, f"it is not complete: `scrapy bloom {by}` was stopped, or works", "run that again"))
    if found.info.lost_shards:
        findings.append(
            loss(
                check,
                f"{found.info.lost_shards} of {found.info.shards} strings are gone (evicted or deleted?): the pages "
                "that they knew are fetched again",
                "see the checks of the server; the next worker that adds makes them anew, empty",
            )
        )
    return [*findings, _fullness(found)]


def no_filter(contents: KeyContents) -> Finding:
    """Check a key at which no hash is."""
    check = "filter"
    if contents.kind != key_contents.SHARDS:
        return ok(check, "there is none yet: the first request makes it")
    return loss(
        check,
        f"its hash is gone (evicted or deleted?), and {contents.shards} strings of it are left, which say nothing "
        "without: all pages are fetched again",
        "a worker that is still at work puts the hash back; without one, see the checks of the server, and begin anew "
        "by `scrapy bloom clear`",
    )


def slots(key: str, queue: str) -> Finding:
    """Check the places of a filter and of its queue on a cluster."""
    check = "slots"
    if are_in_one_slot(key, queue):
        return ok(check, "the cluster keeps the filter in the slot of its queue")
    return advice(
        check,
        f"the cluster keeps {key!r} and {queue!r} in different slots: a failover that loses writes may lose requests "
        "that the filter knows, and their pages are missed",
        f"set a key like SCHEDULER_DUPEFILTER_KEY = {QueueKeys(queue).dupefilter!r} before the next new crawl",
    )


def half_import(key: str) -> Finding:
    """Warn about an import that has not given its filter the key yet."""
    return advice("import", f"`scrapy bloom import` has begun to copy the SET, to {key!r}", "run it again to go on")


def _fullness(found: FilterReport) -> Finding:
    info, layers = found.info, found.info.layers
    told = f"about {info.estimated_count:,} of {info.capacity:,}, error rate {info.estimated_error_rate:.2g}"
    if info.estimated_error_rate > info.error_rate:
        return loss(
            "filter",
            f"too full: {told} of {info.error_rate:.2g} allowed; new pages are missed",
            "begin a new one with a larger BLOOMFILTER_CAPACITY, or one that may grow (BLOOMFILTER_EXPANSION)",
        )
    if layers > 5 and not found.stored.parameters.ttl:  # noqa: PLR2004  # as docs/stats.md says
        return advice("filter", f"{told}, in {layers} layers", "set a larger BLOOMFILTER_CAPACITY for the next crawl")
    return ok("filter", told)


def queue(state: QueueState, *, may_be_list: bool) -> list[Finding]:
    """Check a queue and its workers."""
    check = "queue"
    silent = [worker for worker in state.workers if worker.is_silent]
    findings = []
    if state.kind == "list" and not may_be_list:
        findings.append(
            loss(
                check,
                f"{state.key} is a list, as FifoQueue and LifoQueue leave it, and workers need a sorted set: no crawl "
                "would start",
                "fetch what waits with the SCHEDULER and the SCHEDULER_QUEUE_CLASS that queued it, or use another "
                "SCHEDULER_QUEUE_KEY",
            )
        )
    if state.dead_letters:
        findings.append(
            loss(
                check,
                f"{state.dead_letters:,} requests are kept that no worker could read, or that "
                "BLOOMFILTER_MAX_DELIVERIES workers died with: their pages are missing",
                "start a worker with the SCHEDULER_SERIALIZER and the code that queued them, or mend the callback, and "
                "run scrapy bloom requeue",
            )
        )
    if state.has_losses:
        findings.append(
            loss(
                check,
                f"{state.key} has lost requests, {state.lost:,} of them known, which the filter takes for seen: the "
                "key was deleted or evicted, or the server lost its data",
                "begin the crawl anew, with SCHEDULER_FLUSH_ON_START = True for its first worker",
            )
        )
    if len(spiders := sorted({worker.spider for worker in state.workers} - {""})) > 1:
        findings.append(
            loss(
                check,
                f"workers of {len(spiders)} spiders take requests of each other from {state.key}: {', '.join(spiders)}",
                "set a SCHEDULER_QUEUE_KEY with %(spider)s in it",
            )
        )
    if silent:
        held, names = sum(worker.holds for worker in silent), ", ".join(worker.name for worker in silent)
        findings.append(
            advice(
                check,
                f"{len(silent)} workers are silent for longer than their lease, and hold {held:,} requests: {names}",
                "the next worker to start puts these back; start one",
            )
        )
    alive = len(state.workers) - len(silent)
    return [*findings, ok(check, f"{state.key}: {state.waiting:,} requests wait, {alive} workers are at work")]


def start_urls(state: StartState) -> list[Finding]:
    """Check the start URLs that workers have leased, or could make no request of."""
    check = "start URLs"
    findings = []
    if state.dead_letters:
        findings.append(
            loss(
                check,
                f"{state.dead_letters:,} of which make_request_from_data made no request are at {state.dead_key!r}: "
                "nobody reads them again",
                "mend make_request_from_data, and move them back to the start key",
            )
        )
    if state.abandoned:
        findings.append(
            advice(
                check,
                f"{state.abandoned:,} of {state.key!r} are leased by workers that are gone",
                "the next worker of the spider to start puts these back; start one",
            )
        )
    return findings or [ok(check, f"{state.leased:,} of {state.key!r} are leased")]
