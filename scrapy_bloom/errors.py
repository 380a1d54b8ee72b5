"""The errors that this package raises; each text names what is wrong, what is allowed and what to do."""


class BloomError(Exception):
    """Base of every error of this package."""


class ConfigError(BloomError, ValueError):
    """Raised when a setting or an argument has a value that is not allowed."""


class MismatchError(BloomError):
    """Raised when the stored filter was made with other parameters, or by a newer format."""


class WrongTypeError(BloomError):
    """Raised when the filter's key holds something that is not a filter."""
