"""The functions and files of the package that one new check and one whole request run.

The whole request is enqueued, taken and acknowledged by BloomScheduler. A comprehension is part of its function.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from scrapy import Request

import scrapy_bloom
from benchmarks.harness import report
from benchmarks.harness.plots import Plot
from benchmarks.subjects.queued import scheduling
from devtools.servers import Server, running
from scrapy_bloom import BloomFilter

PACKAGE = Path(scrapy_bloom.__file__).parent
MOST = {"new check": (20, 5), "whole request": (40, 8)}

Functions = dict[str, set[str]]


def run(_: Sequence[Path]) -> list[Plot]:
    """Print the counts by file."""
    with running("valkey") as server:
        found = {"new check": new_check(server), "whole request": whole_request(server)}
    for name, by_file in found.items():
        rows = [(file, str(len(names))) for file, names in sorted(by_file.items())]
        report.table(f"One {name}.", ("file", "functions"), rows)
        functions, files = MOST[name]
        report.target(f"functions of one {name}", sum(map(len, by_file.values())), functions)
        report.target(f"files of one {name}", len(by_file), files)
    return []


@contextmanager
def recording() -> Iterator[Functions]:
    """Collect the package's functions that run in the block, by file."""
    functions: Functions = {}

    def record(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE) and not code.co_name.startswith("<"):
            functions.setdefault(str(path.relative_to(PACKAGE)), set()).add(code.co_qualname)

    sys.setprofile(record)
    try:
        yield functions
    finally:
        sys.setprofile(None)


def new_check(server: Server) -> Functions:
    """Add a new item to an open filter."""
    with server.client() as client:
        bloom = BloomFilter(client, "path:filter")
        bloom.add_many([f"warm up {number}" for number in range(100)])
        with recording() as functions:
            bloom.add("a new item")
    return functions


def whole_request(server: Server) -> Functions:
    """Enqueue a request, take it, and acknowledge it."""
    with scheduling(server.url) as scheduler:
        # Without an engine a request is finished as soon as it was taken: the next call acknowledges it.
        for number in range(100):
            scheduler.enqueue_request(Request(f"https://example.com/{number}"))
        while scheduler.next_request():
            pass
        with recording() as functions:
            scheduler.enqueue_request(Request("https://example.com/"))
            scheduler.next_request()
            scheduler.next_request()
    return functions
