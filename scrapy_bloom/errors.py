"""The errors of this package. Each text has the setting or key, the fact, and the action."""

# An action of several errors.
START_ANEW = (
    "start anew with flush=True (SCHEDULER_FLUSH_ON_START = True; a filter of items or of several spiders by `scrapy "
    "bloom clear`)"
)


class BloomError(Exception):
    """Base of every error of this package.

    Example:
        >>> try:
        ...     _ = BloomFilter(client, "pages", expansion=-1)
        ... except BloomError as error:
        ...     print(error)
        expansion (BLOOMFILTER_EXPANSION) = -1: must be a whole number of at least 0; set the growth factor of ...
    """


class ConfigError(BloomError, ValueError):
    """Raised when a setting or an argument has an invalid value.

    Example:
        >>> BloomFilter(client, "pages", capacity="many")
        Traceback (most recent call last):
        scrapy_bloom.errors.ConfigError: capacity (BLOOMFILTER_CAPACITY) = 'many': must be a whole number of at ...
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

    Example:
        >>> from redis import Redis
        >>> BloomFilter(Redis(port=1), "pages", retry_timeout=0)
        Traceback (most recent call last):
        scrapy_bloom.errors.UnavailableError: retry_timeout (BLOOMFILTER_RETRY_TIMEOUT) = 0: Redis ...
    """

    def __init__(self, timeout: float, cause: str) -> None:
        self.timeout = timeout
        self.cause = cause
        super().__init__(
            f"retry_timeout (BLOOMFILTER_RETRY_TIMEOUT) = {timeout:g}: Redis was unreachable for longer ({cause}); "
            "check its address (REDIS_URL), restart Redis, or set a longer time. If Redis is up, a proxy may close the "
            "connection at a command: run `scrapy bloom doctor`"
        )

    def __reduce__(self) -> tuple[type["UnavailableError"], tuple[float, str]]:
        """Pickle the arguments: the default would pickle the text."""
        return type(self), (self.timeout, self.cause)


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
        scrapy_bloom.errors.WrongTypeError: the key 'jobs' holds a list that is not a filter: use another key ...
        >>> _ = client.delete("jobs")
    """
