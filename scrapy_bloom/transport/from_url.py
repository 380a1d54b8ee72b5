"""Make the client that a URL selects: of a cluster, or of the master behind Sentinels."""

import inspect
from typing import Any
from urllib.parse import parse_qsl, urlencode

from redis import RedisCluster
from redis.cluster import REDIS_ALLOWED_KEYS, ClusterNode
from redis.connection import to_bool
from redis.exceptions import ClusterDownError

from scrapy_bloom.transport.failures import FAULTS, decisive
from scrapy_bloom.transport.redis_url import RedisUrl
from scrapy_bloom.transport.sentinel import client_of_master

_CLUSTER_PORT = 6379
# The prefix of options for the Sentinels.
SENTINEL = "sentinel_"


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
        url.replace(path=f"/{database}", query=urlencode(masters)),
        service,
        {**shared, **sentinels.options(), **(sentinel_kwargs or {})},
        options,
    )
