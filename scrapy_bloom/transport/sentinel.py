"""The client of whichever server a Sentinel says is the master."""

from typing import Any
from urllib.parse import urlsplit

from redis import SSLConnection
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from scrapy_bloom.errors import ConfigError

_SENTINEL_PORT = 26379
# Seconds that a Sentinel may take for its answer, where no `socket_timeout` is set.
_TIMEOUT_SECONDS = 5.0


class FromSentinel:
    """The `redis_cls` of REDIS_PARAMS behind a Sentinel: a client of the master, which follows a failover.

    REDIS_URL names the Sentinels, with a comma between them. User, password, database and TLS by `rediss://` are the
    master's, and so are the options in REDIS_PARAMS. Two options are the Sentinels': `service_name`, by which they
    know the master (default: mymaster), and `sentinel_kwargs`, a dict with their own password and the like.

    Each Sentinel has an equal part of `socket_timeout` for its answer, and is asked once. Silent Sentinels block the
    reactor no longer than a silent master does.

    Raises:
        ConfigError: REDIS_URL is not set.

    Example:
        In a project's `settings.py`:

        >>> REDIS_URL = "redis://:secret@sentinel-1:26379,sentinel-2:26379,sentinel-3:26379/0"
        >>> REDIS_PARAMS = {"redis_cls": "scrapy_bloom.FromSentinel", "service_name": "crawl"}
    """

    def __init__(self, **options: Any) -> None:  # noqa: ARG002  # as scrapy-redis calls it where there is no URL
        raise ConfigError(
            "REDIS_URL is not set: scrapy_bloom.FromSentinel needs the addresses of the Sentinels; set REDIS_URL = "
            "'redis://sentinel-1:26379,sentinel-2:26379'"
        )

    @classmethod
    def from_url(
        cls, url: str, service_name: str = "mymaster", sentinel_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        """Make a client of the master, with options of `redis.Redis`; nothing is sent before its first command.

        Args:
            url: the Sentinels' addresses, and the master's user, password and database.
            service_name: the name by which the Sentinels know the master.
            sentinel_kwargs: options for the Sentinels themselves.
            **options: passed to `redis.Redis`.

        Returns:
            A `redis.Redis`.

        Raises:
            ValueError: an address has no host, or a port that is no number.

        Example:
            >>> client = FromSentinel.from_url("redis://sentinel-1,sentinel-2:26379/5", service_name="crawl")
            >>> client.connection_pool.service_name
            'crawl'
        """
        parts = urlsplit(url)
        login, at, addresses = parts.netloc.rpartition("@")
        hosts = [_host_and_port(address) for address in addresses.split(",")]
        # In an address of redis-py's there is one host.
        options |= parse_url(parts._replace(netloc=f"{login}{at}sentinel").geturl())  # type: ignore[no-untyped-call]
        del options["host"]
        if options.pop("connection_class", None) is SSLConnection:
            options["ssl"] = True
        share = (options.get("socket_timeout") or _TIMEOUT_SECONDS) / len(hosts)
        asked_once = {"socket_timeout": share, "socket_connect_timeout": share, "retry": Retry(NoBackoff(), 0)}
        sentinels: Any = Sentinel(hosts, sentinel_kwargs={**asked_once, **(sentinel_kwargs or {})})  # type: ignore[no-untyped-call]
        return sentinels.master_for(service_name, **options)


def _host_and_port(address: str) -> tuple[str, int]:
    parts = urlsplit(f"//{address.strip()}")
    if not parts.hostname:
        raise ValueError("an address without a host")
    return parts.hostname, parts.port or _SENTINEL_PORT
