"""Count the functions and files of the package that one new check and one whole request run.

`python -m devtools.path` starts a server, and prints both counts. `--names` lists the functions of each file.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

import scrapy_bloom
from devtools.servers import Server, available, running
from scrapy_bloom import BloomFilter, BloomScheduler

PACKAGE = Path(scrapy_bloom.__file__).parent

Functions = dict[str, set[str]]


@contextmanager
def recording() -> Iterator[Functions]:
    """Collect the package's functions that run in the block, by file.

    A comprehension is part of its function.
    """
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
    settings = {
        "REDIS_URL": server.url,
        "DUPEFILTER_CLASS": "scrapy_bloom.BloomRFPDupeFilter",
        "BLOOMFILTER_LEASE": 3600,
    }
    crawler = get_crawler(Spider, settings)
    crawler.spider = Spider.from_crawler(crawler, name="path")
    scheduler = BloomScheduler.from_crawler(crawler)
    scheduler.open(crawler.spider)

    def request(path: str) -> None:
        scheduler.enqueue_request(Request(f"https://example.com/{path}"))
        scheduler.next_request()
        # Without an engine a request is finished as soon as it was taken: this call acknowledges it.
        scheduler.next_request()

    try:
        request("first")
        with recording() as functions:
            request("second")
    finally:
        scheduler.close("finished")
    return functions


PATHS: dict[str, Callable[[Server], Functions]] = {"new check": new_check, "whole request": whole_request}


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description="Count the functions and files that one operation runs.")
    parser.add_argument("--names", action="store_true", help="list the functions of each file")
    options = parser.parse_args()
    with running(available()[0]) as server:
        for name, path in PATHS.items():
            functions = path(server)
            print(f"{name}: {sum(map(len, functions.values()))} functions in {len(functions)} files")
            if options.names:
                for file, names in sorted(functions.items()):
                    print(f"  {file}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
