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
_STATUS = re.compile(r"[3-9](xx|\d\d)")


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
        retry_failed: whether the next run of `BloomScheduler` crawls requests whose page or item failed.
        retry_statuses: statuses of refused responses that make a page a failed one.

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
        read = cls(**values, always=_patterns(settings.get(ALWAYS)))
        # Some values are invalid only together.
        read.parameters().require_size(read.partitions)
        return read

    def refuse_queue_options(self) -> None:
        """Refuse the settings that only `BloomScheduler` can obey.

        Raises:
            ConfigError: one of them is set.

        Example:
            >>> BloomSettings(partitions=2).refuse_queue_options()
            Traceback (most recent call last):
            scrapy_bloom.errors.ConfigError: BLOOMFILTER_PARTITIONS = 2: only BloomScheduler obeys this setting; ...
        """
        for name, value, default in (
            (options.PARTITIONS.setting, self.partitions, options.PARTITIONS.default),
            (RETRY_FAILED, self.retry_failed, False),
        ):
            if value != default:
                raise ConfigError(
                    f"{name} = {value!r}: only BloomScheduler obeys this setting; set SCHEDULER = "
                    f"'scrapy_bloom.BloomScheduler', or remove {name}"
                )

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
    known = {name.removeprefix(PREFIX): name for name in (*SETTINGS, ALWAYS, RETRY_FAILED, RETRY_STATUSES)}
    for name in settings:
        if not isinstance(name, str) or not name.startswith(PREFIX) or name in known.values():
            continue
        nearest = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1)
        advice = f"; did you mean {known[nearest[0]]}?" if nearest else "."
        # The value may contain a password.
        shown = "…" if "://" in str(settings[name]) else repr(settings[name])
        raise ConfigError(
            f"{name} = {shown}: there is no such setting{advice} The settings are {', '.join(known.values())}"
        )
