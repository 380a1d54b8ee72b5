"""The numbers in a crawl's settings, beside what they mean for its pages and its workers."""

from scrapy_bloom._text import as_expected_pages
from scrapy_bloom.admin.doctor.finding import Finding, advice, loss, ok
from scrapy_bloom.admin.planning import make_plan
from scrapy_bloom.filter.parameters import FilterParameters

# Seconds between which a lease is of use: a callback may hold the interpreter for some, and a dead worker's requests
# wait for as long.
_SHORTEST_LEASE, _LONGEST_LEASE = 10.0, 3600.0
_LONGEST_RETRY_TIMEOUT = 600.0
# A busy server takes that long for an answer, and a reactor may be blocked for that long; the second is scrapy-redis's.
_SHORTEST_SOCKET_TIMEOUT, _LONGEST_SOCKET_TIMEOUT = 0.5, 30.0
# Pages a second that no worker is expected to fetch.
_FASTEST_PACE = 50


def lease(seconds: float) -> Finding:
    """Check BLOOMFILTER_LEASE."""
    check, told = "lease", f"BLOOMFILTER_LEASE = {seconds:g}"
    if seconds < _SHORTEST_LEASE:
        return advice(
            check,
            f"{told}: a callback that holds the interpreter for so long, or a busy machine, makes others take the "
            "worker for dead, and its pages are fetched twice",
            f"set {_SHORTEST_LEASE:g} or more",
        )
    if seconds > _LONGEST_LEASE:
        return advice(
            check, f"{told}: the requests of a worker that dies wait for so long", f"set {_LONGEST_LEASE:g} or less"
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
    elif retry_timeout > _LONGEST_RETRY_TIMEOUT:
        findings.append(
            advice(
                check,
                f"{told}: a worker that meets Redis away at its start waits in silence for so long",
                f"set {_LONGEST_RETRY_TIMEOUT:g} or less",
            )
        )
    if "socket_timeout" in options:
        findings += _socket_timeout(options["socket_timeout"], lease)
    return findings or [ok(check, told)]


def _socket_timeout(seconds: object, lease: float) -> list[Finding]:
    check, told = "timeouts", f"socket_timeout = {seconds}"
    if not isinstance(seconds, (int, float)):
        what = "a server that hangs stops the worker for ever"
    elif seconds < _SHORTEST_SOCKET_TIMEOUT:
        what = "a server that is busy for so long counts as away, and what it was asked is asked again"
    elif seconds > _LONGEST_SOCKET_TIMEOUT:
        what = "a server that hangs blocks the worker for so long"
    elif seconds >= lease >= _SHORTEST_LEASE:
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
    if pace <= _FASTEST_PACE * max(1, workers):
        return [ok(check, f"{told}: that takes {pace:.2g} pages a second")]
    return [
        advice(
            check,
            f"{told}: at less than {pace:,.0f} pages a second they are met and fetched again",
            "set a longer BLOOMFILTER_TTL for the next crawl, or start more workers",
        )
    ]
