"""The Redis client that a crawl's settings ask for, with what this package needs of any."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from scrapy.settings import BaseSettings
from scrapy_redis.connection import get_redis_from_settings

from scrapy_bloom.errors import BloomError, ConfigError
from scrapy_bloom.transport.base import require_usable
from scrapy_bloom.transport.retry import disable_client_retries

# How long a command or a connection may wait for an answer, and so block the reactor. scrapy-redis's default is 30.
_SOCKET_TIMEOUT_SECONDS = 5.0


def connect(settings: BaseSettings) -> Any:
    """Return a client as scrapy-redis would make it, that neither waits for long nor retries by itself.

    Raises:
        ConfigError: the client cannot work.
    """
    with hiding_credentials():
        _require_whole_password(settings.get("REDIS_URL") or settings.getdict("REDIS_PARAMS").get("url") or "")
        return disable_client_retries(require_usable(get_redis_from_settings(with_socket_timeouts(settings))))


@contextmanager
def hiding_credentials() -> Iterator[None]:
    """Raise a ConfigError for a URL that cannot be read: Python's own error would cite a part of the password."""
    try:
        yield
    except BloomError:
        raise
    except ValueError:
        raise ConfigError(
            "REDIS_URL cannot be read: it must be like redis://user:password@host:6379/0, with every character of the "
            "password that is not a letter or a digit written as %XX, as urllib.parse.quote does"
        ) from None


def _require_whole_password(url: str) -> None:
    """Raise a ValueError where a character of the password ends it: its begin would be a host or a port in errors."""
    parts = urlsplit(url)
    if parts.scheme != "unix" and "@" in parts.path + parts.query.partition("=")[0] + parts.fragment:
        raise ValueError("an @ behind the address")


def with_socket_timeouts(settings: BaseSettings) -> BaseSettings:
    """Return the settings with a shorter timeout, where REDIS_PARAMS has none; one in REDIS_URL goes before either."""
    ours = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), _SOCKET_TIMEOUT_SECONDS)
    result = BaseSettings()
    result.attributes = {name: value for name, value in settings.attributes.items() if name != "REDIS_PARAMS"}
    result.set("REDIS_PARAMS", {**ours, **settings.getdict("REDIS_PARAMS")})
    return result
