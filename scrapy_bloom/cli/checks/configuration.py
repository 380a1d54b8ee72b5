"""Check a crawl's classes and numbers in its settings."""

from collections.abc import Sequence
from importlib.metadata import version

from scrapy_bloom._format import as_expected_pages
from scrapy_bloom.cli.checks.findings import Finding, advice, loss, ok, refused
from scrapy_bloom.cli.planning import make_plan
from scrapy_bloom.filter.parameters import FilterParameters

_PACKAGES = ("scrapy-bloom", "Scrapy", "scrapy-redis", "redis")
_LOCAL = ("localhost", "127.", "::1", "unix:")
JSON = "scrapy_bloom.serializers.json"
_PICKLE = b"\x80"
_OUR_FILTER = "set ADDONS = {'scrapy_bloom.Addon': 500}, or DUPEFILTER_CLASS = 'scrapy_bloom.BloomRFPDupeFilter'"
_OUR_SCHEDULER = "set SCHEDULER = 'scrapy_bloom.BloomScheduler'"


def versions() -> Finding:
    """Return the versions of the packages that work together."""
    return ok("versions", ", ".join(f"{package} {version(package)}" for package in _PACKAGES))


def dupefilter(name: str, *, is_ours: bool | None) -> Finding:
    """Check the DUPEFILTER_CLASS; None: it cannot be imported."""
    check = "dupefilter"
    if is_ours:
        return ok(check, f"DUPEFILTER_CLASS = {name!r}")
    if is_ours is None:
        return refused(check, f"DUPEFILTER_CLASS = {name!r} cannot be imported", _OUR_FILTER)
    return loss(
        check, f"DUPEFILTER_CLASS = {name!r}: it is not scrapy-bloom's, and this filter is not used", _OUR_FILTER
    )


def scheduler(name: str, *, is_ours: bool | None, is_shared: bool) -> Finding:
    """Check the SCHEDULER: one that is not shared has a queue in each process; None: it cannot be imported."""
    check = "scheduler"
    if is_ours:
        return ok(check, f"SCHEDULER = {name!r}")
    if is_ours is None:
        return refused(check, f"SCHEDULER = {name!r} cannot be imported", _OUR_SCHEDULER)
    if is_shared:
        return loss(
            check,
            f"SCHEDULER = {name!r}: it loses requests when Redis or a worker goes away, with a reply, and at Ctrl-C",
            _OUR_SCHEDULER,
        )
    return advice(check, f"SCHEDULER = {name!r}: nothing is shared, each process crawls for itself", _OUR_SCHEDULER)


def spider(name: str, *, pops: bool) -> Finding:
    """Check the class of the spider, which may pop its start URLs."""
    check = "spider"
    if not pops:
        return ok(check, name)
    return loss(
        check,
        f"{name} pops its start URLs, as scrapy-redis's RedisSpider does: a worker that dies loses those it has taken",
        "import RedisSpider or RedisCrawlSpider from scrapy_bloom",
    )


def serializer(name: str | None, server: str | None, *, is_there: bool = True) -> Finding:
    """Check the SCHEDULER_SERIALIZER for a server at this address, if that is known."""
    check = "serializer"
    if not is_there:
        return refused(check, f"{name!r} cannot be imported", "set SCHEDULER_SERIALIZER to a module")
    if name == JSON:
        return ok(check, "requests are JSON: who can write to Redis cannot execute code in the workers")
    what = "pickle" if name is None else repr(name)
    if server is None or server.startswith(_LOCAL):
        where = "" if server is None else ", on this machine"
        return ok(check, f"{what}{where}; {JSON!r} is safer where others can write to Redis")
    return advice(
        check,
        f"{what}: whoever can write to this Redis can execute code in the workers",
        f"set SCHEDULER_SERIALIZER = {JSON!r} when the queue is empty",
    )


def first_request(first: bytes | None, name: str | None) -> list[Finding]:
    """Check whether a crawl with this SCHEDULER_SERIALIZER reads the first of the requests that wait."""
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
    """Warn about other spiders of the project that have the same queue, by their SCHEDULER_QUEUE_KEY."""
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


# Seconds between which a lease is of use: a callback may hold the interpreter for some, and a dead worker's requests
# wait for as long.
_MIN_LEASE, _MAX_LEASE = 10.0, 3600.0
_MAX_RETRY_TIMEOUT = 600.0
# A busy server takes that long for an answer, and a reactor may be blocked for that long; the second is scrapy-redis's.
_MIN_SOCKET_TIMEOUT, _MAX_SOCKET_TIMEOUT = 0.5, 30.0
# Pages a second that no worker is expected to fetch.
_MAX_PACE = 50


