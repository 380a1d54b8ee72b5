"""Connect to Redis by a crawl's settings, with short timeouts and without the client's retries."""

import difflib
import inspect
import re
import socket
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from redis import Redis
from scrapy.settings import BaseSettings
from scrapy_redis.connection import SETTINGS_PARAMS_MAP, get_redis_from_settings

from scrapy_bloom._scrapy.redis_settings import PARAMS, TIMEOUTS, URL, RedisSettings
from scrapy_bloom.errors import BloomError, ConfigError
from scrapy_bloom.transport.client import require_usable
from scrapy_bloom.transport.failures import FAULTS
from scrapy_bloom.transport.from_url import SENTINEL, FromUrl, service_and_database
from scrapy_bloom.transport.redis_url import SCHEMES, RedisUrl
from scrapy_bloom.transport.retry import disable_client_retries
from scrapy_bloom.transport.server_info import is_cluster

_SECRETS = ("url", "username", "password", "ssl_password", "credential_provider", "sentinel_kwargs")
# Packages whose clients, except those of a cluster, connect with their first command.
_LAZY = ("redis", "scrapy_bloom")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}://", re.IGNORECASE)


def connect(settings: BaseSettings) -> Any:
    """Return the client of the queue's server, with short timeouts and without its own retries.

    Raises:
        ConfigError: the settings are invalid, or the client cannot be used.
    """
    return _connect(RedisSettings(settings))


def connect_filter(settings: BaseSettings) -> Any:
    """Return the client of the filter's server, by default the queue's; as `connect` otherwise."""
    return _connect(RedisSettings.of_filter(settings))


def _connect(given: RedisSettings) -> Any:
    with refusing_unfit(given):
        client = _make(given)
    return disable_client_retries(require_usable(client, given.names))


@contextmanager
def refusing_unfit(given: RedisSettings) -> Iterator[None]:
    """Turn errors of a client, except a server's faults, into a ConfigError that names the setting.

    The ConfigError leaves out the original text, which may cite a part of the password.
    """
    kind = given.client_class
    _require_readable_url(given, kind)
    try:
        yield
    except (BloomError, *FAULTS):
        raise
    except Exception as error:  # any error of redis-py or of a user's class
        raise _refusal(given, kind, error) from None


def _make(given: RedisSettings) -> Any:
    """Return a client. Invalid options raise here; redis-py alone would raise when it connects."""
    client = get_redis_from_settings(given.for_scrapy_redis())
    pool = getattr(client, "connection_pool", None)
    if pool is not None and hasattr(pool, "connection_class"):
        pool.connection_class(**pool.connection_kwargs)
        _require_timeouts(pool.connection_kwargs)
    elif is_cluster(client):
        _require_timeouts(client.get_connection_kwargs())
    return client


def _require_timeouts(options: Mapping[str, Any]) -> None:
    """Raise an error unless a socket takes the timeouts, and waits for replies."""
    with socket.socket() as probe:
        for name in TIMEOUTS:
            probe.settimeout(options.get(name))
            if not probe.getblocking():
                raise ValueError(f"{name} = 0: no reply would be waited for")


def _require_readable_url(given: RedisSettings, kind: Any) -> None:
    """Refuse a URL that redis-py would misread, or whose scheme selects no client.

    If an unquoted character cuts the password, errors would show its first part as a host or a port.
    """
    url = given.url
    parts = RedisUrl.parse(url)
    if parts.scheme == "unix":
        return
    if "@" in parts.path + parts.query.partition("=")[0] or "#" in url:
        raise _unreadable_url(given)
    if url and _is_lazy(kind):
        _require_scheme(given, kind)
        _require_path(given, parts)


def _require_scheme(given: RedisSettings, kind: Any) -> None:
    """Refuse a URL whose beginning selects no client, or another one than REDIS_PARAMS."""
    name, begin = given.prefix + URL, _SCHEME.match(given.url)
    if not begin or not given.url.startswith(SCHEMES):
        shown = f" = '{begin[0]}…'" if begin else ""
        raise ConfigError(f"{name}{shown}: must begin with one of {', '.join(SCHEMES)}")
    if RedisUrl.parse(given.url).kind and kind is not FromUrl:
        raise ConfigError(
            f"{given.prefix}{PARAMS}['redis_cls'] = {given.params['redis_cls']!r}: {name} selects the client itself, "
            f"since it begins with {begin[0]}; remove redis_cls"
        )


