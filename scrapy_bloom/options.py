"""What a user may ask of a filter: how each value is read, whatever it comes as, and refused.

The same readers serve the settings (`BLOOMFILTER_CAPACITY = …`) and the arguments (`capacity = …`), so that a
refusal always carries the name that the user wrote.
"""

import math
from collections.abc import Callable

from scrapy_bloom.errors import ConfigError

DEFAULT_CAPACITY = 1_000_000
DEFAULT_ERROR_RATE = 1e-6
DEFAULT_EXPANSION = 2
DEFAULT_CACHE_SIZE = 65_536
DEFAULT_RETRY_TIMEOUT = 30.0
DEFAULT_BATCH_SIZE = 100
DEFAULT_LEASE = 60.0
# No crawl meets so many pages that it could tell a smaller one from this.
LEAST_ERROR_RATE = 1e-15
# A server's clock is read at each look at the filter; generations of a fifth of this are as short as that bears.
LEAST_TTL = 0.1


def _number(name: str, value: object, allowed: str) -> float:
    """A number from a number or its text: `1e8`, `100_000_000` and `100000000` are the same."""
    refusal = ConfigError(f"{name} = {value!r}: {allowed}")
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise refusal
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise refusal from None
    if not math.isfinite(number):
        raise refusal
    return number


def whole(minimum: int, purpose: str) -> Callable[[str, object], int]:
    """A reader of whole numbers of at least `minimum`."""
    allowed = f"must be a whole number of at least {minimum}; {purpose}"

    def read(name: str, value: object) -> int:
        number = _number(name, value, allowed)
        if number != math.floor(number) or number < minimum:
            raise ConfigError(f"{name} = {value!r}: {allowed}")
        return int(number)

    return read


def error_rate(name: str, value: object) -> float:
    """The error rate, from the least that is allowed to 1, which is excluded."""
    allowed = (
        f"must lie between 0 and 1, both excluded, and not below {LEAST_ERROR_RATE:g}; set the share of new requests "
        "that may be taken for seen, for example 1e-6 for one page in a million"
    )
    number = _number(name, value, allowed)
    if not LEAST_ERROR_RATE <= number < 1:
        raise ConfigError(f"{name} = {value!r}: {allowed}")
    return number


def seconds(purpose: str) -> Callable[[str, object], float]:
    """A reader of durations in seconds, 0 included."""
    allowed = f"must be a number of seconds; {purpose}"

    def read(name: str, value: object) -> float:
        number = _number(name, value, allowed)
        if number < 0:
            raise ConfigError(f"{name} = {value!r}: {allowed}")
        return number

    return read


def ttl(name: str, value: object) -> float | None:
    """The time to live in seconds; 0 or None, for ever, is None."""
    number = (value is not None and _ttl(name, value)) or None
    if number is not None and number < LEAST_TTL:
        raise ConfigError(f"{name} = {value!r}: must be 0, for ever, or at least {LEAST_TTL:g} seconds")
    return number


capacity = whole(1, "set how many different requests the crawl is expected to meet")
expansion = whole(0, "set how many times larger each further layer is, 1 for equal layers, 0 to never grow")
_ttl = seconds("set how long a request is remembered at least, 0 for ever")
retry_timeout = seconds("set how long to wait for Redis when it is away, 0 not to wait")
batch_size = whole(1, "set how many requests BloomScheduler checks and queues at once")
cache_size = whole(0, "set how many repeats the process remembers, 0 for none")


def lease(name: str, value: object) -> float:
    """The lease in seconds, above 0."""
    allowed = "must be above 0; set the seconds of silence after which a worker's requests are put back"
    number = _number(name, value, allowed)
    if number <= 0:
        raise ConfigError(f"{name} = {value!r}: {allowed}")
    return number
