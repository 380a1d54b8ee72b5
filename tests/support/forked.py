"""Processes of `scrapy`, forked from a `template_process`."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from devtools.crawl_process import LIMIT, ROOT, Process, start_python
from tests.support.sockets import lasting
from tests.support.template_process import LENGTH, SCRAPY, STATUS

_POLL_SECONDS = 0.1


class Forked:
    """A process that the template has forked, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, arguments: Sequence[str], status: socket.socket) -> None:
        self.args = arguments
        self.returncode: int | None = None
        self._status = status
        self._lock = threading.Lock()
        self.pid = self._read()

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with self._lock:
            if self.returncode is None and select.select([self._status], [], [], 0)[0]:
                self.returncode = self._read()
                self._status.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code."""
        end = time.monotonic() + (LIMIT if timeout is None else timeout)
        while (code := self.poll()) is None:
            left = end - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or LIMIT)
            self._sleep(min(left, _POLL_SECONDS))
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        """Ask the process to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process as a crash would."""
        self.send_signal(signal.SIGKILL)

    def _sleep(self, seconds: float) -> None:
        """Sleep until the process ends, at most for so long; another thread may have read its exit code."""
        try:
            select.select([self._status], [], [], seconds)
        except (OSError, ValueError):
            return

    def _read(self) -> int:
        data = b""
        while len(data) < STATUS.size:
            part = self._status.recv(STATUS.size - len(data))
            if not part:
                raise RuntimeError(f"the template process forked nothing: {self.args}")
            data += part
        return int(STATUS.unpack(data)[0])


def start(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]
) -> Process:
    """Start `scrapy` with these arguments.

    If coverage is measured, it runs in a new process, which measures itself.
    """
    if "COVERAGE_PROCESS_CONFIG" in os.environ:
        return start_python(["-m", SCRAPY, *arguments], directory, environment, out, err)
    job = {"arguments": list(arguments), "directory": f"{directory}", "environment": dict(environment)}
    body = json.dumps(job).encode()
    mine, its = socket.socketpair()
    with its:
        control = _template()
        socket.send_fds(control, [LENGTH.pack(len(body))], [out.fileno(), err.fileno(), its.fileno()])
        control.sendall(body)
    return Forked([SCRAPY, *arguments], mine)


def run(
    arguments: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run `scrapy` with these arguments to its end, and return its output."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(arguments, directory, environment, out, err)
        try:
            code = process.wait(LIMIT)
        finally:
            process.kill()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess([SCRAPY, *arguments], code, *texts)


@cache
def _template() -> socket.socket:
    """Return the control socket of a template process, which ends when this process does."""
    with lasting():
        mine, its = socket.socketpair()
    path = os.pathsep.join([f"{ROOT}", *filter(None, [os.environ.get("PYTHONPATH")])])
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.template_process", str(its.fileno())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
        )
    atexit.register(_end, process, mine)
    return mine


def _end(process: "subprocess.Popen[bytes]", control: socket.socket) -> None:
    process.terminate()
    process.wait()
    control.close()
