"""A process that is to stop at once, as code sees it that blocks the loop in which Scrapy would see to that.

Scrapy's handlers of SIGINT and SIGTERM only leave a note for its loop. With the second signal they have both ignored,
which is all that can be seen of them from elsewhere. Without such handlers Ctrl-C is a KeyboardInterrupt.
"""

import signal

from scrapy_bloom.errors import StoppedError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopWatch:
    """Sees whether the process was asked twice to stop since this was made."""

    def __init__(self) -> None:
        # One that was started to ignore them is not asked.
        self._ignored_before = _are_ignored()

    def require_none(self, timeout: float, cause: str) -> None:
        """Raise a StoppedError where it was: it was to wait for up to `timeout` seconds for what has this `cause`."""
        if _are_ignored() and not self._ignored_before:
            raise StoppedError(timeout, cause) from None


def _are_ignored() -> bool:
    return all(signal.getsignal(number) is signal.SIG_IGN for number in _SIGNALS)
