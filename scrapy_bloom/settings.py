"""The settings of a crawl: a table of ours, which are read once into a frozen dataclass, and readers of Scrapy's.

The rows of the table describe settings (`BLOOMFILTER_CAPACITY = …`), arguments (`capacity = …`) and options of commands
(`--capacity`). `docs/settings.md` shows the table, and a test compares both.
"""

import difflib
import math
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object

from scrapy_bloom.errors import ConfigError
from scrapy_bloom.text import as_number

# scrapy-redis's default SCHEDULER_SERIALIZER, and ours.
PICKLE, SERIALIZER = "scrapy_redis.picklecompat", "scrapy_bloom.serializer"

PREFIX = "BLOOMFILTER_"

Number = TypeVar("Number", int, float, int | None, float | None)


@dataclass(frozen=True)
class Option(Generic[Number]):
    """An option with a number as its value.

    Attributes:
        name: the argument's name.
        default: the default.
        meaning: the meaning in the documentation; up to a semicolon, in errors, too.
        least: the smallest allowed number.
        limit: the smallest number that is too large; infinity is never allowed.
        or_zero: 0 is allowed, too. It always is if the default is None, and the same then.
        rule: the allowed values in an error, unless they are the whole numbers between the limits.
    """

    name: str
    default: Number
    meaning: str
    least: float = 0
    limit: float = math.inf
    or_zero: bool = False
    rule: str = ""

    @property
    def is_integer(self) -> bool:
        """True if only whole numbers are allowed."""
        return isinstance(self.default, int)

    @property
    def allowed(self) -> str:
        """The allowed values in an error, after "must"."""
        bounds = f"of at least {self.least}" if self.limit == math.inf else f"from {self.least} to {self.limit - 1:,}"
        return self.rule or f"be a whole number {bounds}"

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
            value: a number, its text, or None if that is the default.

        Raises:
            ConfigError: the value is invalid; the text has the name, the value, the allowed values and advice.
        """
        number = _number(value)
        if self.default is None and (value is None or number == 0):
            return self.default
        if self.or_zero and number == 0:
            return 0
        if number is None or not self.least <= number < self.limit or (self.is_integer and number != int(number)):
            meaning = self.meaning.partition(";")[0]
            raise ConfigError(f"{self.label} = {value!r}: must {self.allowed}; set the {meaning}")
        return int(number) if self.is_integer else number  # type: ignore[return-value]  # as is_integer says

    @property
    def default_text(self) -> str:
        """The default as the documentation shows it."""
        return f"{self.default:,}" if self.is_integer else as_number(self.default or 0)


def _number(value: object) -> float | None:
    """Return a value, or its text, as a number, or None."""
    with suppress(ValueError, OverflowError):
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            return float(value)
    return None


CAPACITY = Option[int](
    "capacity", 1_000_000, "expected number of distinct requests; a layer takes at most 34 GB", least=1
)
ERROR_RATE = Option[float](
    "error_rate",
    1e-6,
    "share of new requests that may be mistaken for duplicates, over the whole filter",
    # No crawl has so many pages that a smaller rate would make a difference.
    least=1e-15,
    limit=1,
    rule="lie between 0 and 1, both excluded, and not below 1e-15",
)
EXPANSION = Option[int](
    "expansion", 2, "growth factor of each further layer; 1: equal layers; 0: the filter never grows"
)
TTL = Option[float | None](
    "ttl",
    None,
    "seconds for which the filter remembers a request, up to 1.25 times as long; 0: forever",
    # Idle workers ask Redis again within 0.6 s, and must find the filter that they have asked before.
    least=1.0,
    # Thirty years. Redis refuses an expiry whose ms, added to the present, exceed 64 bits.
    limit=math.nextafter(1e9, math.inf),
    rule="be 0 (forever) or from 1 to 1e9 seconds",
)
CACHE_SIZE = Option[int](
    "cache_size", 65_536, "number of duplicates in a worker's cache, about 260 bytes each; 0: no cache"
)
RETRY_TIMEOUT = Option[float](
    "retry_timeout",
    30.0,
    "seconds for which a worker retries while Redis is unreachable",
    rule="be a number of seconds",
)
# At most so many, since Redis executes a sync as one script, and other clients wait for it.
BATCH_SIZE = Option[int](
    "batch_size", 100, "number of requests that `BloomScheduler` checks and queues in one batch", least=1, limit=1001
)
LEASE = Option[float](
    "lease",
    60.0,
    "seconds without a heartbeat after which the requests of a worker are requeued",
    least=math.nextafter(0, 1),
    limit=math.nextafter(86_400, math.inf),
    rule="be above 0, and at most 86,400",
)
MAX_DELIVERIES = Option[int](
    "max_deliveries",
    5,
    "number of workers whose deaths with the same request make it a dead letter; 0: no limit",
    least=2,
    or_zero=True,
    rule="be 0 (no limit) or a whole number of at least 2",
)
PARTITIONS = Option[int](
    "partitions",
    1,
    "number of parts of the queue and the filter of `BloomScheduler`, each in its own slot of a cluster",
    least=1,
    limit=1025,
)

# The options that describe a filter, and all, in the order of the documentation.
OF_FILTER: tuple[Option[Any], ...] = (CAPACITY, ERROR_RATE, EXPANSION, TTL)
OPTIONS = (*OF_FILTER, CACHE_SIZE, RETRY_TIMEOUT, BATCH_SIZE, LEASE, MAX_DELIVERIES, PARTITIONS)

ALWAYS = "BLOOMFILTER_ALWAYS"
ITEM_KEY = "BLOOMFILTER_ITEM_KEY"
RETRY_FAILED, RETRY_STATUSES = "BLOOMFILTER_RETRY_FAILED", "BLOOMFILTER_RETRY_STATUSES"
SHARED_DELAY = "BLOOMFILTER_SHARED_DELAY"
_SIZES = "BLOOMFILTER_CAPACITY, the expected number of distinct requests, and BLOOMFILTER_ERROR_RATE"
_SENTINELS = "REDIS_URL = 'redis+sentinel://host:26379,host:26379/service/0'"
_CLUSTER = "REDIS_URL = 'redis+cluster://host:6379,host:6379'"
# What to set in place of settings of other packages for scrapy-redis, which nothing here would read.
_OF_FORKS = {
    **{PREFIX + name + of: _SIZES for name in ("BIT", "HASH_NUMBER", "BLOCK_NUM") for of in ("", "_LIST")},
    **dict.fromkeys(("SCHEDULER_DUPEFILTER_CAPACITY", "REDIS_BLOOM_CAPACITY"), "BLOOMFILTER_CAPACITY"),
    "SCHEDULER_DUPEFILTER_EXPIRE_TIME": "BLOOMFILTER_TTL",
    **{f"REDIS_SENTINEL{each}": _SENTINELS for each in ("S", "_NODES", "_PARAMS")},
    **{f"REDIS_{each}_NODES": _CLUSTER for each in ("STARTUP", "MASTER", "CLUSTER")},
    **{f"REDIS_CLUSTER_{each}": _CLUSTER for each in ("URL", "HOST", "PORT", "PARAMS")},
}
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
        item_key: fields of an item that are its key for `UniqueItemsPipeline`, or a function that returns the key.
        shared_delay: whether the delays of the downloader are those of all workers together.

    Example:
        >>> BloomSettings(capacity=5000).capacity, BloomSettings().batch_size
        (5000, 100)
    """

    capacity: int = CAPACITY.default
    error_rate: float = ERROR_RATE.default
    expansion: int = EXPANSION.default
    ttl: float | None = TTL.default
    cache_size: int = CACHE_SIZE.default
    retry_timeout: float = RETRY_TIMEOUT.default
    batch_size: int = BATCH_SIZE.default
    lease: float = LEASE.default
    max_deliveries: int = MAX_DELIVERIES.default
    partitions: int = PARTITIONS.default
    always: tuple[re.Pattern[str], ...] = ()
    retry_failed: bool = False
    retry_statuses: frozenset[int] = frozenset((*range(500, 600), 408, 429))
    item_key: tuple[str, ...] | Callable[[Any], Any] | None = None
    shared_delay: bool = False

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
        given = (option for option in OPTIONS if option.setting in settings)
        values: dict[str, Any] = {option.name: option.read(settings[option.setting]) for option in given}
        for name, read in ((ALWAYS, _patterns), (RETRY_STATUSES, _statuses), (ITEM_KEY, _item_key)):
            if (value := settings.get(name)) is not None:
                values[_field(name)] = read(value)
        values |= {_field(name): read_flag(settings, name) for name in (RETRY_FAILED, SHARED_DELAY)}
        return cls(**values)

    def refuse_queue_options(self) -> None:
        """Refuse the settings that only `BloomScheduler` can obey.

        Raises:
            ConfigError: one of them is set.

        Example:
            >>> BloomSettings(partitions=2).refuse_queue_options()
            Traceback (most recent call last):
            scrapy_bloom.errors.ConfigError: BLOOMFILTER_PARTITIONS = 2: only BloomScheduler obeys this setting; ...
        """
        for field in ("partitions", "retry_failed"):
            if (value := getattr(self, field)) != getattr(BloomSettings, field):  # its default
                name = PREFIX + field.upper()
                action = f"set SCHEDULER = 'scrapy_bloom.BloomScheduler', or remove {name}"
                raise ConfigError(f"{name} = {value!r}: only BloomScheduler obeys this setting; {action}")


