"""A process that imports Scrapy and forks processes to run it.

`tests.support.forked` starts it. The imports take a second of CPU, and the sizes of the usual filters a third of one,
which hundreds of crawls save. A fork has its own directory, environment, arguments, output and signals, and ends as any
Python process does.

A request on the control socket is the length of a JSON object, with three descriptors: standard output, standard error,
and a socket for the status. A guard process forks the requested process, sends its id and then its exit code on that
socket, and reaps it when the other side has closed: until then no other process has the id.
"""

import gc
import importlib
import importlib.metadata
import json
import os
import pkgutil
import runpy
import signal
import socket
import struct
import sys
import time
import warnings
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from scrapy_redis.spiders import RedisMixin

from scrapy_bloom.filter.parameters import FilterParameters

LENGTH = struct.Struct("!I")
STATUS = struct.Struct("!i")
DESCRIPTORS = 3

SCRAPY = "scrapy"

# Modules of every crawl. None may install a reactor.
_PRELOADED = (
    "asyncio",
    "redis.asyncio",
    "redis.cluster",
    "redis.sentinel",
    "scrapy.cmdline",
    "scrapy.core.downloader.contextfactory",
    "scrapy.core.downloader.handlers.http11",
    "scrapy.core.engine",
    "scrapy.pqueues",
    "scrapy.squeues",
    "scrapy_bloom.addon",
)
_PRELOADED_PACKAGES = (
    "scrapy.commands",
    "scrapy.downloadermiddlewares",
    "scrapy.extensions",
    "scrapy.spidermiddlewares",
)
# The capacities and error rates of most crawls. The search for the sizes of their layers takes as long as the rest of a
# start. The sizes are cached, and so are the steps of the search, by the error rate of a layer.
_FILTERS = ((1, 1e-6), (1_000, 1e-12))
# Between two questions of the engine whether an idle spider is to end. Scrapy's own are five, and hundreds of crawls
# would wait for the next one.
_IDLE_SECONDS = 0.5


def main() -> None:
    """Fork until the other side of the control socket closes; in a fork, run Scrapy."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then close the socket
    (control_descriptor,) = sys.argv[1:]
    _preload_scrapy()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the guards are not waited for
    control = socket.socket(fileno=int(control_descriptor))
    while (request := _next_request(control)) is not None:
        job, descriptors = request
        if os.fork() == 0:
            control.close()
            if _guard(descriptors[-1]):
                _become(job, descriptors)
                RedisMixin.spider_idle_start_time = int(time.time())  # scrapy-redis's time of import
                runpy.run_module(SCRAPY, run_name="__main__", alter_sys=True)
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _preload_scrapy() -> None:
    with warnings.catch_warnings(action="ignore"):  # a crawl warns of the deprecated parts that it uses
        for name in _PRELOADED:
            importlib.import_module(name)
        for name in _PRELOADED_PACKAGES:
            for found in pkgutil.iter_modules(importlib.import_module(name).__path__):
                importlib.import_module(f"{name}.{found.name}")
        for command in entry_points(group="scrapy.commands"):  # ours, and those of plugins
            command.load()
    # redis-py reads the version of its package for each connection.
    importlib.metadata.version = cache(importlib.metadata.version)
    importlib.metadata.version("redis")
    for capacity, error_rate in _FILTERS:
        FilterParameters(capacity, error_rate).sizes()
    importlib.import_module("scrapy.core.engine").ExecutionEngine._SLOT_HEARTBEAT_INTERVAL = _IDLE_SECONDS
    if "twisted.internet.reactor" in sys.modules:
        raise RuntimeError("a reactor must not be installed before the fork")


def _next_request(control: socket.socket) -> tuple[Any, list[int]] | None:
    header, descriptors, _, _ = socket.recv_fds(control, LENGTH.size, DESCRIPTORS)
    if not header:
        return None
    (length,) = LENGTH.unpack(header)
    body = b""
    while len(body) < length:
        body += control.recv(length - len(body))
    return json.loads(body), descriptors


def _guard(descriptor: int) -> bool:
    """Fork the requested process, and return True in it.

    The guard itself exits when it has reaped that process.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        return True
    with socket.socket(fileno=descriptor) as status:
        status.sendall(STATUS.pack(child))
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        exited = ended.si_code == os.CLD_EXITED
        status.sendall(STATUS.pack(ended.si_status if exited else -ended.si_status))
        status.recv(1)
    os._exit(0)


def _become(job: Any, descriptors: list[int]) -> None:
    """Take over all attributes in which a new process would differ from this one."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for place, descriptor in enumerate(descriptors[:2], start=1):
        os.dup2(descriptor, place)
    for descriptor in descriptors:
        os.close(descriptor)
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.chdir(job["directory"])
    os.environ.clear()
    os.environ.update(job["environment"])
    added = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [str(Path.cwd()), *added, *(path for path in sys.path[1:] if path not in before)]
    sys.argv[1:] = job["arguments"]


if __name__ == "__main__":
    main()
