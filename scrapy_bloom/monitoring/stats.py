"""The stats that a crawl shows: their names, and where each comes from."""

import contextlib
import logging
from collections.abc import Iterator

from scrapy.statscollectors import StatsCollector

from scrapy_bloom.filter.describe import Counters, FilterInfo

logger = logging.getLogger(__name__)

FILTERED = "dupefilter/filtered"
RECOVERED = "bloomfilter/recovered"
DEAD_LETTERS = "bloomfilter/dead_letters"
QUEUE_LOSSES = "bloomfilter/queue_losses"
# As Scrapy's own scheduler counts them.
UNSERIALIZABLE = "scheduler/unserializable"

_PREFIX = "bloomfilter/"
_FIELDS: dict[type, tuple[str, ...]] = {
    Counters: ("added", "ambiguous", "cache_hits", "round_trips", "expected_false_positives"),
    FilterInfo: ("fill_ratio", "estimated_count", "estimated_error_rate", "memory_bytes", "layers"),
}
NAMES = (
    FILTERED,
    RECOVERED,
    DEAD_LETTERS,
    QUEUE_LOSSES,
    UNSERIALIZABLE,
    *(_PREFIX + field for fields in _FIELDS.values() for field in fields),
)


@contextlib.contextmanager
def failures_logged() -> Iterator[None]:
    """Log what a stats collector raises, and go on: one of the user's may keep its stats anywhere."""
    try:
        yield
    except Exception:  # whatever it was, no request is lost for it
        logger.debug("A stats collector failed", exc_info=True)


def publish(stats: StatsCollector, source: Counters | FilterInfo) -> None:
    """Set the stats that `source` has the values of."""
    for field in _FIELDS[type(source)]:
        stats.set_value(_PREFIX + field, getattr(source, field))
