"""Rate-limited warnings: each text is logged once a minute, with a count of its repeats."""

import logging
import time
from collections.abc import Callable

_PAUSE_SECONDS = 60.0


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
