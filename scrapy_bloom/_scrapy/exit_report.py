"""The last line on the screen, and the exit code, of a crawl that is refused or that has to end.

Scrapy logs an error at the start as a traceback, and more errors after it that only follow from it. Up to 2.14 it ends
with the exit code 0 then. Every version does so where a crawl is closed by its own code.
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

# The commands that are to end so.
_commands: list[Any] = []


@contextmanager
def reports_at_exit() -> Iterator[None]:
    """Have the `scrapy` command end with the text of a BloomError that is raised in the block.

    A script that runs crawls by itself gets what Scrapy makes of the error, and decides what to show.
    """
    try:
        yield
    except BloomError as error:
        report_at_exit(str(error))
        raise
    _withdraw()


def report_at_exit(text: str) -> None:
    """Have the `scrapy` command end with this text, on one line, and with an exit code that is not 0.

    The text alone is kept: an error holds on to the frames that it came through, and to what these hold.
    """
    command = _running_command()
    # One that never makes a crawl says by itself what is wrong.
    if command is not None and getattr(command, "requires_crawler_process", True):
        command.exitcode = _EXIT_CODE
        atexit.unregister(_print)
        atexit.register(_print, " ".join(text.splitlines()))
        _commands.append(command)


def running_command() -> str | None:
    """Return the name of the `scrapy` command that this code is called by, or None for another program."""
    command = _running_command()
    return None if command is None else type(command).__module__.rpartition(".")[2]


def _withdraw() -> None:
    """Take back what was to be told: whoever caught the error has made the crawl start after all."""
    atexit.unregister(_print)
    while _commands:
        _commands.pop().exitcode = 0


def _running_command() -> Any:
    """Return the command of Scrapy's command line that this code is called by, or None for another program."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # By its file, since the module is `__main__` where it was run as a script.
        if frame.f_code.co_name == "execute" and Path(frame.f_code.co_filename).parts[-2:] == ("scrapy", "cmdline.py"):
            return frame.f_locals["cmd"]
        frame = frame.f_back
    return None


def _print(text: str) -> None:
    # Twisted and asyncio log an error that nobody took when its Deferred or task is collected.
    gc.collect()
    # Written past the log, which may go to a file, or nowhere.
    print("scrapy_bloom:", text, file=sys.stderr)
