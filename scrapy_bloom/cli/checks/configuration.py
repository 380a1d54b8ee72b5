"""Check the settings of a crawl: classes, values and parameters."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from typing import Any

from scrapy_redis.spiders import RedisMixin

from scrapy_bloom._filter_key import FilterKey
from scrapy_bloom._format import as_expected_pages, as_number, plural
from scrapy_bloom.cli._target import UNREADABLE
from scrapy_bloom.cli.checks.case import (
    BLOOM_SCHEDULER,
    LEASED_START_URLS,
    Case,
    Finding,
    advice,
    loss,
    name_of,
    ok,
    refused,
)
from scrapy_bloom.cli.planning import make_plan
from scrapy_bloom.errors import BloomError, ConfigError
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.settings import PREFIX, BloomSettings
from scrapy_bloom.transport.failures import FAULTS, describe

_PACKAGES = ("scrapy-bloom", "Scrapy", "scrapy-redis", "redis")
_LOCAL = ("localhost", "127.", "::1", "unix:")
JSON = "scrapy_bloom.serializers.json"
_SET_FILTER = "set ADDONS = {'scrapy_bloom.Addon': 500}, or DUPEFILTER_CLASS = 'scrapy_bloom.BloomRFPDupeFilter'"
_SET_SCHEDULER = "set SCHEDULER = 'scrapy_bloom.BloomScheduler'"
# A callback may block a worker for seconds, and a dead worker's requests wait for the whole lease.
_MIN_LEASE_SECONDS, _MAX_LEASE_SECONDS = 10.0, 3600.0
_MAX_RETRY_SECONDS = 600.0
# A busy server may need the minimum for a reply; scrapy-redis's default is the maximum.
_MIN_SOCKET_SECONDS, _MAX_SOCKET_SECONDS = 0.5, 30.0
# More pages per second than a worker is expected to fetch.
_MAX_PAGES_PER_SECOND = 50
_MAX_EXAMPLES = 3


def check_versions(case: Case) -> Iterator[Finding]:  # noqa: ARG001  # the same for every crawl
    """Report the versions of the packages."""
    yield ok("versions", ", ".join(f"{package} {version(package)}" for package in _PACKAGES))


def check_settings(case: Case) -> Iterator[Finding]:
    """Report all refused settings, where a crawl would report the first one only."""
    refusals = [] if case.target.refusal is None else [str(case.target.refusal)]
    for read in _reads(case):
        try:
            read()
        except (BloomError, *UNREADABLE) as error:
            refusals.append(describe(error))
    for text in dict.fromkeys(refusals):
        yield refused("settings", text)
    if not refusals:
        yield ok("settings", "no setting is refused")


def _reads(case: Case) -> Iterator[Callable[[], object]]:
    """Yield the reads of settings at the start of a crawl; without a spider only the key's."""
    if case.uses_filter:
        yield lambda: BloomSettings.from_settings(case.settings)
    if case.target.has_spider and case.has_bloom_scheduler and case.dupefilter is not None:
        yield lambda: BLOOM_SCHEDULER.check_settings(case.settings)
    if case.target.has_spider and case.is_shared:
        yield lambda: FilterKey.for_workers(case.settings, case.target.spider)
    elif case.has_fixed_key or not case.target.has_spider:
        yield lambda: case.target.key
    yield lambda: case.start_key


def check_classes(case: Case) -> Iterator[Finding]:
    """Check the dupefilter, the scheduler, the spider, the serializer and the queue's sharers."""
    if not case.target.has_spider:
        return
    yield _dupefilter(case)
    yield _scheduler(case)
    spider = case.target.crawler.spidercls
    name = f"{spider.__module__}.{spider.__qualname__}"
    if case.has_bloom_scheduler and issubclass(spider, RedisMixin) and not issubclass(spider, LEASED_START_URLS):
        yield loss(
            "spider",
            f"{name} pops its start URLs, like scrapy-redis's RedisSpider: a dead worker loses those it has popped",
            "import RedisSpider or RedisCrawlSpider from scrapy_bloom",
        )
    else:
        yield ok("spider", name)
    if case.is_shared:
        yield _serializer(case)
        with suppress(ConfigError):
            yield from _queue_sharers(case)


