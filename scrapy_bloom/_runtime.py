"""Clocks, timers, threads and randomness of this process, and sizes of a worker; tests inject others."""

import asyncio
import os
import random
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twisted.internet import task


class Runtime:
    """The clocks, timers, threads, randomness and temporary directory of this process."""

    unix_time = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    uniform = staticmethod(random.uniform)
    randbelow = staticmethod(secrets.randbelow)
    token_hex = staticmethod(secrets.token_hex)
    temporary_directory = staticmethod(tempfile.gettempdir)
    event = staticmethod(threading.Event)

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)

    def process_name(self) -> str:
        """Return the host name and the process id."""
        return f"{socket.gethostname()}-{os.getpid()}"

    def thread(self, name: str, run: Callable[[], object]) -> threading.Thread:
        """Return a daemon thread."""
        return threading.Thread(target=run, name=name, daemon=True)

    def call_later(self, seconds: float, call: Callable[[], object]) -> bool:
        """Schedule a call in the reactor; return whether there is a reactor."""
        try:
            asyncio.get_running_loop().call_later(seconds, call)
        except RuntimeError:  # another reactor than Scrapy's default, which may not run yet, or none
            reactor: Any = sys.modules.get("twisted.internet.reactor")
            if reactor is None:
                return False
            reactor.callLater(seconds, call)
        return True

    async def pause(self, seconds: float) -> None:
        """Sleep without blocking the reactor."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # another reactor than Scrapy's default
            from twisted.internet import reactor  # noqa: PLC0415  # importing it installs it

            await task.deferLater(reactor, seconds)
        else:
            await asyncio.sleep(seconds)


RUNTIME = Runtime()


@dataclass(frozen=True)
class Tuning:
    """Sizes and intervals of a worker. The defaults suit crawls.

    Attributes:
        requests_in_memory: undelivered requests in memory at most; further ones go to the disk.
        disk_batch: requests to read from the disk at once after an outage.
        spool_batch: requests to read at once from an earlier crawl's file.
        sync_bytes: bytes of requests in one sync at most.
        kept_leases: leases beside the running requests that a sync may leave if it takes further
            ones.
        dead_letter_batch: dead letters to read at once.
        prefetch: requests to lease ahead.
        reactor_seconds: seconds for which the worker may block the reactor at once.
        tick_seconds: seconds between two deliveries at most, even while the engine asks for nothing.
    """

    requests_in_memory: int = 5000
    disk_batch: int = 500
    spool_batch: int = 1000
    sync_bytes: int = 512 * 1024
    kept_leases: int = 150
    dead_letter_batch: int = 50
    prefetch: int = 8
    reactor_seconds: float = 0.03
    tick_seconds: float = 0.25


TUNING = Tuning()
