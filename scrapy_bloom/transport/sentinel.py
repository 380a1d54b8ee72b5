"""Connect to the master that Redis Sentinel announces."""

from typing import Any

from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from scrapy_bloom.errors import ConfigError
from scrapy_bloom.transport.redis_url import RedisUrl

_SENTINEL_PORT = 26379
# For all Sentinels together, unless `socket_timeout` is set.
_TIMEOUT_SECONDS = 5.0


class FromSentinel:
    """A `redis_cls` for REDIS_PARAMS: a client of the master behind Sentinels, which follows failovers.

    REDIS_URL lists the Sentinels, separated by commas. User, password, database and TLS (`rediss://`) are the master's,
    like the options in REDIS_PARAMS. Two options are for the Sentinels: `service_name`, their name for the master
    (default: mymaster), and `sentinel_kwargs`, a dict with their own password and other options.

    Each Sentinel is asked once and has an equal share of `socket_timeout` to reply. Silent Sentinels block the reactor
    no longer than a silent master does.

    Raises:
        ConfigError: REDIS_URL is not set.

    Example:
        In a project's `settings.py`:

        >>> REDIS_URL = "redis://:secret@sentinel-1:26379,sentinel-2:26379,sentinel-3:26379/0"
        >>> REDIS_PARAMS = {"redis_cls": "scrapy_bloom.FromSentinel", "service_name": "crawl"}
    """

    def __init__(self, **options: Any) -> None:  # noqa: ARG002  # scrapy-redis calls it without a URL
        raise ConfigError(
            "REDIS_URL is not set: scrapy_bloom.FromSentinel needs the addresses of the Sentinels; set REDIS_URL = "
            "'redis://sentinel-1:26379,sentinel-2:26379'"
        )

    @classmethod
    def from_url(
        cls, url: str, service_name: str = "mymaster", sentinel_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        """Make a client of the master. Nothing is sent before its first command.

        Args:
            url: the Sentinels' addresses, and the master's user, password and database.
            service_name: the Sentinels' name for the master.
            sentinel_kwargs: options for the Sentinels themselves.
            **options: passed to `redis.Redis`.

        Returns:
            A `redis.Redis`.

        Raises:
            ValueError: an address has no host, or its port is not a number.

        Example:
            >>> client = FromSentinel.from_url("redis://sentinel-1,sentinel-2:26379/5", service_name="crawl")
            >>> client.connection_pool.service_name
            'crawl'
        """
        return client_of_master(RedisUrl.parse(url), service_name, sentinel_kwargs or {}, options)


def client_of_master(url: RedisUrl, service_name: str, sentinel_kwargs: dict[str, Any], options: dict[str, Any]) -> Any:
    """Return a client of the master, as `FromSentinel.from_url` does for a parsed URL."""
    hosts = url.addresses(_SENTINEL_PORT)
    options = {**options, **url.options()}
    share = (options.get("socket_timeout") or _TIMEOUT_SECONDS) / len(hosts)
    asked_once = {"socket_timeout": share, "socket_connect_timeout": share, "retry": Retry(NoBackoff(), 0)}
    sentinels: Any = Sentinel(hosts, sentinel_kwargs={**asked_once, **sentinel_kwargs})  # type: ignore[no-untyped-call]
    return sentinels.master_for(service_name, **options)