def _field(setting: str) -> str:
    return setting.removeprefix(PREFIX).lower()


def _patterns(value: Any) -> tuple[re.Pattern[str], ...]:
    """Return the compiled patterns of BLOOMFILTER_ALWAYS: a list, or one pattern as text."""
    given = [value] if isinstance(value, str) else value or []
    # A list on the command line is text: as a pattern, a class of characters that almost every URL has.
    is_text = isinstance(value, str) and value.startswith("[") and value.endswith("]")
    is_list = isinstance(given, (list, tuple, set)) and not is_text
    if not is_list or not all(isinstance(pattern, str) and pattern for pattern in given):
        allowed = "a list of regular expressions, none of them empty, or one as text without brackets around it"
        example = r"[r'/sitemap\.xml$'] for the URLs that are new in each run"
        raise ConfigError(f"{ALWAYS} = {value!r}: must be {allowed}; set for example {example}")
    return tuple(map(_compile, given))


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        fault = f"{ALWAYS}: {pattern!r} is no regular expression of Python's re ({error})"
        raise ConfigError(f"{fault}; escape special characters by a backslash") from None


def _statuses(value: Any) -> frozenset[int]:
    """Return the statuses of BLOOMFILTER_RETRY_STATUSES: a list, or text with commas."""
    given = value.split(",") if isinstance(value, str) else value
    texts = [str(each).strip().lower() for each in given] if isinstance(given, (list, tuple, set, frozenset)) else [""]
    if not all(map(_STATUS.fullmatch, texts)):
        allowed = "a list of HTTP statuses from 300 to 999, or of classes such as '5xx'"
        example = "['5xx', 408, 429], the default"
        raise ConfigError(f"{RETRY_STATUSES} = {value!r}: must be {allowed}; set for example {example}")
    return frozenset(status for status in range(300, 1000) if {str(status), f"{status // 100}xx"}.intersection(texts))


