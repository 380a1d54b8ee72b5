"""Parse the URL of a server, of Sentinels or of a cluster, which may list several hosts."""

from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import urlsplit

from redis import SSLConnection
from redis.connection import parse_url

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
        return [_host_and_port(address, port) for address in self.hosts.split(",")]

    def options(self) -> dict[str, Any]:
        """Return login, path and query as redis-py's options, without hosts."""
        at = f"{self.login}@" if self.login else ""
        options = parse_url(f"{self.scheme}://{at}host{self.path}?{self.query}")  # type: ignore[no-untyped-call]
        del options["host"]
        if options.pop("connection_class", None) is SSLConnection:
            options["ssl"] = True
        return dict(options)

    def replace(self, **parts: str) -> Self:
        """Return the URL with other parts."""
        return replace(self, **parts)


def _host_and_port(address: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{address.strip()}")
    if not parts.hostname:
        raise ValueError("an address without a host")
    return parts.hostname, parts.port or port
