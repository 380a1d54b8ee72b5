"""The stats that a crawl shows: their names, and where each comes from."""

from scrapy.statscollectors import StatsCollector

from scrapy_bloom.info import Counters, FilterInfo

FILTERED = "dupefilter/filtered"
_PREFIX = "bloomfilter/"
RECOVERED = "bloomfilter/recovered"

_OF_THE_PROCESS = ("added", "ambiguous", "cache_hits", "round_trips", "expected_false_positives")
_OF_THE_FILTER = ("fill_ratio", "estimated_count", "estimated_error_rate", "memory_bytes", "layers")
NAMES = (FILTERED, RECOVERED, *(_PREFIX + name for name in (*_OF_THE_PROCESS, *_OF_THE_FILTER)))


def publish(stats: StatsCollector, shown: Counters | FilterInfo) -> None:
    """Set the stats that `shown` has the values of."""
    for name in _OF_THE_PROCESS if isinstance(shown, Counters) else _OF_THE_FILTER:
        stats.set_value(_PREFIX + name, getattr(shown, name))
