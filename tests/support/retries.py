"""Filters whose server fails: their creation and their log lines."""

import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from scrapy_bloom import BloomFilter
from tests.support.faults import FaultProxy
from tests.support.waiting import LIMIT

PASSWORD = "pa55-w0rd-of-the-test"  # noqa: S105  # of servers that live as long as a test
# Seconds that clients wait for a missing reply. If too short for a busy machine, it adds a stall.
STALL_TIMEOUT = 0.3


@contextmanager
def filter_at(port: int, key: str, **options: Any) -> Iterator[BloomFilter]:
    """A filter with its own client."""
    with redis.Redis("127.0.0.1", port, socket_timeout=options.pop("socket_timeout", LIMIT)) as client:
        yield BloomFilter(client, key, **{"capacity": 20_000, **options})


def said(caplog: pytest.LogCaptureFixture, part: str) -> list[str]:
    """Return the warnings that contain a part."""
    return [record.getMessage() for record in caplog.records if part in record.getMessage()]


def told(error: BaseException) -> str:
    """Return every text of an error that may be shown."""
    return "".join(traceback.format_exception(error)) + repr(error)


def by_url(proxy: FaultProxy) -> dict[str, object]:
    """The settings of a client by REDIS_URL."""
    return {"REDIS_URL": proxy.url}


def by_host(proxy: FaultProxy) -> dict[str, object]:
    """The settings of a client by REDIS_HOST."""
    return {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": proxy.port}


def by_params(proxy: FaultProxy, **params: object) -> dict[str, object]:
    """The settings of a client by REDIS_PARAMS alone."""
    return {"REDIS_PARAMS": {"host": "127.0.0.1", "port": proxy.port, **params}}


class Cue(logging.Handler):
    """Calls a function in a thread when a filter first logs that Redis is unreachable."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self._thread = threading.Thread(target=action)

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("Redis is unreachable") and self._thread.ident is None:
            self._thread.start()

    def join(self) -> None:
        self._thread.join()


@contextmanager
def when_away(action: Callable[[], object]) -> Iterator[None]:
    """Call a function as soon as a filter waits for Redis, which must happen in the block."""
    cue = Cue(action)
    logger = logging.getLogger("scrapy_bloom")
    logger.addHandler(cue)
    try:
        yield
    finally:
        logger.removeHandler(cue)
    cue.join()


def assert_waited_once(caplog: pytest.LogCaptureFixture, *parts: str) -> None:
    """Assert that one line reports Redis as unreachable, with the reason, and one its return."""
    (away,) = said(caplog, "Redis is unreachable")
    (_,) = said(caplog, "Redis is back")
    assert [part for part in parts if part not in away] == []


USES: dict[str, Callable[[BloomFilter], object]] = {
    "add": lambda bloom: bloom.add("a"),
    "add_many": lambda bloom: bloom.add_many(["a", "b"]),
    "contains": lambda bloom: "a" in bloom,
    "info": BloomFilter.info,
    "clear": BloomFilter.clear,
}
