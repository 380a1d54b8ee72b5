"""Read and check a Redis URL, which may name a server, a cluster, or Sentinels: `redis+cluster://host:port,host:port`."""

import re
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

from redis import SSLConnection
from redis.connection import parse_url

from scrapy_bloom.errors import ConfigError

URL = "REDIS_URL"
# The valid beginnings of a URL. Those with a plus sign select the client, too.
_MANY = ("redis+sentinel://", "rediss+sentinel://", "redis+cluster://", "rediss+cluster://")
SCHEMES = ("redis://", "rediss://", "unix://", *_MANY)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}://", re.IGNORECASE)
# redis-py's default, and the Sentinels' own.
_PORT, _SENTINEL_PORT = 6379, 26379
_UNREADABLE = (
    f"{URL} cannot be read: it must be like redis://user:password@host:6379/0, with every character of the password "
    "that is not a letter or a digit written as %XX, as urllib.parse.quote does"
)


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

    def addresses(self) -> list[tuple[str, int]]:
        """Return the hosts with their ports, by default that of the kind.

        Raises:
            ValueError: an address has no host, or its port is not a number.
        """
        port = _SENTINEL_PORT if self.kind == "sentinel" else _PORT
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

    def service_and_database(self) -> tuple[str, str]:
        """Return the Sentinels' name for the master, and the database.

        Raises:
            ValueError: the path is not `/service` or `/service/db`.
        """
        service, _, database = self.path.strip("/").partition("/")
        if not service or service.isdecimal() or not (database or "0").isdecimal():
            raise ValueError("a path without a service")
        return service, database


def require_url(url: str) -> None:
    """Refuse a URL that redis-py would misread.

    If an unquoted character cuts the password, errors would show its first part as a host or a port.

    Raises:
        ConfigError: the URL is invalid; the text has no part of it but its scheme.
    """
    parts = RedisUrl.parse(url)
    if not url or parts.scheme == "unix":
        return
    if "@" in parts.path + parts.query.partition("=")[0] or "#" in url:
        raise ConfigError(_UNREADABLE)
    if not url.startswith(SCHEMES):
        begin = _SCHEME.match(url)
        shown = f" = '{begin[0]}…'" if begin else ""
        raise ConfigError(f"{URL}{shown}: must begin with one of {', '.join(SCHEMES)}")
    try:
        parts.addresses()
    except ValueError:
        raise ConfigError(_UNREADABLE) from None
    _require_path(parts)


def _require_path(parts: RedisUrl) -> None:
    """Refuse a URL without a master's name, or whose database is invalid."""
    database = parts.path.strip("/")
    if parts.kind == "sentinel":
        try:
            parts.service_and_database()
        except ValueError:
            action = "end it with the Sentinels' name for the master, and with a database if it is not 0"
            example = "redis+sentinel://sentinel-1:26379,sentinel-2:26379/mymaster/0"
            raise ConfigError(f"{URL} names no master: {action}, as in {example}") from None
    elif parts.kind == "cluster" and database.strip("0"):
        raise ConfigError(f"{URL} names a database, but a cluster has none: end it with the last host's port")
    elif database and not database.isdecimal():
        raise ConfigError(f"{URL} names a database that is no number: end it with one, as in redis://localhost:6379/0")
