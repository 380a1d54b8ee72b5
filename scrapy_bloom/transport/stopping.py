"""A process that is to stop at once, as code sees it that blocks the loop in which Scrapy would see to that.

Scrapy's handlers of SIGINT and SIGTERM only leave a note for its loop. With the second signal they have both ignored,
which is all that can be seen of them from elsewhere. Without such handlers Ctrl-C is a KeyboardInterrupt.
"""

import signal

from scrapy_bloom.errors import StoppedError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _are_ignored() -> bool:
    return all(signal.getsignal(number) is signal.SIG_IGN for number in _SIGNALS)


# One that was started to ignore them is not asked.
_IGNORED_FROM_THE_BEGINNING = _are_ignored()


def require_not_stopped(timeout: float, cause: str) -> None:
    """Raise a StoppedError if the process was asked twice to stop.

    It waits for up to `timeout` seconds, since there is this `cause`.
    """
    if _are_ignored() and not _IGNORED_FROM_THE_BEGINNING:
        raise StoppedError(timeout, cause) from None