def _require_path(given: RedisSettings, parts: RedisUrl) -> None:
    """Refuse a URL without a master's name, or whose database is invalid."""
    name, database = given.prefix + URL, parts.path.strip("/")
    if parts.kind == "sentinel":
        try:
            service_and_database(parts.path)
        except ValueError:
            raise ConfigError(
                f"{name} names no master: end it with the Sentinels' name for the master, and with a database if it "
                "is not 0, as in redis+sentinel://sentinel-1:26379,sentinel-2:26379/mymaster/0"
            ) from None
    elif parts.kind == "cluster" and database.strip("0"):
        raise ConfigError(f"{name} names a database, but a cluster has none: end it with the last host's port")
    elif database and not database.isdecimal():
        raise ConfigError(f"{name} names a database that is no number: end it with one, as in redis://localhost:6379/0")


def _is_lazy(kind: Any) -> bool:
    return str(getattr(kind, "__module__", "")).partition(".")[0] in _LAZY


def _refusal(given: RedisSettings, kind: Any, error: Exception) -> ConfigError:
    """Return an error that names the faulty setting: without that setting, a client can be made."""
    if not _is_lazy(kind):
        last = traceback.extract_tb(error.__traceback__)[-1]
        return ConfigError(
            f"{given.prefix}{PARAMS}['redis_cls'] = {given.params['redis_cls']!r}: it raised {type(error).__name__} at "
            f"{Path(last.filename).name}:{last.lineno}; check how it uses {given.prefix}{URL} and the other "
            f"{given.prefix}{PARAMS}"
        )
    for label, advice, others in _suspects(given, kind):
        if _is_fit(others):
            return ConfigError(f"{label}: {type(error).__name__} in {kind.__module__}.{kind.__name__}; {advice}")
    return _unreadable_url(given)


def _is_fit(given: RedisSettings) -> bool:
    """Return whether a client can be made, even if its server is unreachable."""
    try:
        _make(given)
    except FAULTS:
        return True
    except Exception:  # the error to explain, or another one
        return False
    return True


def _suspects(given: RedisSettings, kind: Any) -> Iterator[tuple[str, str, RedisSettings]]:
    """Yield each part of the settings as a label, with advice and with the settings without this part."""
    params, url = given.params, given.url
    known = {*inspect.signature(Redis).parameters, *inspect.signature(kind.from_url).parameters}
    for name in params:
        shown = repr(params[name]) if name in known and name not in _SECRETS else "…"
        others = {each: value for each, value in params.items() if each != name}
        label = f"{given.prefix}{PARAMS} = {{{name!r}: {shown}}}"
        yield label, _advice(given, name, known), given.having(PARAMS, others)
    for name in SETTINGS_PARAMS_MAP:
        if name != URL and given.values.get(name):
            yield f"{name} = {given.values[name]!r}", "correct it, or remove it", given.having(name, None)
    begin, _, query = url.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    in_url = {*known, *(SENTINEL + name for name in known)} if RedisUrl.parse(url).kind == "sentinel" else known
    for name, _ in options:
        rest = urlencode([each for each in options if each[0] != name])
        # After an unquoted `?`, a query may begin with the rest of a password.
        shown = name if "@" not in query else "…"
        label = f"{given.prefix}{URL} with ?{shown}=…"
        yield label, _advice(given, name, in_url), given.having(URL, f"{begin}?{rest}")


def _advice(given: RedisSettings, name: str, known: set[str]) -> str:
    """Return advice on a client's option."""
    if name == "ssl" and given.url:
        return f"remove it, and begin {given.prefix}{URL} with rediss, not redis"
    if name in known:
        return "correct its value, or remove it"
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else "there is no such option; remove it"


def _unreadable_url(given: RedisSettings) -> ConfigError:
    return ConfigError(
        f"{given.prefix}{URL} cannot be read: it must be like redis://user:password@host:6379/0, with every character "
        "of the password that is not a letter or a digit written as %XX, as urllib.parse.quote does"
    )
