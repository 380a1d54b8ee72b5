"""Connect to Redis by a crawl's settings, with short timeouts and without the client's retries."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from redis import Redis, RedisCluster
from scrapy.settings import BaseSettings, SettingsAttribute
from scrapy_redis import defaults
from scrapy_redis.connection import SETTINGS_PARAMS_MAP, get_redis_from_settings

from scrapy_bloom._scrapy.components import load_component
from scrapy_bloom.errors import BloomError, ConfigError
from scrapy_bloom.transport.client import NO_CLIENTS, require_usable
from scrapy_bloom.transport.failures import FAULTS
from scrapy_bloom.transport.retry import disable_client_retries
from scrapy_bloom.transport.server_info import is_cluster
from scrapy_bloom.transport.urls import SCHEMES, SENTINEL, FromSentinel, FromUrl, RedisUrl, service_and_database

# A command or a connection blocks the reactor until the reply. scrapy-redis's default is 30.
_SOCKET_TIMEOUT_SECONDS = 5.0
_TIMEOUTS = ("socket_timeout", "socket_connect_timeout")
URL, PARAMS = "REDIS_URL", "REDIS_PARAMS"
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}://", re.IGNORECASE)
# Sockets take no longer timeout, in seconds.
_MAX_TIMEOUT = 1e9
# An option in an error of redis-py's or ours.
_OPTION = re.compile(r"(?:unexpected keyword argument|Invalid value for) '(\w+)'")


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
    def decodes(self) -> bool:
        """True if the settings make the client decode replies."""
        return bool(self.values.get("REDIS_DECODE_RESPONSES") or self.params.get("decode_responses"))

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
        params = {**dict.fromkeys(_TIMEOUTS, _SOCKET_TIMEOUT_SECONDS), **self.params}
        if self.is_selected_by_url:
            params["redis_cls"] = FromUrl
        values = BaseSettings()
        values.attributes = {**self.values.attributes, PARAMS: SettingsAttribute(params, 0)}
        return values


def connect(settings: BaseSettings) -> Any:
    """Return the client, with short timeouts and without its own retries.

    Raises:
        ConfigError: the settings are invalid, or the client cannot be used.
    """
    given = RedisSettings(settings)
    _require_class(given)
    _require_url(given)
    try:
        client = _make(given)
    except (BloomError, *FAULTS):
        raise
    except Exception as error:  # any error of redis-py or of a user's class
        raise _refusal(given, error) from None
    return disable_client_retries(require_usable(client))


def _make(given: RedisSettings) -> Any:
    """Return a client. Invalid options raise here; redis-py alone would raise when it connects."""
    client = get_redis_from_settings(given.for_scrapy_redis())
    if is_cluster(client):
        _require_timeouts(client.get_connection_kwargs())
    else:
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)
        _require_timeouts(pool.connection_kwargs)
    return client


def _require_timeouts(options: Mapping[str, Any]) -> None:
    """Raise an error unless the timeouts are such that replies are waited for."""
    for name in _TIMEOUTS:
        value = options.get(name)
        if value is not None and not (isinstance(value, (int, float)) and 0 < value < _MAX_TIMEOUT):
            raise ValueError(f"Invalid value for '{name}'")


def _require_class(given: RedisSettings) -> None:
    kind = given.client_class
    fit = (Redis, RedisCluster, FromSentinel, FromUrl)
    if not (isinstance(kind, type) and issubclass(kind, fit)) or issubclass(kind, NO_CLIENTS):
        raise ConfigError(
            f"{PARAMS}['redis_cls'] = {given.params['redis_cls']!r}: must be redis.Redis, redis.RedisCluster, a "
            f"subclass of one of them, or scrapy_bloom.FromSentinel; remove it, and let {URL} select the client"
        )


def _require_url(given: RedisSettings) -> None:
    """Refuse a URL that redis-py would misread, or whose beginning selects no client.

    If an unquoted character cuts the password, errors would show its first part as a host or a port.
    """
    url = given.url
    parts = RedisUrl.parse(url)
    if not url or parts.scheme == "unix":
        return
    begin = _SCHEME.match(url)
    if "@" in parts.path + parts.query.partition("=")[0] or "#" in url:
        raise _unreadable_url()
    if not begin or not url.startswith(SCHEMES):
        shown = f" = '{begin[0]}…'" if begin else ""
        raise ConfigError(f"{URL}{shown}: must begin with one of {', '.join(SCHEMES)}")
    if parts.kind and given.client_class is not FromUrl:
        raise ConfigError(
            f"{PARAMS}['redis_cls'] = {given.params['redis_cls']!r}: {URL} selects the client itself, "
            f"since it begins with {begin[0]}; remove redis_cls"
        )
    try:
        parts.addresses(0)
    except ValueError:
        raise _unreadable_url() from None
    _require_path(parts)


def _require_path(parts: RedisUrl) -> None:
    """Refuse a URL without a master's name, or whose database is invalid."""
    database = parts.path.strip("/")
    if parts.kind == "sentinel":
        try:
            service_and_database(parts.path)
        except ValueError:
            raise ConfigError(
                f"{URL} names no master: end it with the Sentinels' name for the master, and with a database if it "
                "is not 0, as in redis+sentinel://sentinel-1:26379,sentinel-2:26379/mymaster/0"
            ) from None
    elif parts.kind == "cluster" and database.strip("0"):
        raise ConfigError(f"{URL} names a database, but a cluster has none: end it with the last host's port")
    elif database and not database.isdecimal():
        raise ConfigError(f"{URL} names a database that is no number: end it with one, as in redis://localhost:6379/0")


def _refusal(given: RedisSettings, error: Exception) -> ConfigError:
    """Return an error that names the option if redis-py does, but no value: it may be a part of a password."""
    found, kind, params = _OPTION.search(str(error)), given.client_class, given.params
    query = RedisUrl.parse(given.url).query
    in_url = parse_qs(query, keep_blank_values=True)
    names = [found[1], SENTINEL + found[1]] if found else []
    # After an unquoted `?`, a query may begin with the rest of a password.
    labels = [f"{URL} with ?{name if '@' not in query else '…'}=…" for name in names if name in in_url]
    labels += [f"{PARAMS}[{name!r}]" for name in names if name in params]
    if not labels:
        labels = [name for name in SETTINGS_PARAMS_MAP if given.values.get(name)]
        labels += [f"{PARAMS}[{name!r}]" for name in params if name != "redis_cls"]
    advice = f"remove it, and begin {URL} with rediss" if "ssl" in names else "correct it, or remove it"
    return ConfigError(f"{' or '.join(labels)}: {type(error).__name__} in {kind.__module__}.{kind.__name__}; {advice}")


def _unreadable_url() -> ConfigError:
    return ConfigError(
        f"{URL} cannot be read: it must be like redis://user:password@host:6379/0, with every character "
        "of the password that is not a letter or a digit written as %XX, as urllib.parse.quote does"
    )
