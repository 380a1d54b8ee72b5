"""The end of the running `scrapy` command if a crawl is refused or aborted: one last line, and an exit code.

Scrapy logs an error at the start as a traceback, followed by errors that only result from it. Scrapy up to 2.14 then
exits with code 0, and so does every version after a crawl that its own code has closed. So this module ends the command
with one final line on stderr and a non-zero exit code, and hides these tracebacks.
"""

import atexit
import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from scrapy_bloom.errors import BloomError
from scrapy_bloom.text import get_logger

logger = get_logger(__name__)

# The loggers of errors that only result from that of a refused start.
_LOGGERS = [*map(logging.getLogger, ("asyncio", "scrapy.core.engine", "scrapy.utils.signal", "twisted"))]
# The commands whose exit code was set.
_commands: list[Any] = []


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a logged error is another one than that of a refused start, and does not result from it."""
    error = record.exc_info[1] if record.exc_info else None
    if str(error).endswith("slot not assigned") or "CoreStats.spider_closed" in record.getMessage():
        return False
    while error is not None and not isinstance(error, BloomError):
        error = error.__context__
    return error is None


@contextmanager
def reports_at_exit() -> Iterator[None]:
    """Make the `scrapy` command end with the text of a BloomError raised in the block.

    A script that runs crawls itself gets the error from Scrapy, and decides what to show.
    """
    try:
        yield
    except BloomError as error:
        if report_at_exit(str(error)):
            logger.error("The crawl does not start: %s", error)
            for other in _LOGGERS:
                other.addFilter(_is_news)
        raise
    # Withdraw earlier reports: the caller caught the error, and the crawl starts after all.
    for other in _LOGGERS:
        other.removeFilter(_is_news)
    atexit.unregister(_print)
    while _commands:
        _commands.pop().exitcode = 0


def report_at_exit(text: str) -> bool:
    """Make the `scrapy` command end with this text, on one line, and a non-zero exit code.

    Takes a text, not an error: an error keeps its frames and their objects alive.

    Returns:
        False if no command runs, or one that reports its errors itself since it never crawls.
    """
    command = _running_command()
    if command is None or not getattr(command, "requires_crawler_process", True):
        return False
    command.exitcode = 1
    atexit.unregister(_print)
    atexit.register(_print, " ".join(text.splitlines()))
    _commands.append(command)
    return True


def running_command() -> str | None:
    """Return the name of the running `scrapy` command, or None in another program."""
    command = _running_command()
    return None if command is None else type(command).__module__.rpartition(".")[2]


def _running_command() -> Any:
    """Return the running command object of Scrapy's command line, or None in another program."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # Found by its file: the module's name is `__main__` if it runs as a script.
        if frame.f_code.co_name == "execute" and Path(frame.f_code.co_filename).parts[-2:] == ("scrapy", "cmdline.py"):
            return frame.f_locals["cmd"]
        frame = frame.f_back
    return None


def _print(text: str) -> None:
    # Twisted and asyncio log unhandled errors when the Deferred or task is collected: collect these first.
    gc.collect()
    # Not logged: the log may go to a file, or nowhere.
    print("scrapy_bloom:", text, file=sys.stderr)