def _item_key(value: Any) -> tuple[str, ...] | Callable[[Any], Any]:
    """Return the fields of BLOOMFILTER_ITEM_KEY, a list or text with commas, or the function that it names."""
    is_path = isinstance(value, str) and "." in value
    chosen = load_component(ITEM_KEY, value, "project.items.key_of") if is_path else value
    if callable(chosen):
        return chosen  # type: ignore[no-any-return]  # whatever it is
    given = chosen.split(",") if isinstance(chosen, str) else chosen
    is_list = isinstance(given, (list, tuple)) and bool(given) and not is_path
    # A list on the command line is text, with brackets.
    if not is_list or not all(isinstance(name, str) and name.strip(" []") == name.strip() != "" for name in given):
        allowed = "a field of the items, a list of fields, or the path of a callable that returns the key of an item"
        example = "'url', ['shop', 'number'] or 'project.items.key_of'"
        raise ConfigError(f"{ITEM_KEY} = {value!r}: must be {allowed}; set for example {example}")
    return tuple(name.strip() for name in given)


def _refuse_unknown(settings: BaseSettings) -> None:
    known = {field.name.upper(): PREFIX + field.name.upper() for field in fields(BloomSettings)}
    for name, instead in _OF_FORKS.items():
        if settings.get(name) is not None:
            raise ConfigError(f"{name}: is a setting of another package; remove it, and set {instead}")
    for name in settings:
        if not isinstance(name, str) or not name.startswith(PREFIX) or name in known.values() or name in _OF_FORKS:
            continue
        nearest = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1)
        advice = f"; did you mean {known[nearest[0]]}?" if nearest else "."
        # The value may contain a password.
        shown = "…" if "://" in str(settings[name]) else repr(settings[name])
        there = ", ".join(known.values())
        raise ConfigError(f"{name} = {shown}: there is no such setting{advice} The settings are {there}")


