"""The settings of a crawl, read once into a frozen dataclass; nothing reads settings after that."""

import difflib
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from scrapy.settings import BaseSettings

from scrapy_bloom import options
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.metadata import Plan

PREFIX = "BLOOMFILTER_"

# What the forks of scrapy-redis ask for instead: mechanism, from which nobody can tell what it promises.
_OF_THE_FORKS = ("BLOOMFILTER_BIT", "BLOOMFILTER_HASH_NUMBER")


@dataclass(frozen=True)
class BloomConfig:
    """What the BLOOMFILTER_* settings say: each field is the setting of its name in capitals behind the prefix."""

    capacity: int = options.DEFAULT_CAPACITY
    error_rate: float = options.DEFAULT_ERROR_RATE
    expansion: int = options.DEFAULT_EXPANSION
    ttl: float | None = None
    cache_size: int = options.DEFAULT_CACHE_SIZE
    retry_timeout: float = options.DEFAULT_RETRY_TIMEOUT
    batch_size: int = options.DEFAULT_BATCH_SIZE
    lease: float = options.DEFAULT_LEASE

    @classmethod
    def from_settings(cls, settings: BaseSettings) -> Self:
        """Read and check the settings; raises ConfigError that names the setting, its value and what is allowed."""
        _refuse_unknown(settings)
        given = {
            each.name: getattr(options, each.name)(name, settings[name])
            for each in fields(cls)
            if (name := PREFIX + each.name.upper()) in settings
        }
        config = cls(**given)
        # What the filter makes of them together is checked at once, too.
        config.plan()
        return config

    def plan(self) -> Plan:
        """What the filter is made by."""
        return Plan(self.capacity, self.error_rate, self.expansion, self.ttl, prefix=PREFIX)

    def of_the_filter(self) -> dict[str, Any]:
        """Those that are arguments of BloomFilter; the others are the scheduler's."""
        return {name: value for name, value in asdict(self).items() if name not in ("batch_size", "lease")}


SETTINGS = tuple(PREFIX + each.name.upper() for each in fields(BloomConfig))


def _refuse_unknown(settings: BaseSettings) -> None:
    for name in settings:
        if not isinstance(name, str) or not name.startswith(PREFIX) or name in SETTINGS:
            continue
        if name in _OF_THE_FORKS:
            raise ConfigError(
                f"{name} = {settings[name]!r}: scrapy-bloom sizes the filter by its purpose. Remove "
                f"{' and '.join(_OF_THE_FORKS)}, and set BLOOMFILTER_CAPACITY, how many different requests the crawl "
                f"is expected to meet (default {options.DEFAULT_CAPACITY:_}), and BLOOMFILTER_ERROR_RATE, the share of "
                f"new ones that may be taken for seen (default {options.DEFAULT_ERROR_RATE:g})"
            )
        nearest = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0)[0]
        raise ConfigError(
            f"{name} = {settings[name]!r}: there is no such setting; did you mean {nearest}? "
            f"Known are {', '.join(SETTINGS)}"
        )
