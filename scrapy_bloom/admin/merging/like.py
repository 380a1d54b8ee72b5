"""An empty filter that can be merged with another one: it has its hash key."""

from scrapy_bloom.admin import occupants
from scrapy_bloom.admin.shapes import setting_differences
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.filter.steps import carry_out
from scrapy_bloom.filter.stored import StoredFilter
from scrapy_bloom.storage.base import Store


def make_like(store: Store, key: str, parameters: FilterParameters, other: StoredFilter) -> None:
    """Make an empty filter with these parameters and the hash key of another one.

    Raises:
        ConfigError: something is at the key, or the other filter has other parameters.
        WrongTypeError: something is there that is no filter.
    """
    differing = setting_differences(parameters, other.parameters, f"in the filter at {other.key!r}")
    if differing:
        raise ConfigError(
            f"{'; '.join(differing)}: must be equal, or they could not be merged; set the values of the filter"
        )
    there = occupants.look(store, key)
    if there.kind != occupants.NOTHING:
        raise ConfigError(
            f"--like: makes a new filter at {key!r}, and there is {there.description} now; give another --key, or "
            "delete that by `scrapy bloom clear`"
        )
    lifecycle = occupants.lifecycle_at(key, parameters, other.identity.hash_key)
    carry_out(lifecycle.verify(), store.execute)
