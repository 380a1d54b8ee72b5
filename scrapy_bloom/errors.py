"""The errors that this package raises; each text names what is wrong, what is allowed and what to do."""


class BloomError(Exception):
    """Base of every error of this package."""


class ConfigError(BloomError, ValueError):
    """Raised when a setting or an argument has a value that is not allowed."""


class MismatchError(BloomError):
    """Raised when the stored filter was made with other parameters, or by a newer format."""


class RefusedError(BloomError):
    """Raised when the server refuses a command for a reason that waiting does not change."""


class UnavailableError(BloomError):
    """Raised when the server has been away for longer than `timeout` seconds; `fault` says how it showed."""

    def __init__(self, timeout: float, fault: str) -> None:
        self.fault = fault
        super().__init__(
            f"BLOOMFILTER_RETRY_TIMEOUT = {timeout:g}: Redis has been away for longer ({fault}); bring it back, or set "
            "a longer time"
        )


class WrongTypeError(BloomError):
    """Raised when the filter's key holds something that is not a filter."""
