"""The classes, settings and stored data of a crawl, and what they mean for it."""

from collections.abc import Sequence
from importlib.metadata import version

from scrapy_bloom.admin.doctor.finding import Finding, advice, loss, ok
from scrapy_bloom.admin.report import FilterReport
from scrapy_bloom.errors import MismatchError
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.queue.inspection import QueueState
from scrapy_bloom.storage.keys import FILTER_FIELD

_PACKAGES = ("scrapy-bloom", "Scrapy", "scrapy-redis", "redis")
_LOCAL = ("localhost", "127.", "::1", "unix:")
JSON = "scrapy_bloom.serializers.json"
_PICKLE = b"\x80"


def versions() -> Finding:
    """Return the versions of what works together."""
    return ok("versions", ", ".join(f"{package} {version(package)}" for package in _PACKAGES))


def dupefilter(name: str, *, is_ours: bool) -> Finding:
    """Return what the DUPEFILTER_CLASS means."""
    check = "dupefilter"
    if is_ours:
        return ok(check, f"DUPEFILTER_CLASS = {name!r}")
    return loss(
        check,
        f"DUPEFILTER_CLASS = {name!r}: it is not scrapy-bloom's, and this filter is not used",
        "set ADDONS = {'scrapy_bloom.Addon': 500}, or DUPEFILTER_CLASS = 'scrapy_bloom.BloomRFPDupeFilter'",
    )


def scheduler(name: str, *, is_ours: bool, is_shared: bool) -> Finding:
    """Return what the SCHEDULER means; one that is not shared has a queue in each process."""
    check, what_to_do = "scheduler", "set SCHEDULER = 'scrapy_bloom.BloomScheduler'"
    if is_ours:
        return ok(check, f"SCHEDULER = {name!r}")
    if is_shared:
        return loss(
            check,
            f"SCHEDULER = {name!r}: it loses requests when Redis or a worker goes away, with a reply, and at Ctrl-C",
            what_to_do,
        )
    return advice(check, f"SCHEDULER = {name!r}: nothing is shared, each process crawls for itself", what_to_do)


def serializer(name: str | None, server: str, *, is_there: bool = True) -> Finding:
    """Return what the SCHEDULER_SERIALIZER means on a server at this address."""
    check = "serializer"
    if not is_there:
        return loss(check, f"{name!r} cannot be imported: no crawl would start", "set SCHEDULER_SERIALIZER to a module")
    if name == JSON:
        return ok(check, "requests are JSON: who can write to Redis cannot execute code in the workers")
    what = "pickle" if name is None else repr(name)
    if server.startswith(_LOCAL):
        return ok(check, f"{what}, on this machine; {JSON!r} is safer where others can write to Redis")
    return advice(
        check,
        f"{what}: whoever can write to this Redis can execute code in the workers",
        f"set SCHEDULER_SERIALIZER = {JSON!r} when the queue is empty",
    )


def stored_filter(found: FilterReport | None, wanted: FilterParameters | None) -> list[Finding]:
    """Return what is stored of the filter, beside the parameters that the settings want, if they are known."""
    check = "filter"
    if found is None:
        return [ok(check, "there is none yet: the first request makes it")]
    findings = []
    try:
        if wanted is not None:
            wanted.verify_stored(found.stored.key, found.stored.fields[FILTER_FIELD])
    except MismatchError as error:
        findings.append(loss(check, f"no worker would start: {error}", ""))
    if found.stored.unfinished:
        by = found.stored.unfinished
        findings.append(loss(check, f"it is not complete: `scrapy bloom {by}` was stopped, or works", "run that again"))
    return [*findings, _fullness(found)]


def half_import(key: str) -> Finding:
    """Return what it means that an import has not given its filter the key yet."""
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


def first_request(first: bytes | None, name: str | None) -> list[Finding]:
    """Return whether a crawl with this SCHEDULER_SERIALIZER reads the first of the requests that wait."""
    is_pickle = first is not None and first.startswith(_PICKLE)
    if first is None or (name is not None and name != JSON) or is_pickle == (name is None):
        return []
    kind, other = ("pickles", "JSON") if is_pickle else ("JSON", "pickles")
    return [
        loss(
            "serializer",
            f"{kind} wait in the queue, and this crawl reads {other}: all that wait would become dead letters",
            "let workers with the old SCHEDULER_SERIALIZER finish, or begin anew",
        )
    ]


def shared_queue(template: str, others: Sequence[str]) -> list[Finding]:
    """Return what it means that other spiders of the project have the same queue, by their SCHEDULER_QUEUE_KEY."""
    if not others:
        return []
    shown = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")  # noqa: PLR2004  # as examples
    return [
        advice(
            "queue",
            f"SCHEDULER_QUEUE_KEY = {template!r} is that of other spiders, too ({shown}): beside or after them a crawl "
            "takes their requests, for which it may have no callback or another one",
            "set a key with %(spider)s in it, unless only one of these spiders is ever started",
        )
    ]


def queue(state: QueueState) -> list[Finding]:
    """Return what is the matter with a queue and its workers."""
    check = "queue"
    silent = [worker for worker in state.workers if worker.is_silent]
    findings = []
    if state.dead_letters:
        findings.append(
            loss(
                check,
                f"{state.dead_letters:,} requests that no worker could read are kept: their pages are missing",
                "start a worker that can read them, with the SCHEDULER_SERIALIZER and the code that queued them",
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
