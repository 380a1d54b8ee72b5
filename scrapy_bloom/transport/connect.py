"""Make the client that a crawl's settings name, and close it: of a server, of a cluster, or of Sentinels' master.

A client has short timeouts, since a command blocks the reactor until its reply, and no retries of its own.
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode

from redis import Redis, RedisCluster
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.cluster import REDIS_ALLOWED_KEYS, ClusterNode, ClusterPipeline
from redis.connection import to_bool
from redis.exceptions import ClusterDownError
from redis.retry import Retry
from redis.sentinel import Sentinel
from scrapy.settings import BaseSettings, SettingsAttribute
from scrapy_redis import defaults
from scrapy_redis.connection import SETTINGS_PARAMS_MAP, get_redis_from_settings

from scrapy_bloom.errors import BloomError, ConfigError
from scrapy_bloom.settings import is_a, load_component
from scrapy_bloom.transport.failures import FAULTS, decisive
from scrapy_bloom.transport.retry import disable_client_retries
from scrapy_bloom.transport.urls import URL, RedisUrl, require_url

Client = Redis | RedisCluster

PARAMS = "REDIS_PARAMS"
# scrapy-redis's default is 30. All Sentinels together have as long, unless `socket_timeout` is set.
_TIMEOUT_SECONDS = 5.0
_TIMEOUTS = ("socket_timeout", "socket_connect_timeout")
# Sockets take no longer timeout, in seconds.
_MAX_TIMEOUT = 1e9
# The prefix of options for the Sentinels.
_SENTINEL = "sentinel_"
# An option in an error of redis-py's or ours.
_OPTION = re.compile(r"(?:unexpected keyword argument|Invalid value for) '(\w+)'")
# They are clients by their classes, but `execute_command` does not return a reply.
_NO_CLIENTS = (Pipeline, ClusterPipeline)


def is_cluster(client: Any) -> bool:
    """Return whether a client is connected to a cluster."""
    return hasattr(client, "get_primaries")


def tagged(key: str) -> str:
    """Return the prefix of keys that a cluster keeps in the slot of `key`, unless that has an unpaired brace."""
    return key if re.match(r"[^{]*\{[^}]+\}", key) else f"{{{key}}}"


def at_key(client: Any, key: str) -> dict[str, Any]:
    """Return redis-py's options to address the server that has a key: another node of a cluster may be away."""
    return {"target_nodes": client.get_node_from_key(key)} if is_cluster(client) else {}


def run_id(client: Any, key: str) -> str:
    """Return the id of the server process that has a key: another one after a restart or a failover."""
    return str(client.info("server", **at_key(client, key)).get("run_id"))


def evicts(info: Mapping[str, Any], *, expires: bool) -> bool:
    """Return whether a full server with this INFO evicts keys, which `expires` says have an expiry."""
    policies = ("allkeys-", "volatile-") if expires else ("allkeys-",)
    return bool(info.get("maxmemory")) and policy(info).startswith(policies)


def policy(info: Mapping[str, Any]) -> str:
    """Return the maxmemory-policy of an INFO; managed servers may hide it."""
    return str(info.get("maxmemory_policy", "unknown"))


def require_usable(client: Any) -> Any:
    """Return the client unchanged. Errors show its type only.

    Raises:
        ConfigError: it is neither a `redis.Redis` nor a `redis.RedisCluster`.
    """
    if not isinstance(client, (Redis, RedisCluster)) or isinstance(client, _NO_CLIENTS):
        kind, name = (client, "the class ") if isinstance(client, type) else (type(client), "")
        fault = f"server = {name}{kind.__module__}.{kind.__qualname__}: must be a synchronous Redis client"
        raise ConfigError(f"{fault}; pass a redis.Redis or redis.RedisCluster")
    return client


def drop_connections(client: Any) -> None:
    """Close a client's connections; its next command opens another one."""
    if is_cluster(client):  # its `close` leaves the connections open if it was made from a URL
        client.disconnect_connection_pools()
    else:
        client.connection_pool.disconnect()


def bound_clients(part: object) -> bool:
    """Give the clients of another package's part our timeouts and no retries; return whether it has any."""
    clients = [each for each in getattr(part, "__dict__", {}).values() if isinstance(each, Redis)]
    for client in clients:
        pool = disable_client_retries(client).connection_pool
        options = pool.connection_kwargs
        options.update({name: min(options.get(name) or _TIMEOUT_SECONDS, _TIMEOUT_SECONDS) for name in _TIMEOUTS})
        pool.disconnect()
        pool.reset()  # its connections keep their timeouts
    return bool(clients)


def disconnect(client: Any) -> None:
    """Close a client's connections for good."""
    drop_connections(client)
    # redis-py keeps a connection to each Sentinel that it has asked for the master.
    sentinels = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    for sentinel in getattr(sentinels, "sentinels", ()):
        sentinel.close()


