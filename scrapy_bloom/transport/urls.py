"""Make the client that a URL selects: of a server, of a cluster, or of the master behind Sentinels."""

import inspect
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis import RedisCluster, SSLConnection
from redis.backoff import NoBackoff
from redis.cluster import REDIS_ALLOWED_KEYS, ClusterNode
from redis.connection import parse_url, to_bool
from redis.exceptions import ClusterDownError
from redis.retry import Retry
from redis.sentinel import Sentinel

from scrapy_bloom.errors import ConfigError
from scrapy_bloom.transport.failures import FAULTS, decisive

# The valid beginnings of a URL. Those with a plus sign select the client, too.
SCHEMES = (
    "redis://",
    "rediss://",
    "unix://",
    "redis+sentinel://",
    "rediss+sentinel://",
    "redis+cluster://",
    "rediss+cluster://",
)
_CLUSTER_PORT = 6379
_SENTINEL_PORT = 26379
# For all Sentinels together, unless `socket_timeout` is set.
_TIMEOUT_SECONDS = 5.0
# The prefix of options for the Sentinels.
SENTINEL = "sentinel_"


@dataclass(frozen=True)
class RedisUrl:
    """A URL in parts; `urlsplit` refuses several hosts if one is an IPv6 address.

    Attributes:
        scheme: `redis`, or `rediss` for TLS.
        kind: `sentinel`, `cluster`, or nothing for a single server.
        login: user and password, quoted.
        hosts: hosts and ports, separated by commas.
        path: the part from the first slash after the hosts.
        query: the options.
    """

    scheme: str
    kind: str
    login: str
    hosts: str
    path: str
    query: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """Split a URL; no part is decoded."""
        begin, _, rest = url.partition("://")
        scheme, _, kind = begin.partition("+")
        rest, _, query = rest.partition("?")
        authority, slash, path = rest.partition("/")
        login, _, hosts = authority.rpartition("@")
        return cls(scheme, kind, login, hosts, slash + path, query)

    def addresses(self, port: int) -> list[tuple[str, int]]:
        """Return the hosts with their ports, `port` by default.

        Raises:
            ValueError: an address has no host, or its port is not a number.
        """
        parts = [urlsplit(f"//{address.strip()}") for address in self.hosts.split(",")]
        found = [(each.hostname or "", each.port or port) for each in parts]
        if not all(host for host, _ in found):
            raise ValueError("an address without a host")
        return found

    def options(self) -> dict[str, Any]:
        """Return login, path and query as redis-py's options, without hosts."""
        at = f"{self.login}@" if self.login else ""
        options = parse_url(f"{self.scheme}://{at}host{self.path}?{self.query}")  # type: ignore[no-untyped-call]
        del options["host"]
        if options.pop("connection_class", None) is SSLConnection:
            options["ssl"] = True
        return dict(options)


class FromUrl:
    """The `redis_cls` of a URL whose scheme selects the client, such as `redis+cluster://`."""

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Any:
        """Make the client.

        Args:
            url: `redis+sentinel://host:port,host:port/service/db` or `redis+cluster://host:port,host:port`; `rediss+`
                for TLS.
            **options: passed to `redis.Redis` or `redis.RedisCluster`; an option in the URL takes precedence.

        Returns:
            A `redis.Redis` of the master, or a `redis.RedisCluster`.

        Raises:
            ValueError: a part of the URL is invalid.
            TypeError: there is no such option.
        """
        parts = RedisUrl.parse(url)
        # scrapy-redis passes it, and redis-py has deprecated it. redis-py's retries are turned off in any case.
        options.pop("retry_on_timeout", None)
        if parts.kind == "cluster":
            return _cluster(parts, options)
        if parts.kind == "sentinel":
            return _master(parts, **options)
        raise ValueError("neither a cluster nor Sentinels")


def service_and_database(path: str) -> tuple[str, str]:
    """Return the Sentinels' name for the master, and the database.

    Raises:
        ValueError: the path is not `/service` or `/service/db`.
    """
    service, _, database = path.strip("/").partition("/")
    if not service or service.isdecimal() or not (database or "0").isdecimal():
        raise ValueError("a path without a service")
    return service, database


def _cluster(url: RedisUrl, options: dict[str, Any]) -> Any:
    options = {**options, **url.options()}
    if options.pop("db", 0):
        raise ValueError("a database of a cluster")
    # redis-py would ignore them.
    unknown = options.keys() - {*REDIS_ALLOWED_KEYS, *inspect.signature(RedisCluster).parameters}
    if unknown:
        raise TypeError(f"unexpected keyword argument '{min(unknown)}'")
    errors: list[Exception] = []
    # One by one: if all fail, redis-py would raise the error of one of them.
    for host, port in url.addresses(_CLUSTER_PORT):
        node: Any = ClusterNode(host, port)  # type: ignore[no-untyped-call]
        try:
            return _client_by(node, options)
        except FAULTS as error:
            errors.append(error)
        except IndexError:
            # With `require_full_coverage=False`, redis-py looks for the first of no masters.
            errors.append(ClusterDownError(f"the node at {host}:{port} knows no slots"))
    raise decisive(errors)


def _client_by(node: Any, options: dict[str, Any]) -> Any:
    """Return a client that has asked a node for the slots. redis-py leaves the connection open if that fails."""
    try:
        return RedisCluster(startup_nodes=[node], **options)
    except BaseException:
        if node.redis_connection is not None:
            node.redis_connection.close()
        raise


def _master(url: RedisUrl, sentinel_kwargs: dict[str, Any] | None = None, **options: Any) -> Any:
    """Return a client of the master. TLS is for the Sentinels, too, unless `sentinel_ssl` says otherwise."""
    service, database = service_and_database(url.path)
    pairs = parse_qsl(url.query, keep_blank_values=True)
    masters = [pair for pair in pairs if not pair[0].startswith(SENTINEL)]
    theirs = {name.removeprefix(SENTINEL): value for name, value in pairs if name.startswith(SENTINEL)}
    has_tls = to_bool(theirs.pop("ssl", str(url.scheme == "rediss")))  # type: ignore[no-untyped-call]
    shared: dict[str, Any] = {}
    if has_tls:
        shared = {name: value for name, value in options.items() if name.startswith("ssl_")}
        theirs = {**{name: value for name, value in masters if name.startswith("ssl_")}, **theirs}
    sentinels = RedisUrl("rediss" if has_tls else "redis", "", "", "", "", urlencode(theirs))
    return client_of_master(
        replace(url, path=f"/{database}", query=urlencode(masters)),
        service,
        {**shared, **sentinels.options(), **(sentinel_kwargs or {})},
        options,
    )


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
