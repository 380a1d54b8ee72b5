"""The errors that this package raises; each text names what is wrong, what is allowed and what to do."""


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
    """Raised when a setting or an argument has a value that is not allowed.

    Example:
        >>> MemoryBloomFilter(capacity="many")
        Traceback (most recent call last):
        scrapy_bloom.errors.ConfigError: capacity = 'many': must be a whole number of at least 1; set how many ...
    """


class MismatchError(BloomError):
    """Raised when the stored filter was made with other parameters, or by a newer format.

    Example:
        >>> bloom = BloomFilter(client, "pages", capacity=1000)
        >>> BloomFilter(client, "pages", capacity=2000)
        Traceback (most recent call last):
        scrapy_bloom.errors.MismatchError: the filter at 'pages' ... capacity = 2000 here, 1000 in the stored filter...
        >>> bloom.clear()
    """


class RefusedError(BloomError):
    """Raised when the server refuses a command for a reason that waiting does not change.

    Example:
        >>> from redis import Redis
        >>> port = client.get_connection_kwargs()["port"]
        >>> BloomFilter(Redis(port=port, username="nobody", password="wrong"), "pages")
        Traceback (most recent call last):
        scrapy_bloom.errors.RefusedError: Redis refused a command ...: check the user name and the password ...
    """


class UnavailableError(BloomError):
    """Raised when the server has been away for too long.

    Args:
        timeout: seconds for which it was waited for.
        cause: the last error of the connection, without what may be secret.
        option: the user's name of `timeout`.
        address: where the user gives the server's address.

    Example:
        >>> from redis import Redis
        >>> BloomFilter(Redis(port=1), "pages", retry_timeout=0)
        Traceback (most recent call last):
        scrapy_bloom.errors.UnavailableError: retry_timeout = 0: Redis has been away for longer ...
    """

    def __init__(
        self, timeout: float, cause: str, option: str = "BLOOMFILTER_RETRY_TIMEOUT", address: str = "REDIS_URL"
    ) -> None:
        self.timeout = timeout
        self.cause = cause
        self._names = (option, address)
        super().__init__(
            f"{option} = {timeout:g}: Redis has been away for longer ({cause}); check {address}, bring it back, or set "
            "a longer time"
        )

    def __reduce__(self) -> tuple[type["UnavailableError"], tuple[float, str, str, str]]:
        """Let it be pickled: it is made of its arguments, and not of its text."""
        return type(self), (self.timeout, self.cause, *self._names)


class StoppedError(UnavailableError):
    """Raised when the process was asked twice to stop while it waited for something, its `cause`."""

    def __str__(self) -> str:
        return f"{self.cause}, and this process was asked twice to stop: it waits no longer. Start it again later"


class WrongTypeError(BloomError):
    """Raised when the filter's key holds something that is not a filter.

    Example:
        >>> _ = client.lpush("jobs", "a")
        >>> BloomFilter(client, "jobs")
        Traceback (most recent call last):
        scrapy_bloom.errors.WrongTypeError: the key 'jobs' holds a list that is not a filter: use another key
        >>> _ = client.delete("jobs")
    """
