"""The stats that a crawl shows: their names, and where each comes from."""

from operator import attrgetter

from scrapy.statscollectors import StatsCollector

from scrapy_bloom.info import Counters, FilterInfo

FILTERED = "dupefilter/filtered"
_PREFIX = "bloomfilter/"
RECOVERED = "bloomfilter/recovered"

_OF_THE_PROCESS = ("added", "ambiguous", "cache_hits", "round_trips", "expected_false_positives")
_OF_THE_FILTER = ("fill_ratio", "estimated_count", "estimated_error_rate", "memory_bytes", "layers")
NAMES = (FILTERED, RECOVERED, *(_PREFIX + name for name in (*_OF_THE_PROCESS, *_OF_THE_FILTER)))


_SOURCES = {
    source: (attrgetter(*names), tuple(_PREFIX + name for name in names))
    for source, names in ((Counters, _OF_THE_PROCESS), (FilterInfo, _OF_THE_FILTER))
}


def publish(stats: StatsCollector, shown: Counters | FilterInfo) -> None:
    """Set the stats that `shown` has the values of."""
    values, names = _SOURCES[type(shown)]
    for name, value in zip(names, values(shown), strict=True):
        stats.set_value(name, value)
