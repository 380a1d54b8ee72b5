"""The names of the settings, and reading them."""

from typing import Any

from scrapy.settings import Settings

from scrapy_bloom.settings import BloomSettings

CAPACITY = "BLOOMFILTER_CAPACITY"
ERROR_RATE = "BLOOMFILTER_ERROR_RATE"
EXPANSION = "BLOOMFILTER_EXPANSION"
TTL = "BLOOMFILTER_TTL"
CACHE_SIZE = "BLOOMFILTER_CACHE_SIZE"
RETRY_TIMEOUT = "BLOOMFILTER_RETRY_TIMEOUT"
BATCH_SIZE = "BLOOMFILTER_BATCH_SIZE"
LEASE = "BLOOMFILTER_LEASE"
MAX_DELIVERIES = "BLOOMFILTER_MAX_DELIVERIES"


def read(settings: dict[str, Any]) -> BloomSettings:
    return BloomSettings.from_settings(Settings(settings))


def field_of(setting: str) -> str:
    return setting.removeprefix("BLOOMFILTER_").lower()