# From settings.


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

        Raises:
            ConfigError: the class cannot be imported.
        """
        params = {**dict.fromkeys(_TIMEOUTS, _TIMEOUT_SECONDS), **self.params, "redis_cls": self.client_class}
        values = BaseSettings()
        values.attributes = {**self.values.attributes, PARAMS: SettingsAttribute(params, 0)}
        return values


def connect(settings: BaseSettings) -> Any:
    """Return the client, with short timeouts and without its own retries.

    Raises:
        ConfigError: the settings are invalid, or the client cannot be used.
    """
    given = RedisSettings(settings)
    require_url(given.url)
    _require_class(given)
    try:
        client = get_redis_from_settings(given.for_scrapy_redis())
        options = client.get_connection_kwargs()
        if not is_cluster(client):  # redis-py alone would refuse invalid options when it connects
            client.connection_pool.connection_class(**options)
        for name in _TIMEOUTS:  # others would not wait for a reply
            value = options.get(name)
            if value is not None and not (isinstance(value, (int, float)) and 0 < value < _MAX_TIMEOUT):
                raise ValueError(f"Invalid value for '{name}'")
    except (BloomError, *FAULTS):
        raise
    except Exception as error:  # any error of redis-py or of a user's class
        raise _refusal(given, error) from None
    return disable_client_retries(require_usable(client))


def _require_class(given: RedisSettings) -> None:
    kind, named = given.client_class, f"{PARAMS}['redis_cls'] = {given.params.get('redis_cls')!r}"
    fit = (Redis, RedisCluster, FromSentinel, FromUrl)
    if not any(is_a(kind, each) for each in fit) or issubclass(kind, _NO_CLIENTS):
        allowed = "redis.Redis, redis.RedisCluster, a subclass of one of them, or scrapy_bloom.FromSentinel"
        raise ConfigError(f"{named}: must be {allowed}; remove it, and let {URL} select the client")
    if kind is not FromUrl and RedisUrl.parse(given.url).kind:
        why = f"{URL} selects the client itself, since it begins with {given.url.partition('://')[0]}://"
        raise ConfigError(f"{named}: {why}; remove redis_cls")


def _refusal(given: RedisSettings, error: Exception) -> ConfigError:
    """Return an error that names the option if redis-py does, but no value: it may be a part of a password."""
    found, kind, params = _OPTION.search(str(error)), given.client_class, given.params
    query = RedisUrl.parse(given.url).query
    in_url = parse_qs(query, keep_blank_values=True)
    names = [found[1], _SENTINEL + found[1]] if found else []
    # After an unquoted `?`, a query may begin with the rest of a password.
    labels = [f"{URL} with ?{name if '@' not in query else '…'}=…" for name in names if name in in_url]
    labels += [f"{PARAMS}[{name!r}]" for name in names if name in params]
    if not labels:
        labels = [name for name in SETTINGS_PARAMS_MAP if given.values.get(name)]
        labels += [f"{PARAMS}[{name!r}]" for name in params if name != "redis_cls"]
    advice = f"remove it, and begin {URL} with rediss" if "ssl" in names else "correct it, or remove it"
    return ConfigError(f"{' or '.join(labels)}: {type(error).__name__} in {kind.__module__}.{kind.__name__}; {advice}")


# The clients that a URL selects.


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
        return _cluster(parts, options) if parts.kind == "cluster" else _master(parts, **options)


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
    for host, port in url.addresses():
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
    service, database = url.service_and_database()
    pairs = parse_qsl(url.query, keep_blank_values=True)
    masters = [pair for pair in pairs if not pair[0].startswith(_SENTINEL)]
    theirs = {name.removeprefix(_SENTINEL): value for name, value in pairs if name.startswith(_SENTINEL)}
    has_tls = to_bool(theirs.pop("ssl", str(url.scheme == "rediss")))  # type: ignore[no-untyped-call]
    shared: dict[str, Any] = {}
    if has_tls:
        shared = {name: value for name, value in options.items() if name.startswith("ssl_")}
        theirs = {**{name: value for name, value in masters if name.startswith("ssl_")}, **theirs}
    sentinels = RedisUrl("rediss" if has_tls else "redis", "", "", "", "", urlencode(theirs))
    given = {**shared, **sentinels.options(), **(sentinel_kwargs or {})}
    return _client_of_master(replace(url, path=f"/{database}", query=urlencode(masters)), service, given, options)


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
        fault = "REDIS_URL is not set: scrapy_bloom.FromSentinel needs the addresses of the Sentinels"
        raise ConfigError(f"{fault}; set REDIS_URL = 'redis://sentinel-1:26379,sentinel-2:26379'")

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
        parts = replace(RedisUrl.parse(url), kind="sentinel")
        return _client_of_master(parts, service_name, sentinel_kwargs or {}, options)


def _client_of_master(url: RedisUrl, service: str, sentinel_kwargs: dict[str, Any], options: dict[str, Any]) -> Any:
    hosts = url.addresses()
    options = {**options, **url.options()}
    share = (options.get("socket_timeout") or _TIMEOUT_SECONDS) / len(hosts)
    asked_once = {"socket_timeout": share, "socket_connect_timeout": share, "retry": Retry(NoBackoff(), 0)}
    sentinels: Any = Sentinel(hosts, sentinel_kwargs={**asked_once, **sentinel_kwargs})  # type: ignore[no-untyped-call]
    return sentinels.master_for(service, **options)
