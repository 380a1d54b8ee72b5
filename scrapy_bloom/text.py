"""Text for people: counts, sizes and rates, decoded replies, and warnings that repeat at most once a minute."""

import logging
import time
from collections.abc import Callable
from typing import Any

_KILO = 1000
_MIN_PAGES = 0.01
# From this number on, decimals are noise.
_MIN_WHOLE_PAGES = 9.995
# The smallest error rate that a filter may have: an estimate below it is as good as none.
_MIN_ERROR_RATE = 1e-15


def as_bytes(value: str | bytes) -> bytes:
    """Return a value as Redis stores it: text in UTF-8, bytes unchanged."""
    return value.encode() if isinstance(value, str) else value


def as_text(value: Any) -> str:
    """Return a reply as text, whether or not the client decodes replies."""
    return value.decode() if isinstance(value, bytes) else str(value)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 layer`, `2,000 layers`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def as_number(number: float, digits: int = 6) -> str:
    """Return a number as users type it: `1e-6` and `1e8` instead of Python's `1e-06` and `1e+08`."""
    return f"{number:.{digits}g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def as_error_rate(rate: float) -> str:
    """Return an error rate with two digits; an estimate below the smallest allowed one is `<1e-15`."""
    return f"<{as_number(_MIN_ERROR_RATE)}" if 0 < rate < _MIN_ERROR_RATE else as_number(float(f"{rate:.2g}"))


def as_size(size: int) -> str:
    """Return a size in bytes, KB, MB or GB, by its magnitude."""
    if size < _KILO:
        return plural(size, "byte")
    scaled = size / _KILO
    for unit in ("KB", "MB"):
        # 999.95 KB would round to 1,000.0 KB: it is 1.0 MB.
        if scaled < _KILO - 0.05:
            return f"{scaled:.1f} {unit}"
        scaled /= _KILO
    return f"{scaled:,.1f} GB"


def as_expected_pages(pages: float) -> str:
    """Return an expected number of pages, with no more digits than an estimate deserves."""
    if pages < _MIN_PAGES / 2:
        return f"fewer than {_MIN_PAGES} pages"
    return f"about {pages:.2f} pages" if pages < _MIN_WHOLE_PAGES else f"about {pages:,.0f} pages"


_PAUSE_SECONDS = 60.0


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module, whose calls never raise: no request is lost for an error of a user's handler.

    Such an error goes to stderr, as handlers of the standard library report theirs.
    """
    logger = logging.getLogger(name)
    handle = logger.handle

    def handle_safely(record: logging.LogRecord) -> None:
        try:
            handle(record)
        except Exception:
            logging.Handler().handleError(record)

    logger.handle = handle_safely  # type: ignore[method-assign]  # a logger's class is shared by all
    return logger


class LimitedWarnings:
    """Logs a warning at once, and repeats of its text, with any arguments, at most once a minute."""

    def __init__(self, logger: logging.Logger, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._monotonic = monotonic
        self._due: dict[str, float] = {}
        # By text: the number of suppressed repeats, and the level and arguments of the last one.
        self._suppressed: dict[str, tuple[int, int, tuple[object, ...]]] = {}

    def warn(self, text: str, *arguments: object, level: int = logging.WARNING) -> None:
        """Log a warning, or count it if its text was logged within the last minute."""
        now = self._monotonic()
        repeats, *_ = self._suppressed.get(text, (0,))
        if now < self._due.get(text, now):
            self._suppressed[text] = repeats + 1, level, arguments
            return
        self._due[text] = now + _PAUSE_SECONDS
        if repeats:
            self._suppressed[text] = repeats + 1, level, arguments
            self._log_repeats(text)
        else:
            self._logger.log(level, text, *arguments)

    def flush(self) -> None:
        """Log the suppressed repeats."""
        for text in [*self._suppressed]:
            self._log_repeats(text)

    def _log_repeats(self, text: str) -> None:
        repeats, level, arguments = self._suppressed.pop(text)
        line = text % arguments if arguments else text
        self._logger.log(level, "%s (%dx since the last such line)", line, repeats)
