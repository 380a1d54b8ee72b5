"""Report why a crawl was refused or aborted: one final line on stderr and a non-zero exit code.

Scrapy logs an error at the start as a traceback, followed by errors that only result from it. Scrapy up to 2.14 then
exits with code 0, and so does every version after a crawl that its own code has closed.
"""

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from scrapy_bloom.errors import BloomError

_EXIT_CODE = 1

# The commands whose exit code was set.
_commands: list[Any] = []


@contextmanager
def reports_at_exit() -> Iterator[None]:
    """Make the `scrapy` command end with the text of a BloomError raised in the block.

    A script that runs crawls itself gets the error from Scrapy, and decides what to show.
    """
    try:
        yield
    except BloomError as error:
        report_at_exit(str(error))
        raise
    # Withdraw earlier reports: the caller caught the error, and the crawl starts after all.
    atexit.unregister(_print)
    while _commands:
        _commands.pop().exitcode = 0


def report_at_exit(text: str) -> None:
    """Make the `scrapy` command end with this text, on one line, and a non-zero exit code.

    Takes a text, not an error: an error keeps its frames and their objects alive.
    """
    command = _running_command()
    # Commands that never crawl report their errors themselves.
    if command is not None and getattr(command, "requires_crawler_process", True):
        command.exitcode = _EXIT_CODE
        atexit.unregister(_print)
        atexit.register(_print, " ".join(text.splitlines()))
        _commands.append(command)


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
