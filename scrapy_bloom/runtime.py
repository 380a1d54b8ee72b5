"""Clocks, timers, threads and randomness of this process; tests inject others."""

import asyncio
import os
import random
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from twisted.internet import task, threads

T = TypeVar("T")


class Runtime:
    """The clocks, timers, threads and randomness of this process."""

    unix_time = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    uniform = staticmethod(random.uniform)
    token_hex = staticmethod(secrets.token_hex)
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

    def at_once(self, most: int) -> Callable[[Callable[[Any], T], Iterable[Any]], Iterable[T]]:
        """Return a `map` that makes its calls at once, at most so many, in threads.

        At exit Python waits for them. A beat may hang then, but not for longer than the worker's last call, which
        begins later and has the same timeout. The threads end with the `map`.
        """
        return map if most == 1 else ThreadPoolExecutor(most).map

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

    async def in_thread(self, call: Callable[[], T]) -> T:
        """Return the result of a blocking call, without blocking the reactor."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # another reactor than Scrapy's default
            return await threads.deferToThread(call)
        return await loop.run_in_executor(None, call)


RUNTIME = Runtime()
