"""Report request events to stats, log and signals, and name the stats. A failing handler never loses a request."""

import logging
from collections.abc import Callable
from typing import Any

from scrapy import Request, Spider
from scrapy.dupefilters import BaseDupeFilter
from scrapy.statscollectors import StatsCollector

from scrapy_bloom.filter.info import Counters, FilterInfo

logger = logging.getLogger(__name__)

# scrapy-redis's own stats.
ENQUEUED, DEQUEUED = "scheduler/enqueued/redis", "scheduler/dequeued/redis"
FILTERED = "dupefilter/filtered"
RECOVERED = "bloomfilter/recovered"
DEAD_LETTERS = "bloomfilter/dead_letters"
FAILED = "bloomfilter/failed"
QUEUE_LOSSES = "bloomfilter/queue_losses"
# Named as in Scrapy's own scheduler.
UNSERIALIZABLE = "scheduler/unserializable"

_PREFIX = "bloomfilter/"
_FIELDS: dict[type, tuple[str, ...]] = {
    Counters: ("added", "cache_hits", "round_trips", "losses"),
    FilterInfo: ("fill_ratio", "count", "current_error_rate", "memory_bytes", "layers"),
}
NAMES = (
    FILTERED,
    RECOVERED,
    DEAD_LETTERS,
    FAILED,
    QUEUE_LOSSES,
    UNSERIALIZABLE,
    *(_PREFIX + field for fields in _FIELDS.values() for field in fields),
)


def publish(stats: StatsCollector, source: Counters | FilterInfo) -> None:
    """Set the stats of one source."""
    for field in _FIELDS[type(source)]:
        stats.set_value(_PREFIX + field, getattr(source, field))


def call_safely(call: Callable[..., object], *arguments: Any) -> bool:
    """Call a handler, such as a user's stats collector; return False and log if it raises."""
    try:
        call(*arguments)
    except Exception:  # no request is lost for a handler's error
        logger.debug("A stats collector or handler failed", exc_info=True)
        return False
    return True


class RequestNotifier:
    """Reports the requests of one crawl."""

    def __init__(self, spider: Spider, stats: StatsCollector | None, dupefilter: BaseDupeFilter) -> None:
        self._spider = spider
        self._stats = stats
        self._dupefilter = dupefilter

    def count(self, stat: str, number: int = 1) -> None:
        """Add a number to a stat."""
        if self._stats is not None:
            call_safely(self._stats.inc_value, stat, number)

    def note_repeat(self, request: Request) -> None:
        """Log and count a repeat, as the dupefilter does."""
        call_safely(self._dupefilter.log, request, self._spider)
