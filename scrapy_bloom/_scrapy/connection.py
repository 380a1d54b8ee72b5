"""The Redis client that a crawl's settings ask for, with what this package needs of any."""

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

# How long a command or a connection may wait for an answer, and so block the reactor. scrapy-redis's default is 30.
_SOCKET_TIMEOUT_SECONDS = 5.0
_TIMEOUTS = ("socket_timeout", "socket_connect_timeout")
_SECRETS = ("username", "password", "credential_provider", "sentinel_kwargs")
# The packages whose clients connect no sooner than at their first command, but for a cluster's.
_LAZY = ("redis", "scrapy_bloom")


def connect(settings: BaseSettings) -> Any:
    """Return a client as scrapy-redis would make it, that neither waits for long nor retries by itself.

    Raises:
        ConfigError: the client cannot work.
    """
    with refusing_unfit(settings):
        client = _make(with_socket_timeouts(settings))
    return disable_client_retries(require_usable(client))


@contextmanager
def refusing_unfit(settings: BaseSettings) -> Iterator[None]:
    """Raise a ConfigError that names the setting for what making or using a client raises, but for faults of a server.

    The text of such an error is not shown: it may cite a part of the password.
    """
    kind = _client_class(settings)
    _require_readable_url(settings, kind)
    try:
        yield
    except (BloomError, *FAULTS):
        raise
    except Exception as error:  # whatever redis-py or a user's class makes of the settings
        raise _refusal(settings, kind, error) from None


def with_socket_timeouts(settings: BaseSettings) -> BaseSettings:
    """Return the settings with a shorter timeout, where REDIS_PARAMS has none; one in REDIS_URL goes before either."""
    ours = dict.fromkeys(_TIMEOUTS, _SOCKET_TIMEOUT_SECONDS)
    return _with(settings, "REDIS_PARAMS", {**ours, **_params(settings)})


def _make(settings: BaseSettings) -> Any:
    """Return a client; redis-py would tell an option that is not allowed only when it connects."""
    client = get_redis_from_settings(settings)
    pool = getattr(client, "connection_pool", None)
    if pool is not None and hasattr(pool, "connection_class"):
        pool.connection_class(**pool.connection_kwargs)
        with socket.socket() as probe:
            for name in _TIMEOUTS:
                probe.settimeout(pool.connection_kwargs.get(name))
    return client


def _with(settings: BaseSettings, name: str, value: Any) -> BaseSettings:
    """Return settings in which one has another value."""
    result = BaseSettings()
    result.attributes = {each: attribute for each, attribute in settings.attributes.items() if each != name}
    result.set(name, value)
    return result


def _params(settings: BaseSettings) -> dict[str, Any]:
    try:
        return settings.getdict("REDIS_PARAMS")
    except (TypeError, ValueError):
        # Its value may have a password.
        raise ConfigError("REDIS_PARAMS must be a dict, or one as JSON; write {'name': value, …}") from None


def _url(settings: BaseSettings) -> str:
    return settings.get("REDIS_URL") or _params(settings).get("url") or ""


def _client_class(settings: BaseSettings) -> Any:
    path = _params(settings).get("redis_cls") or defaults.REDIS_CLS
    return load_component("REDIS_PARAMS['redis_cls']", path, "redis.RedisCluster")


def _require_readable_url(settings: BaseSettings, kind: Any) -> None:
    """Refuse a URL of which redis-py would take a part for another one, or for nothing.

    Where a character of the password ends it, its begin would be a host or a port in errors.
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
    """Return what to say of settings that no client can be made of: the one without which it can, if there is one."""
    if not _is_lazy(kind):
        last = traceback.extract_tb(error.__traceback__)[-1]
        return ConfigError(
            f"REDIS_PARAMS['redis_cls'] = {_params(settings)['redis_cls']!r}: it raised {type(error).__name__} at "
            f"{Path(last.filename).name}:{last.lineno}; check what it makes of REDIS_URL and of the other REDIS_PARAMS"
        )
    for label, advice, others in _suspects(settings, kind):
        if _is_fit(others):
            return ConfigError(f"{label}: {type(error).__name__} in {kind.__module__}.{kind.__name__}; {advice}")
    return _unreadable_url()


def _is_fit(settings: BaseSettings) -> bool:
    """Return whether a client can be made of settings, also if its server is unreachable."""
    try:
        _make(with_socket_timeouts(settings))
    except FAULTS:
        return True
    except Exception:  # the same that it is looked for, or another
        return False
    return True


def _suspects(settings: BaseSettings, kind: Any) -> Iterator[tuple[str, str, BaseSettings]]:
    """Yield each part of the settings as it is shown, what to do about it, and the settings without it."""
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
        # The begin of a query may be the end of a password.
        shown = name if "@" not in parts.query else "…"
        yield f"REDIS_URL with ?{shown}=…", _advice(name, known, url), _with_url(settings, parts._replace(query=rest))


def _with_url(settings: BaseSettings, parts: Any) -> BaseSettings:
    return _with(settings, "REDIS_URL", parts.geturl())


def _advice(name: str, known: Any, url: str) -> str:
    """Return what to do about an option of a client that knows others."""
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
