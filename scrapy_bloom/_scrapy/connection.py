"""Connect to Redis by a crawl's settings, with short timeouts and without the client's retries."""

import difflib
import inspect
import socket
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis import Redis
from scrapy.settings import BaseSettings
from scrapy_redis import defaults
from scrapy_redis.connection import SETTINGS_PARAMS_MAP, get_redis_from_settings

from scrapy_bloom._scrapy.components import load_component
from scrapy_bloom.errors import BloomError, ConfigError
from scrapy_bloom.transport.client import require_usable
from scrapy_bloom.transport.failures import FAULTS
from scrapy_bloom.transport.retry import disable_client_retries

# A command or a connection blocks the reactor until the reply. scrapy-redis's default is 30.
_SOCKET_TIMEOUT_SECONDS = 5.0
_TIMEOUTS = ("socket_timeout", "socket_connect_timeout")
_SECRETS = ("username", "password", "credential_provider", "sentinel_kwargs")
# Packages whose clients, except those of a cluster, connect with their first command.
_LAZY = ("redis", "scrapy_bloom")


def connect(settings: BaseSettings) -> Any:
    """Return scrapy-redis's client with short timeouts and without its own retries.

    Raises:
        ConfigError: the settings are invalid, or the client cannot be used.
    """
    with refusing_unfit(settings):
        client = _make(with_socket_timeouts(settings))
    return disable_client_retries(require_usable(client))


@contextmanager
def refusing_unfit(settings: BaseSettings) -> Iterator[None]:
    """Turn errors of a client, except a server's faults, into a ConfigError that names the setting.

    The ConfigError leaves out the original text, which may cite a part of the password.
    """
    kind = _client_class(settings)
    _require_readable_url(settings, kind)
    try:
        yield
    except (BloomError, *FAULTS):
        raise
    except Exception as error:  # any error of redis-py or of a user's class
        raise _refusal(settings, kind, error) from None


def with_socket_timeouts(settings: BaseSettings) -> BaseSettings:
    """Return the settings with a short timeout, unless REDIS_PARAMS has one; REDIS_URL overrides both."""
    ours = dict.fromkeys(_TIMEOUTS, _SOCKET_TIMEOUT_SECONDS)
    return _with(settings, "REDIS_PARAMS", {**ours, **_params(settings)})


def _make(settings: BaseSettings) -> Any:
    """Return a client. Invalid options raise here; redis-py alone would raise when it connects."""
    client = get_redis_from_settings(settings)
    pool = getattr(client, "connection_pool", None)
    if pool is not None and hasattr(pool, "connection_class"):
        pool.connection_class(**pool.connection_kwargs)
        with socket.socket() as probe:
            for name in _TIMEOUTS:
                probe.settimeout(pool.connection_kwargs.get(name))
    return client


def _with(settings: BaseSettings, name: str, value: Any) -> BaseSettings:
    """Return a copy of the settings with one value replaced."""
    result = BaseSettings()
    result.attributes = {each: attribute for each, attribute in settings.attributes.items() if each != name}
    result.set(name, value)
    return result


def _params(settings: BaseSettings) -> dict[str, Any]:
    try:
        return settings.getdict("REDIS_PARAMS")
    except (TypeError, ValueError):
        # The value may contain a password.
        raise ConfigError("REDIS_PARAMS must be a dict, or one as JSON; write {'name': value, …}") from None


def _url(settings: BaseSettings) -> str:
    return settings.get("REDIS_URL") or _params(settings).get("url") or ""


def _client_class(settings: BaseSettings) -> Any:
    path = _params(settings).get("redis_cls") or defaults.REDIS_CLS
    return load_component("REDIS_PARAMS['redis_cls']", path, "redis.RedisCluster")


def _require_readable_url(settings: BaseSettings, kind: Any) -> None:
    """Refuse a URL that redis-py would misread.

    If an unquoted character cuts the password, errors would show its first part as a host or a port.
    """
    try:
        parts = urlsplit(_url(settings))
    except ValueError:
        raise _unreadable_url() from None
    if parts.scheme == "unix":
        return
    if "@" in parts.path + parts.query.partition("=")[0] + parts.fragment:
        raise _unreadable_url()
    if _is_lazy(kind) and (database := parts.path.strip("/")) and not database.isdecimal():
        raise ConfigError(
            "REDIS_URL names a database that is no number: end it with one, as in redis://localhost:6379/0"
        )


def _is_lazy(kind: Any) -> bool:
    return str(getattr(kind, "__module__", "")).partition(".")[0] in _LAZY


def _refusal(settings: BaseSettings, kind: Any, error: Exception) -> ConfigError:
    """Return an error that names the faulty setting: without that setting, a client can be made."""
    if not _is_lazy(kind):
        last = traceback.extract_tb(error.__traceback__)[-1]
        return ConfigError(
            f"REDIS_PARAMS['redis_cls'] = {_params(settings)['redis_cls']!r}: it raised {type(error).__name__} at "
            f"{Path(last.filename).name}:{last.lineno}; check how it uses REDIS_URL and the other REDIS_PARAMS"
        )
    for label, advice, others in _suspects(settings, kind):
        if _is_fit(others):
            return ConfigError(f"{label}: {type(error).__name__} in {kind.__module__}.{kind.__name__}; {advice}")
    return _unreadable_url()


def _is_fit(settings: BaseSettings) -> bool:
    """Return whether a client can be made, even if its server is unreachable."""
    try:
        _make(with_socket_timeouts(settings))
    except FAULTS:
        return True
    except Exception:  # the error to explain, or another one
        return False
    return True


def _suspects(settings: BaseSettings, kind: Any) -> Iterator[tuple[str, str, BaseSettings]]:
    """Yield each part of the settings as a label, with advice and with the settings without this part."""
    params, url = _params(settings), _url(settings)
    known = {**inspect.signature(Redis).parameters, **inspect.signature(kind.from_url).parameters}
    for name in params:
        shown = repr(params[name]) if name in known and name not in _SECRETS else "…"
        others = {each: value for each, value in params.items() if each != name}
        label = f"REDIS_PARAMS = {{{name!r}: {shown}}}"
        yield label, _advice(name, known, url), _with(settings, "REDIS_PARAMS", others)
    for name in SETTINGS_PARAMS_MAP:
        if name != "REDIS_URL" and settings.get(name):
            yield f"{name} = {settings[name]!r}", "correct it, or remove it", _with(settings, name, None)
    parts = urlsplit(url)
    options = parse_qsl(parts.query, keep_blank_values=True)
    for name, _ in options:
        rest = urlencode([each for each in options if each[0] != name])
        # After an unquoted `?`, a query may begin with the rest of a password.
        shown = name if "@" not in parts.query else "…"
        yield f"REDIS_URL with ?{shown}=…", _advice(name, known, url), _with_url(settings, parts._replace(query=rest))


def _with_url(settings: BaseSettings, parts: Any) -> BaseSettings:
    return _with(settings, "REDIS_URL", parts.geturl())


def _advice(name: str, known: Any, url: str) -> str:
    """Return advice on a client's option."""
    if name == "ssl" and url:
        return "remove it, and begin REDIS_URL with rediss://"
    if name in known:
        return "correct its value, or remove it"
    nearest = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else "there is no such option; remove it"


def _unreadable_url() -> ConfigError:
    return ConfigError(
        "REDIS_URL cannot be read: it must be like redis://user:password@host:6379/0, with every character of the "
        "password that is not a letter or a digit written as %XX, as urllib.parse.quote does"
    )