# Settings of Scrapy and scrapy-redis.


def load_component(label: str, path: Any, example: str) -> Any:
    """Return the class at a path; a class is returned unchanged.

    Args:
        label: the setting's name for errors.
        path: the setting's value.
        example: a valid path.

    Raises:
        ConfigError: the class cannot be imported.
    """
    try:
        return load_object(path)
    except Exception as error:  # any error of the user's module
        fault = f"{label} = {path!r}: cannot be imported ({type(error).__name__}: {error})"
        raise ConfigError(f"{fault}; set its full path, as in {example!r}") from error


def is_a(kind: object, base: type) -> bool:
    """Return whether the value of a setting is a subclass."""
    return isinstance(kind, type) and issubclass(kind, base)


def is_or_copies(kind: object, original: type, method: str) -> bool:
    """Return whether the value of a setting is a class, a copy of it, or derived from one: by its name and a method.

    Projects have copies of scrapy-redis in their trees, whose classes behave as the originals.
    """
    bases = getattr(kind, "__mro__", ())
    return any(base.__name__ == original.__name__ and method in vars(base) for base in bases)


def path_of(kind: type) -> str:
    """Return the path of a class, by which other processes know it.

    A program's own module has the name of its file, as `scrapy runspider` imports it; that of a notebook has none.
    """
    module = kind.__module__
    if module in ("__main__", "__mp_main__"):  # the second one in a pool of processes
        module = Path(getattr(sys.modules.get(module), "__file__", None) or "").stem
    return f"{module}.{kind.__qualname__}".lstrip(".")


def load_setting(settings: BaseSettings, name: str, default: str) -> Any:
    """Return the class that a setting names.

    Raises:
        ConfigError: the class cannot be imported.
    """
    return load_component(name, settings.get(name) or default, default)


def read_flag(settings: BaseSettings, name: str) -> bool:
    """Return a boolean setting, read as Scrapy does.

    Args:
        settings: the crawl's settings.
        name: the setting, False by default.

    Raises:
        ConfigError: the value is not a boolean.
    """
    try:
        return settings.getbool(name)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} = {settings.get(name)!r}: must be True or False; set either") from None