def _dupefilter(case: Case) -> Finding:
    check, text = "dupefilter", f"DUPEFILTER_CLASS = {name_of(case.settings['DUPEFILTER_CLASS'])!r}"
    if case.dupefilter is None:
        return refused(check, f"{text} cannot be imported", _SET_FILTER)
    if case.uses_filter:
        return ok(check, text)
    return loss(check, f"{text}: another package's class, which does not use the filter", _SET_FILTER)


def _scheduler(case: Case) -> Finding:
    check, text = "scheduler", f"SCHEDULER = {name_of(case.settings['SCHEDULER'])!r}"
    if case.scheduler is None:
        return refused(check, f"{text} cannot be imported", _SET_SCHEDULER)
    if case.has_bloom_scheduler:
        return ok(check, text)
    if not case.is_shared:
        return advice(check, f"{text}: workers share nothing, each process crawls by itself", _SET_SCHEDULER)
    return loss(
        check,
        f"{text}: loses requests at Ctrl-C, with a lost reply, and when Redis is unreachable or a worker dies",
        _SET_SCHEDULER,
    )


def _serializer(case: Case) -> Finding:
    check, setting, name = "serializer", case.settings["SCHEDULER_SERIALIZER"], case.serializer
    if not _can_import(setting):
        return refused(check, f"{name!r} cannot be imported", "set SCHEDULER_SERIALIZER to a module")
    if name == JSON:
        return ok(check, "JSON: write access to Redis is no way to execute code in the workers")
    kind = "pickle" if name is None else repr(name)
    if case.queue_address is not None and not case.queue_address.startswith(_LOCAL):
        return advice(
            check,
            f"{kind}: anybody who can write to this Redis can execute code in the workers",
            f"set SCHEDULER_SERIALIZER = {JSON!r} when the queue is empty",
        )
    where = "" if case.queue_address is None else ", on this machine"
    return ok(check, f"{kind}{where}; {JSON!r} is safer if others can write to Redis")


def _can_import(serializer: Any) -> bool:
    if serializer and isinstance(serializer, str):
        try:
            import_module(serializer)
        except ImportError:
            return False
    return True


def _queue_sharers(case: Case) -> Iterator[Finding]:
    if others := case.target.queue_sharers:
        shown = ", ".join(others[:_MAX_EXAMPLES]) + (", …" if len(others) > _MAX_EXAMPLES else "")
        yield advice(
            "queue",
            f"SCHEDULER_QUEUE_KEY = {case.settings['SCHEDULER_QUEUE_KEY']!r}: other spiders ({shown}) have the same "
            "queue. Beside or after them a crawl takes their requests, which name callbacks of their spider",
            "put %(spider)s into the key, unless you only ever run one of these spiders",
        )


def check_values(case: Case) -> Iterator[Finding]:
    """Check allowed but harmful values: flush, lease, timeouts."""
    if not case.target.has_spider:
        return
    if case.get_flag("SCHEDULER_FLUSH_ON_START"):
        yield _flush(case)
    if case.config is not None and case.uses_filter:
        if case.has_bloom_scheduler:
            yield _lease(case.config.lease)
        yield from _timeouts(case, case.config)


def _flush(case: Case) -> Finding:
    check, setting = "flush", "SCHEDULER_FLUSH_ON_START = True"
    kept = ", though SCHEDULER_PERSIST = True keeps it for the next crawl" if case.get_flag("SCHEDULER_PERSIST") else ""
    if not case.is_shared:
        return advice(check, f"{setting}: the crawl deletes the filter at its start{kept}", "remove it after one crawl")
    return loss(
        check,
        f"{setting}: each starting worker deletes the queue and the filter, with the requests of other workers{kept}",
        "remove it; to start over, run `scrapy bloom clear` before the first worker starts",
    )


def _lease(seconds: float) -> Finding:
    check, setting = "lease", f"BLOOMFILTER_LEASE = {seconds:g}"
    if seconds < _MIN_LEASE_SECONDS:
        return advice(
            check,
            f"{setting}: a blocking callback or a busy machine makes a live worker look dead, and its pages are "
            "fetched twice",
            f"set {_MIN_LEASE_SECONDS:g} or more",
        )
    if seconds > _MAX_LEASE_SECONDS:
        return advice(
            check, f"{setting}: a dead worker's requests wait for so long", f"set {_MAX_LEASE_SECONDS:g} or less"
        )
    return ok(check, setting)


