"""Warnings that may come hundreds of times a minute: each text is logged once a minute, with a count of the others."""

import logging
import time
from collections.abc import Callable

_PAUSE_SECONDS = 60.0


class LimitedWarnings:
    """Logs a warning at once, and equal ones at most once a minute; other arguments make no other text."""

    def __init__(self, logger: logging.Logger, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._monotonic = monotonic
        self._due: dict[str, float] = {}
        # The warnings that were left out, by their texts: how many, and the level and the arguments of the last one.
        self._left_out: dict[str, tuple[int, int, tuple[object, ...]]] = {}

    def warn(self, text: str, *arguments: object, level: int = logging.WARNING) -> None:
        """Log a warning, or count it where an equal one was logged within the last minute."""
        now = self._monotonic()
        number, *_ = self._left_out.get(text, (0,))
        if now < self._due.get(text, now):
            self._left_out[text] = number + 1, level, arguments
            return
        self._due[text] = now + _PAUSE_SECONDS
        if number:
            self._left_out[text] = number + 1, level, arguments
            self._log_left_out(text)
        else:
            self._logger.log(level, text, *arguments)

    def flush(self) -> None:
        """Log the warnings that were left out."""
        for text in [*self._left_out]:
            self._log_left_out(text)

    def _log_left_out(self, text: str) -> None:
        number, level, arguments = self._left_out.pop(text)
        line = text % arguments if arguments else text
        self._logger.log(level, "%s (%d times since the last such line)", line, number)
