"""The table of options of a filter and of a crawl: values are read, refused and documented by it.

The same rows describe settings (`BLOOMFILTER_CAPACITY = …`), arguments (`capacity = …`) and options of commands
(`--capacity`). `docs/settings.md` shows the table, and a test compares both.
"""

import math
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from scrapy_bloom._format import as_number
from scrapy_bloom.errors import ConfigError

PREFIX = "BLOOMFILTER_"

Number = TypeVar("Number", int, float, int | None, float | None)


@dataclass(frozen=True)
class Option(Generic[Number]):
    """An option with a number as its value.

    Attributes:
        name: the argument's name.
        default: the default.
        allowed: the allowed values in an error, after "must".
        meaning: the meaning in the documentation; up to a semicolon, in errors, too.
        least: the smallest allowed number.
        limit: the smallest number that is too large; infinity is never allowed.
        is_integer: only whole numbers are allowed.
        or_zero: 0 is allowed, too, and means `zero`.
        zero: the value that 0 stands for.
    """

    name: str
    default: Number
    allowed: str
    meaning: str
    least: float = 0
    limit: float = math.inf
    is_integer: bool = False
    or_zero: bool = False
    zero: int | None = None

    @property
    def setting(self) -> str:
        """The setting's name."""
        return PREFIX + self.name.upper()

    @property
    def label(self) -> str:
        """The option in an error: the argument, and the setting."""
        return f"{self.name} ({self.setting})"

    def read(self, value: object) -> Number:
        """Return the number that a value stands for: `1e8`, `100_000_000` and `"1e8"` are the same.

        Args:
            value: a number, its text, or None for an option whose `zero` is None.

        Raises:
            ConfigError: the value is invalid; the text has the name, the value, the allowed values and advice.
        """
        if self.or_zero and (value is self.zero or _number(value) == 0):
            return self.zero  # type: ignore[return-value]  # `zero` is a value of such an option
        number = _number(value)
        if number is None or not self.least <= number < self.limit or (self.is_integer and number != int(number)):
            meaning = self.meaning.partition(";")[0]
            raise ConfigError(f"{self.label} = {value!r}: must {self.allowed}; set the {meaning}")
        return int(number) if self.is_integer else number  # type: ignore[return-value]  # as is_integer says

    @property
    def default_text(self) -> str:
        """The default as the documentation shows it."""
        default = self.default or 0
        return f"{default:,}" if self.is_integer else as_number(default)


def _number(value: object) -> float | None:
    """Return a value, or its text, as a number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


CAPACITY = Option[int](
    "capacity",
    1_000_000,
    "be a whole number of at least 1",
    "expected number of distinct requests; a layer takes at most 34 GB",
    least=1,
    is_integer=True,
)
ERROR_RATE = Option[float](
    "error_rate",
    1e-6,
    # No crawl has so many pages that a smaller rate would make a difference.
    "lie between 0 and 1, both excluded, and not below 1e-15",
    "share of new requests that may be mistaken for duplicates, over the whole filter",
    least=1e-15,
    limit=1,
)
EXPANSION = Option[int](
    "expansion",
    2,
    "be a whole number of at least 0",
    "growth factor of each further layer; 1: equal layers; 0: the filter never grows",
    is_integer=True,
)
TTL = Option[float | None](
    "ttl",
    None,
    # Idle workers ask Redis again within 0.6 s, and must find the filter that they have asked before.
    "be 0 (forever) or at least 1 second",
    "seconds for which the filter remembers a request, up to 1.25 times as long; 0: forever",
    least=1.0,
    or_zero=True,
)
CACHE_SIZE = Option[int](
    "cache_size",
    65_536,
    "be a whole number of at least 0",
    "number of duplicates in a worker's cache, about 260 bytes each; 0: no cache",
    is_integer=True,
)
RETRY_TIMEOUT = Option[float](
    "retry_timeout",
    30.0,
    "be a number of seconds",
    "seconds for which a worker retries while Redis is unreachable",
)
BATCH_SIZE = Option[int](
    "batch_size",
    100,
    # Redis executes a sync as one script, and other clients wait for it.
    "be a whole number from 1 to 1,000",
    "number of requests that `BloomScheduler` checks and queues in one batch",
    least=1,
    limit=1001,
    is_integer=True,
)
LEASE = Option[float](
    "lease",
    60.0,
    "be above 0, and at most 86,400",
    "seconds without a heartbeat after which the requests of a worker are requeued",
    least=math.nextafter(0, 1),
    limit=math.nextafter(86_400, math.inf),
)
MAX_DELIVERIES = Option[int](
    "max_deliveries",
    5,
    "be 0 (no limit) or a whole number of at least 2",
    "number of workers whose deaths with the same request make it a dead letter; 0: no limit",
    least=2,
    is_integer=True,
    or_zero=True,
    zero=0,
)

PARTITIONS = Option[int](
    "partitions",
    1,
    "be a whole number from 1 to 1,024",
    "number of parts of the queue and the filter of `BloomScheduler`, each in its own slot of a cluster",
    least=1,
    limit=1025,
    is_integer=True,
)

# In the order of the documentation.
OPTIONS: tuple[Option[Any], ...] = (
    CAPACITY,
    ERROR_RATE,
    EXPANSION,
    TTL,
    CACHE_SIZE,
    RETRY_TIMEOUT,
    BATCH_SIZE,
    LEASE,
    MAX_DELIVERIES,
    PARTITIONS,
)
BY_NAME = {option.name: option for option in OPTIONS}
