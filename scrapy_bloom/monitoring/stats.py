"""Names of the crawl's stats, and the source of each."""

from scrapy.statscollectors import StatsCollector

from scrapy_bloom.filter.describe import Counters, FilterInfo

FILTERED = "dupefilter/filtered"
RECOVERED = "bloomfilter/recovered"
DEAD_LETTERS = "bloomfilter/dead_letters"
QUEUE_LOSSES = "bloomfilter/queue_losses"
# Named as in Scrapy's own scheduler.
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


def publish(stats: StatsCollector, source: Counters | FilterInfo) -> None:
    """Set the stats of one source."""
    for field in _FIELDS[type(source)]:
        stats.set_value(_PREFIX + field, getattr(source, field))
