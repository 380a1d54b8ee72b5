"""The errors of this package. Each text has the setting or key, the fact, and the action."""

from dataclasses import dataclass


class BloomError(Exception):
    """Base of every error of this package.

    Example:
        >>> try:
        ...     _ = MemoryBloomFilter(expansion=-1)
        ... except BloomError as error:
        ...     print(error)
        expansion = -1: must be a whole number of at least 0; set how many times larger each further layer is, ...
    """


class ConfigError(BloomError, ValueError):
    """Raised when a setting or an argument has an invalid value.

    Example:
        >>> MemoryBloomFilter(capacity="many")
        Traceback (most recent call last):
        scrapy_bloom.errors.ConfigError: capacity = 'many': must be a whole number of at least 1; set how many ...
    """


class MismatchError(BloomError):
    """Raised when the stored filter has other parameters or a newer format.

    Example:
        >>> bloom = BloomFilter(client, "pages", capacity=1000)
        >>> BloomFilter(client, "pages", capacity=2000)
        Traceback (most recent call last):
        scrapy_bloom.errors.MismatchError: the filter at 'pages' ... capacity = 2000 here, 1000 in the stored filter...
        >>> bloom.clear()
    """


class RefusedError(BloomError):
    """Raised when the server refuses a command and retrying cannot help.

    Example:
        >>> from redis import Redis
        >>> port = client.get_connection_kwargs()["port"]
        >>> BloomFilter(Redis(port=port, username="nobody", password="wrong"), "pages")
        Traceback (most recent call last):
        scrapy_bloom.errors.RefusedError: Redis refused a command ...: check the user name and the password ...
    """


class UnavailableError(BloomError):
    """Raised when the server was unreachable for longer than the retry timeout.

    Args:
        timeout: the retry timeout in seconds.
        cause: the last error of the connection, without secrets.
        option: the user's name of `timeout`.
        address: where the user gives the server's address.

    Example:
        >>> from redis import Redis
        >>> BloomFilter(Redis(port=1), "pages", retry_timeout=0)
        Traceback (most recent call last):
        scrapy_bloom.errors.UnavailableError: retry_timeout = 0: Redis was unreachable for longer ...
    """

    def __init__(
        self, timeout: float, cause: str, option: str = "BLOOMFILTER_RETRY_TIMEOUT", address: str = "REDIS_URL"
    ) -> None:
        self.timeout = timeout
        self.cause = cause
        self.address = address
        self._option = option
        super().__init__(
            f"{option} = {timeout:g}: Redis was unreachable for longer ({cause}); check {address}, restart Redis, "
            "or set a longer time"
        )

    def __reduce__(self) -> tuple[type["UnavailableError"], tuple[float, str, str, str]]:
        """Pickle the arguments: the default would pickle the text."""
        return type(self), (self.timeout, self.cause, self._option, self.address)


class StoppedError(UnavailableError):
    """Raised when a second signal to stop interrupts a wait; `cause` names the wait."""

    def __str__(self) -> str:
        return f"{self.cause}, and this process was asked twice to stop: it has stopped waiting. Start it again later"


class WrongTypeError(BloomError):
    """Raised when the filter's key holds something other than a filter.

    Example:
        >>> _ = client.lpush("jobs", "a")
        >>> BloomFilter(client, "jobs")
        Traceback (most recent call last):
        scrapy_bloom.errors.WrongTypeError: the key 'jobs' holds a list that is not a filter: use another key
        >>> _ = client.delete("jobs")
    """


@dataclass(frozen=True)
class Names:
    """The names that the user wrote: settings of a crawl, or arguments of a filter.

    Attributes:
        prefix: the prefix of options, whose names are then in capitals, or nothing.
        key: the filter's key.
        anew: how to start with an empty filter.
        address: where to set the server's address.
    """

    prefix: str
    key: str
    anew: str
    address: str

    def option(self, name: str) -> str:
        """Return the user's name of an option."""
        return self.prefix + name.upper() if self.prefix else name


SETTING_NAMES = Names(
    prefix="BLOOMFILTER_",
    key="SCHEDULER_DUPEFILTER_KEY",
    anew="SCHEDULER_FLUSH_ON_START = True",
    address="REDIS_URL",
)
ARGUMENT_NAMES = Names(
    prefix="",
    key="key",
    anew="flush=True",
    address="the client's address",
)
