"""Read the settings of a connection: REDIS_* of the queue's server, BLOOMFILTER_REDIS_* of the filter's."""

from dataclasses import dataclass, replace
from typing import Any, Self

from scrapy.settings import BaseSettings
from scrapy_redis import defaults
from scrapy_redis.connection import SETTINGS_PARAMS_MAP

from scrapy_bloom._scrapy.components import load_component
from scrapy_bloom.errors import FILTER_SERVER_NAMES, SETTING_NAMES, ConfigError, Names
from scrapy_bloom.transport.from_url import FromUrl
from scrapy_bloom.transport.redis_url import RedisUrl

# A command or a connection blocks the reactor until the reply. scrapy-redis's default is 30.
_SOCKET_TIMEOUT_SECONDS = 5.0
TIMEOUTS = ("socket_timeout", "socket_connect_timeout")
URL, PARAMS = "REDIS_URL", "REDIS_PARAMS"
_PREFIX = "BLOOMFILTER_"


@dataclass(frozen=True)
class RedisSettings:
    """The settings of one connection, under the names that scrapy-redis reads.

    Attributes:
        values: settings with REDIS_URL, REDIS_PARAMS and the others of scrapy-redis.
        prefix: the prefix of the names that the user wrote.
    """

    values: BaseSettings
    prefix: str = ""

    @classmethod
    def of_filter(cls, settings: BaseSettings) -> Self:
        """Return the settings of the filter's connection, by default the queue's.

        Raises:
            ConfigError: BLOOMFILTER_REDIS_PARAMS is set without BLOOMFILTER_REDIS_URL.
        """
        url, params = settings.get(_PREFIX + URL), settings.get(_PREFIX + PARAMS)
        if not url and params:
            raise ConfigError(
                f"{_PREFIX}{PARAMS} is set, but {_PREFIX}{URL} is not: set it to the URL of the filter's server, or "
                f"remove {_PREFIX}{PARAMS}"
            )
        if not url or not (params or is_filter_separate(settings)):
            return cls(settings)
        # The queue's password and options are not for another server.
        others = dict.fromkeys(SETTINGS_PARAMS_MAP)
        return cls(_copy(settings, {**others, URL: url, PARAMS: params or {}}), _PREFIX)

    @property
    def names(self) -> Names:
        """The names for errors."""
        return FILTER_SERVER_NAMES if self.prefix else SETTING_NAMES

    @property
    def params(self) -> dict[str, Any]:
        """REDIS_PARAMS.

        Raises:
            ConfigError: it is not a dict.
        """
        try:
            return self.values.getdict(PARAMS)
        except (TypeError, ValueError):
            # The value may contain a password.
            raise ConfigError(
                f"{self.prefix}{PARAMS} must be a dict, or one as JSON; write {{'name': value, …}}"
            ) from None

    @property
    def url(self) -> str:
        """REDIS_URL, or the `url` of REDIS_PARAMS, or nothing."""
        return self.values.get(URL) or self.params.get("url") or ""

    @property
    def is_selected_by_url(self) -> bool:
        """True if the URL selects the client, and no `redis_cls` does."""
        return bool(RedisUrl.parse(self.url).kind) and not self.params.get("redis_cls")

    @property
    def client_class(self) -> Any:
        """The class of the client.

        Raises:
            ConfigError: the class cannot be imported.
        """
        if self.is_selected_by_url:
            return FromUrl
        path = self.params.get("redis_cls") or defaults.REDIS_CLS
        return load_component(f"{self.prefix}{PARAMS}['redis_cls']", path, "redis.RedisCluster")

    def having(self, name: str, value: Any) -> Self:
        """Return the settings with one value replaced."""
        return replace(self, values=_copy(self.values, {name: value}))

    def for_scrapy_redis(self) -> BaseSettings:
        """Return settings with which scrapy-redis makes the client: with a short timeout, and with its class.

        A timeout in REDIS_PARAMS is kept; one in REDIS_URL overrides both.
        """
        params = {**dict.fromkeys(TIMEOUTS, _SOCKET_TIMEOUT_SECONDS), **self.params}
        if self.is_selected_by_url:
            params["redis_cls"] = FromUrl
        return self.having(PARAMS, params).values


def is_filter_separate(settings: BaseSettings) -> bool:
    """Return whether the filter is on another server than the queue."""
    url = settings.get(_PREFIX + URL)
    return bool(url) and url != RedisSettings(settings).url


def _copy(settings: BaseSettings, values: dict[str, Any]) -> BaseSettings:
    result = BaseSettings()
    result.attributes = {name: each for name, each in settings.attributes.items() if name not in values}
    for name, value in values.items():
        result.set(name, value)
    return result
