"""The BLOOMFILTER_* settings of a crawl, read once into a frozen dataclass."""

import difflib
import re
from dataclasses import dataclass
from typing import Any, Self

from scrapy.settings import BaseSettings

from scrapy_bloom import options
from scrapy_bloom._scrapy.components import read_flag
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.filter.parameters import FilterParameters

PREFIX = options.PREFIX
SETTINGS = tuple(option.setting for option in options.OPTIONS)

ALWAYS = "BLOOMFILTER_ALWAYS"
RETRY_FAILED, RETRY_STATUSES = "BLOOMFILTER_RETRY_FAILED", "BLOOMFILTER_RETRY_STATUSES"
FAILED_ITEMS = "BLOOMFILTER_FAILED_ITEMS"
_STATUS = re.compile(r"[3-9](xx|\d\d)")

# Settings of scrapy-redis's forks: they set the mechanism, from which no error rate follows.
_LEGACY_SETTINGS = ("BLOOMFILTER_BIT", "BLOOMFILTER_HASH_NUMBER")


@dataclass(frozen=True)
class BloomSettings:
    """The BLOOMFILTER_* settings; each field has the setting's name in lower case, without the prefix.

    Attributes:
        capacity: expected number of distinct requests.
        error_rate: share of new requests that may be mistaken for duplicates, from 1e-15 to below 1.
        expansion: growth factor of each further layer; 0: the filter never grows.
        ttl: seconds for which the filter remembers a request at least; None: forever.
        cache_size: duplicates in a worker's cache; 0: no cache.
        retry_timeout: seconds for which a worker retries while Redis is unreachable; 0: no retries.
        batch_size: requests that `BloomScheduler` checks and queues in one batch.
        lease: seconds without a heartbeat after which `BloomScheduler` requeues the leases of a worker.
        max_deliveries: deaths of workers with the same request that make it a dead letter; 0: no bound.
        partitions: parts of the queue and the filter of `BloomScheduler`, each with a cluster slot of its own.
        always: patterns of the URLs whose requests are new once in each run.
        retry_failed: whether the next run crawls requests whose page failed.
        retry_statuses: statuses of refused responses that make a page a failed one.
        failed_items: whether an item pipeline that raises makes the page a failed one.

    Example:
        >>> BloomSettings(capacity=5000).capacity, BloomSettings().batch_size
        (5000, 100)
    """

    capacity: int = options.CAPACITY.default
    error_rate: float = options.ERROR_RATE.default
    expansion: int = options.EXPANSION.default
    ttl: float | None = options.TTL.default
    cache_size: int = options.CACHE_SIZE.default
    retry_timeout: float = options.RETRY_TIMEOUT.default
    batch_size: int = options.BATCH_SIZE.default
    lease: float = options.LEASE.default
    max_deliveries: int = options.MAX_DELIVERIES.default
    partitions: int = options.PARTITIONS.default
    always: tuple[re.Pattern[str], ...] = ()
    retry_failed: bool = False
    retry_statuses: frozenset[int] = frozenset((*range(500, 600), 408, 429))
    failed_items: bool = False

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> Self:
        """Read and check the settings.

        Args:
            settings: the crawl's settings; unset ones have their defaults.

        Returns:
            The values, checked one by one and together.

        Raises:
            ConfigError: a setting is invalid or unknown; the text has its name, its value and the allowed values.

        Example:
            >>> BloomSettings.from_settings(Settings({"BLOOMFILTER_CAPACITY": "1e8"})).capacity
            100000000
        """
        _refuse_unknown(settings)
        values: dict[str, Any] = {
            option.name: option.read(settings[option.setting])
            for option in options.OPTIONS
            if option.setting in settings
        }
        if settings.get(RETRY_STATUSES) is not None:
            values["retry_statuses"] = _statuses(settings[RETRY_STATUSES])
        values["retry_failed"] = read_flag(settings, RETRY_FAILED)
        values["failed_items"] = read_flag(settings, FAILED_ITEMS)
        if values["failed_items"] and not values["retry_failed"]:
            raise ConfigError(
                f"{FAILED_ITEMS} = {settings[FAILED_ITEMS]!r}: has no effect without {RETRY_FAILED}, which "
                f"keeps failed pages; set {RETRY_FAILED} = True as well, or remove {FAILED_ITEMS}"
            )
        read = cls(**values, always=_patterns(settings.get(ALWAYS)))
        # Some values are invalid only together.
        read.parameters().require_size(read.partitions)
        return read

    def parameters(self) -> FilterParameters:
        """Return the settings that all workers of a filter must agree on.

        Returns:
            The parameters of the filter.

        Example:
            >>> BloomSettings(capacity=5000).parameters().capacity
            5000
        """
        return FilterParameters(self.capacity, self.error_rate, self.expansion, self.ttl)


def _patterns(value: Any) -> tuple[re.Pattern[str], ...]:
    """Return the compiled patterns of BLOOMFILTER_ALWAYS: a list, one pattern as text, or None."""
    given = [value] if isinstance(value, str) else value or []
    # A list on the command line is text: as a pattern, a class of characters that almost every URL has.
    is_text = isinstance(value, str) and value.startswith("[") and value.endswith("]")
    is_list = isinstance(given, (list, tuple, set)) and not is_text
    if not is_list or not all(isinstance(pattern, str) and pattern for pattern in given):
        raise ConfigError(
            f"{ALWAYS} = {value!r}: must be a list of regular expressions, none of them empty, or one as text "
            r"without brackets around it; set for example [r'/sitemap\.xml$'] for the URLs that are new in each run"
        )
    return tuple(map(_compile, given))


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"{ALWAYS}: {pattern!r} is no regular expression of Python's re ({error}); escape special characters by a "
            "backslash"
        ) from None


def _statuses(value: Any) -> frozenset[int]:
    """Return the statuses of BLOOMFILTER_RETRY_STATUSES: a list, or text with commas."""
    given = value.split(",") if isinstance(value, str) else value
    texts = [str(each).strip().lower() for each in given] if isinstance(given, (list, tuple, set, frozenset)) else [""]
    if not all(map(_STATUS.fullmatch, texts)):
        raise ConfigError(
            f"{RETRY_STATUSES} = {value!r}: must be a list of HTTP statuses from 300 to 999, or of classes such as "
            "'5xx'; set for example ['5xx', 408, 429], the default"
        )
    return frozenset(status for status in range(300, 1000) if {str(status), f"{status // 100}xx"}.intersection(texts))


def _refuse_unknown(settings: BaseSettings) -> None:
    known = (*SETTINGS, ALWAYS, RETRY_FAILED, RETRY_STATUSES, FAILED_ITEMS)
    for name in settings:
        if not isinstance(name, str) or not name.startswith(PREFIX) or name in known:
            continue
        if name in _LEGACY_SETTINGS:
            raise ConfigError(
                f"{name} = {settings[name]!r}: scrapy-bloom sizes the filter by its purpose. Remove "
                f"{' and '.join(_LEGACY_SETTINGS)}, and set BLOOMFILTER_CAPACITY, the expected number of distinct "
                f"requests (default {options.CAPACITY.default:_}), and BLOOMFILTER_ERROR_RATE, the share of new "
                f"requests that may be mistaken for duplicates (default {options.ERROR_RATE.default_text})"
            )
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
        # The value may contain a password.
        shown = "…" if "://" in str(settings[name]) else repr(settings[name])
        raise ConfigError(
            f"{name} = {shown}: there is no such setting; did you mean {nearest}? The settings are {', '.join(known)}"
        )
