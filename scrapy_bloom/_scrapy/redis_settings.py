"""Read the settings of the connection to Redis."""

from dataclasses import dataclass
from typing import Any

from scrapy.settings import BaseSettings, SettingsAttribute
from scrapy_redis import defaults

from scrapy_bloom._scrapy.components import load_component
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.transport.from_url import FromUrl
from scrapy_bloom.transport.redis_url import RedisUrl

# A command or a connection blocks the reactor until the reply. scrapy-redis's default is 30.
_SOCKET_TIMEOUT_SECONDS = 5.0
TIMEOUTS = ("socket_timeout", "socket_connect_timeout")
URL, PARAMS = "REDIS_URL", "REDIS_PARAMS"


@dataclass(frozen=True)
class RedisSettings:
    """The settings of one connection, under the names that scrapy-redis reads.

    Attributes:
        values: settings with REDIS_URL, REDIS_PARAMS and the others of scrapy-redis.
    """

    values: BaseSettings

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
            raise ConfigError(f"{PARAMS} must be a dict, or one as JSON; write {{'name': value, …}}") from None

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
        return load_component(f"{PARAMS}['redis_cls']", path, "redis.RedisCluster")

    def for_scrapy_redis(self) -> BaseSettings:
        """Return settings with which scrapy-redis makes the client: with a short timeout, and with its class.

        A timeout in REDIS_PARAMS is kept; one in REDIS_URL overrides both.
        """
        params = {**dict.fromkeys(TIMEOUTS, _SOCKET_TIMEOUT_SECONDS), **self.params}
        if self.is_selected_by_url:
            params["redis_cls"] = FromUrl
        values = BaseSettings()
        values.attributes = {**self.values.attributes, PARAMS: SettingsAttribute(params, 0)}
        return values
