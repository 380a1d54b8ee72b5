"""The guard of another package's stats collector, whose errors would lose pages."""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from scrapy.crawler import Crawler
from scrapy.statscollectors import StatsCollector

from scrapy_bloom.runtime import RUNTIME, Runtime
from scrapy_bloom.text import LimitedWarnings, get_logger
from scrapy_bloom.transport.connect import bound_clients
from scrapy_bloom.transport.failures import describe

logger = get_logger(__name__)

# The calls of a stats collector, and their answers without it. Scrapy 2.14 and newer keeps them in attributes, too.
_STATS: dict[str, Callable[..., Any]] = {
    "get_value": lambda key, default=None, spider=None: default,  # noqa: ARG005  # as Scrapy's
    "get_stats": lambda *_, **__: {},
    **dict.fromkeys(("set_value", "set_stats", "inc_value", "max_value", "min_value"), lambda *_, **__: None),
    **dict.fromkeys(("clear_stats", "open_spider", "close_spider"), lambda *_, **__: None),
}
_CACHED = "_cached_"
# A failed stats collector rests for so many times as long as it took to fail.
_REST = 10
# Its methods call each other. But redis-py logs each connection, and Scrapy counts that line by a further call.
_DEPTH = 2


def guard_stats(crawler: Crawler, runtime: Runtime = RUNTIME) -> None:
    """Keep the errors of another package's stats collector from Scrapy, whose page each of them would lose.

    A failed call is logged, and further ones are skipped for `_REST` times as long as it took, so that an outage does
    not block the reactor. A collector in Redis gets the short timeouts of this package, and a warning.
    """
    stats: Any = crawler.stats
    if type(stats).__module__ == StatsCollector.__module__:
        return
    setting = f"STATS_CLASS = '{type(stats).__module__}.{type(stats).__qualname__}'"
    resume, complaints, active = 0.0, LimitedWarnings(logger), threading.local()

    def guarded(call: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def call_or_skip(*arguments: Any, **options: Any) -> Any:
            nonlocal resume
            begin, depth = runtime.monotonic(), getattr(active, "depth", 0)
            if begin < resume or depth > _DEPTH:
                return instead(*arguments, **options)
            active.depth = depth + 1
            try:
                return call(*arguments, **options)
            except Exception as error:  # any error of another package
                now = runtime.monotonic()
                resume = now + _REST * (now - begin)
                complaints.warn(
                    "%s: failed (%s). Its stats are incomplete, and no page is lost", setting, describe(error)
                )
                return instead(*arguments, **options)
            finally:
                active.depth = depth

        return call_or_skip

    for name in _STATS.keys() & {*dir(type(stats))}:
        call = object.__getattribute__(stats, name)
        getattr(stats, "__dict__", {}).pop(_CACHED + name, None)
        with suppress(AttributeError):  # its class may forbid it
            setattr(stats, name, guarded(call, _STATS[name]))
    if bound_clients(stats):
        logger.warning(
            "%s: calls Redis for each stat of a page, which blocks the crawl, and misses the stats of an outage. "
            "Remove it: `scrapy bloom info --json` has the crawl's numbers",
            setting,
        )