def _timeouts(case: Case, config: BloomSettings) -> Iterator[Finding]:
    check, setting = "timeouts", f"BLOOMFILTER_RETRY_TIMEOUT = {config.retry_timeout:g}"
    harms: list[tuple[object, str, str]] = []
    with suppress(BloomError, *FAULTS, *UNREADABLE):
        for prefix, client in {"": case.target.queue_client, PREFIX: case.target.filter_client}.items():
            connection = client.get_connection_kwargs()
            if "socket_timeout" in connection and (not prefix or case.target.is_separate):
                seconds = connection["socket_timeout"]
                harms.append((seconds, _socket_timeout_harm(seconds, config.lease), prefix))
    harms = [each for each in harms if each[1]]
    if config.retry_timeout == 0:
        yield advice(check, f"{setting}: a worker that starts while Redis is unreachable fails at once", "set seconds")
    elif config.retry_timeout > _MAX_RETRY_SECONDS:
        yield advice(
            check,
            f"{setting}: a worker that starts while Redis is unreachable waits in silence for so long",
            f"set {_MAX_RETRY_SECONDS:g} or less",
        )
    elif not harms:
        yield ok(check, setting)
    for seconds, harm, prefix in harms:
        yield advice(
            check,
            f"socket_timeout = {seconds}: {harm}",
            f"remove it from {prefix}REDIS_PARAMS and {prefix}REDIS_URL: the default is 5",
        )


def _socket_timeout_harm(seconds: object, lease: float) -> str:
    """Return the harm of a socket_timeout, or an empty text."""
    if not isinstance(seconds, (int, float)):
        return "a hanging server blocks the worker for ever"
    if seconds < _MIN_SOCKET_SECONDS:
        return "a busy server counts as unreachable, and commands are sent again"
    if seconds > _MAX_SOCKET_SECONDS:
        return "a hanging server blocks the worker for so long"
    if seconds >= lease >= _MIN_LEASE_SECONDS:
        return f"a worker that waits so long for a reply counts as dead (BLOOMFILTER_LEASE = {lease:g})"
    return ""


def check_parameters(case: Case) -> Iterator[Finding]:
    """Check the expected number of missed pages, and the capacity and the TTL for the pending requests."""
    parameters = case.parameters
    if parameters is None:
        return
    yield _error_rate(parameters)
    pending = sum(state.waiting for state in case.queue_states)
    text = f"{plural(pending, 'pending request')}, capacity {parameters.capacity:,}"
    if pending <= parameters.capacity:
        yield ok("capacity", text)
    else:
        outcome = (
            "it grows, and each check takes longer" if parameters.expansion else "it cannot grow, and misses pages"
        )
        yield advice("capacity", f"{text}: {outcome}", "set a larger BLOOMFILTER_CAPACITY for the next crawl")
    if parameters.ttl:
        yield _ttl(case, pending, parameters.ttl)


def _error_rate(parameters: FilterParameters) -> Finding:
    check, missed = "error rate", make_plan(parameters).expected_false_positives
    bound = "at most" if parameters.ttl else "expected"
    rate = as_number(parameters.error_rate)
    text = f"{rate}: {as_expected_pages(missed)} of {parameters.capacity:,} are missed, {bound}"
    if missed <= 1:
        return ok(check, text)
    return advice(
        check, text, "set a smaller BLOOMFILTER_ERROR_RATE for the next crawl; `scrapy bloom plan --compare` lists them"
    )


def _ttl(case: Case, pending: int, ttl: float) -> Finding:
    alive = sum(not worker.is_silent for state in case.queue_states for worker in state.workers)
    pace = pending / ttl
    text = f"{plural(pending, 'pending request')}, forgotten by the filter after {ttl:g} s"
    if pace <= _MAX_PAGES_PER_SECOND * max(1, alive):
        return ok("ttl", f"{text}: {pace:.2g} pages a second are enough")
    return advice(
        "ttl",
        f"{text}: at less than {pace:,.0f} pages a second some are found and fetched again",
        "set a longer BLOOMFILTER_TTL for the next crawl, or start more workers",
    )
