"""Crawls that something happens to: sites of pages that are linked once, moments in a crawl, and what was fetched.

The crawling processes load this file for `Ledger`, so that it imports nothing that they would have to wait for.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from tests.support.sites import Site, serving

if TYPE_CHECKING:
    import pytest

Links = Mapping[str, Sequence[str]]
Action = Callable[[str], object]

FANOUT = 3
# How long is waited for what must happen; only a machine that hangs comes near it.
LIMIT = 60.0
_POLL_SECONDS = 0.01


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, and fail when it does not come true."""
    end = time.monotonic() + LIMIT
    never = threading.Event()
    while not condition():
        assert time.monotonic() < end
        never.wait(_POLL_SECONDS)


def tell(capsys: "pytest.CaptureFixture[str]", line: str) -> None:
    """Show a line, which pytest-xdist passes on by stderr alone."""
    with capsys.disabled():
        print(f"\n{line}", file=sys.stderr)


def chain(pages: int) -> Links:
    """Each page links to the next: whatever is lost ends the crawl."""
    return {_path(page): [_path(page + 1)] if page + 1 < pages else [] for page in range(pages)}


def tree(pages: int) -> Links:
    """Each page links to three others that nothing else links to: whatever is lost is a hole."""
    return {
        _path(page): [_path(child) for child in range(FANOUT * page + 1, min(FANOUT * page + 4, pages))]
        for page in range(pages)
    }


def _path(page: int) -> str:
    return f"/page/{page}" if page else "/"


class Moments:
    """What happens in a crawl when so many pages have been asked for, and how slow each page is.

    `when(number, action)` calls the action with the name of the worker that asks, before it is answered. Actions come
    one at a time, and an error in one is raised at the end by `check`.
    """

    def __init__(self, delay: float) -> None:
        self.asked = 0
        self._delay = delay
        self._actions: list[tuple[int, Action]] = []
        self._errors: list[Exception] = []
        self._lock = threading.Lock()
        self._never = threading.Event()

    def when(self, number: int, action: Action) -> None:
        """Do something at the moment when a page is asked for as the one with this number, or as soon after."""
        self._actions.append((number, action))

    def __call__(self, worker: str) -> None:
        """A page is asked for."""
        with self._lock:
            self.asked += 1
            due = [action for number, action in self._actions if number <= self.asked]
            self._actions = [(number, action) for number, action in self._actions if number > self.asked]
            for action in due:
                self._act(action, worker)
        self._never.wait(self._delay)

    def _act(self, action: Action, worker: str) -> None:
        try:
            action(worker)
        except Exception as error:  # `check` raises it
            self._errors.append(error)

    def check(self) -> None:
        """Everything has happened, and went well."""
        assert self._actions == []
        for error in self._errors:
            raise error


@contextmanager
def serving_once(links: Links, delay: float) -> Iterator[tuple[Site, Moments]]:
    """A site of these pages, each a little slow, and its moments."""
    with serving(0) as site:
        site.links = links
        site.before = moments = Moments(delay)
        yield site, moments


class _Response(Protocol):
    url: str


class Ledger:
    """A spider middleware: writes down each page that its spider gets, at once, so that it outlives a killed worker."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @classmethod
    def from_crawler(cls, crawler: Any) -> Self:
        return cls(crawler.settings["LEDGER"])

    def process_spider_input(self, response: _Response, **_: object) -> None:
        os.write(self._file, f"{response.url}\n".encode())


def ledger_settings(path: Path) -> dict[str, object]:
    """The settings of a crawl that writes a ledger."""
    return {"SPIDER_MIDDLEWARES": json.dumps({f"{Ledger.__module__}.{Ledger.__qualname__}": 1}), "LEDGER": path}


def read_ledger(path: Path, site: Site) -> list[str]:
    """The paths of the pages that spiders got, of all workers, as often as they did."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.removeprefix(site.url) or "/" for line in lines]