def lease(seconds: float) -> Finding:
    """Check BLOOMFILTER_LEASE."""
    check, told = "lease", f"BLOOMFILTER_LEASE = {seconds:g}"
    if seconds < _MIN_LEASE:
        return advice(
            check,
            f"{told}: a callback that holds the interpreter for so long, or a busy machine, makes others take the "
            "worker for dead, and its pages are fetched twice",
            f"set {_MIN_LEASE:g} or more",
        )
    if seconds > _MAX_LEASE:
        return advice(
            check, f"{told}: the requests of a worker that dies wait for so long", f"set {_MAX_LEASE:g} or less"
        )
    return ok(check, told)


def timeouts(retry_timeout: float, options: dict[str, object], lease: float) -> list[Finding]:
    """Check BLOOMFILTER_RETRY_TIMEOUT, and the socket_timeout among the options of a connection."""
    check, told = "timeouts", f"BLOOMFILTER_RETRY_TIMEOUT = {retry_timeout:g}"
    findings = []
    if retry_timeout == 0:
        findings.append(
            advice(check, f"{told}: a worker that meets Redis away at its start gives up at once", "set some seconds")
        )
    elif retry_timeout > _MAX_RETRY_TIMEOUT:
        findings.append(
            advice(
                check,
                f"{told}: a worker that meets Redis away at its start waits in silence for so long",
                f"set {_MAX_RETRY_TIMEOUT:g} or less",
            )
        )
    if "socket_timeout" in options:
        findings += _socket_timeout(options["socket_timeout"], lease)
    return findings or [ok(check, told)]


def _socket_timeout(seconds: object, lease: float) -> list[Finding]:
    check, told = "timeouts", f"socket_timeout = {seconds}"
    if not isinstance(seconds, (int, float)):
        what = "a server that hangs stops the worker for ever"
    elif seconds < _MIN_SOCKET_TIMEOUT:
        what = "a server that is busy for so long counts as away, and what it was asked is asked again"
    elif seconds > _MAX_SOCKET_TIMEOUT:
        what = "a server that hangs blocks the worker for so long"
    elif seconds >= lease >= _MIN_LEASE:
        what = f"a worker that waits so long for an answer is taken for dead (BLOOMFILTER_LEASE = {lease:g})"
    else:
        return []
    return [advice(check, f"{told}: {what}", "leave it out of REDIS_PARAMS and REDIS_URL: it is 5 then")]


def flush(*, flushes: bool, persists: bool, is_shared: bool) -> list[Finding]:
    """Check SCHEDULER_FLUSH_ON_START."""
    check, told = "flush", "SCHEDULER_FLUSH_ON_START = True"
    if not flushes:
        return []
    kept = ", though SCHEDULER_PERSIST = True keeps it for the next one" if persists else ""
    if not is_shared:
        return [
            advice(check, f"{told}: the crawl deletes the filter as it starts{kept}", "remove it once that is done")
        ]
    return [
        loss(
            check,
            f"{told}: each worker that starts deletes the queue and the filter, and what others have queued is lost"
            f"{kept}",
            "remove it; to begin anew, run `scrapy bloom clear` before the first worker starts",
        )
    ]


def error_rate(parameters: FilterParameters) -> Finding:
    """Check how many pages a crawl is expected to miss."""
    check, missed = "error rate", make_plan(parameters).expected_false_positives
    bound = "at most" if parameters.ttl else "expected"
    rate = f"{parameters.error_rate:g}".replace("e-0", "e-")
    told = f"{rate}: {as_expected_pages(missed)} of {parameters.capacity:,} are missed, {bound}"
    if missed <= 1:
        return ok(check, told)
    return advice(
        check, told, "set a smaller BLOOMFILTER_ERROR_RATE for the next crawl; `scrapy bloom plan --compare` shows them"
    )


def capacity(waiting: int, parameters: FilterParameters) -> Finding:
    """Check the capacity of the filter beside the requests that wait."""
    check, told = "capacity", f"{waiting:,} requests wait, the filter is for {parameters.capacity:,}"
    if waiting <= parameters.capacity:
        return ok(check, told)
    outcome = "it grows, and takes longer for each" if parameters.expansion else "it may not grow, and misses pages"
    return advice(check, f"{told}: {outcome}", "set a larger BLOOMFILTER_CAPACITY for the next crawl")


def ttl(waiting: int, workers: int, parameters: FilterParameters) -> list[Finding]:
    """Check the pace that the requests which wait need, to be fetched before the filter forgets them."""
    check, seconds = "ttl", parameters.ttl
    if not seconds:
        return []
    pace, told = waiting / seconds, f"{waiting:,} requests wait, and the filter forgets them after {seconds:g} s"
    if pace <= _MAX_PACE * max(1, workers):
        return [ok(check, f"{told}: that takes {pace:.2g} pages a second")]
    return [
        advice(
            check,
            f"{told}: at less than {pace:,.0f} pages a second they are met and fetched again",
            "set a longer BLOOMFILTER_TTL for the next crawl, or start more workers",
        )
    ]
