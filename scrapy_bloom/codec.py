"""Serialize requests for the queue and read them back; failures are logged."""

import importlib
import operator
import sys
from collections.abc import Callable
from typing import Any
from zlib import crc32

from scrapy import Request
from scrapy.settings import BaseSettings
from scrapy.utils.request import request_from_dict
from scrapy_redis.queue import FifoQueue, LifoQueue

from scrapy_bloom import engine
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.queue.keys import QueueKeys
from scrapy_bloom.queue.messages import Offer
from scrapy_bloom.settings import PICKLE, SERIALIZER, is_a
from scrapy_bloom.text import as_bytes, get_logger

logger = get_logger(__name__)

# Unreadable requests that are logged with a traceback.
_MAX_TRACEBACKS = 3
# Callbacks that are named in a warning of unserializable requests.
_MAX_CALLBACKS = 10
# Redis stores scores as floats; the lowest one is that of start data.
_MAX_SCORE = sys.float_info.max
# The minutes of an arrival, after which they begin again: two years. The turns of a host in one.
_MINUTES, _TURNS, _DIGITS = 2**20, 4096, 10**12
# Requests of both serializers are known by their first byte, and so is JSON. In MessagePack it is that of a dict.
_FIRST_BYTES = {
    b"\x80": PICKLE,
    b"{": "",
    b"\xde": SERIALIZER,
    **{bytes([0x80 + size]): SERIALIZER for size in range(1, 16)},
}


def require_serializer(settings: BaseSettings) -> None:
    """Serialize one request and read it back, since a broken SCHEDULER_SERIALIZER would drop all requests.

    Raises:
        ConfigError: the module cannot be imported, or does not return the request.
    """
    serializer = settings.get("SCHEDULER_SERIALIZER")
    if not serializer:
        return
    try:
        module = importlib.import_module(serializer) if isinstance(serializer, str) else serializer
        request = Request("https://example.com/", headers={"Accept": "text/html"}, body=b"body")
        stored = module.dumps(request.to_dict())
        if not isinstance(stored, (str, bytes)):
            raise TypeError(f"`dumps` returns {type(stored).__name__}, neither bytes nor str")
        restored = request_from_dict(module.loads(as_bytes(stored)))
        if restored.url != request.url:
            raise ValueError(f"`loads` returns a request of {restored.url!r} for one of {request.url!r}")
    except Exception as error:  # any error of the user's module
        raise ConfigError(
            f"SCHEDULER_SERIALIZER = {serializer!r}: cannot store a request and read it again ({type(error).__name__}: "
            f"{error}); set the full path of a module with `dumps` and `loads`, as in {SERIALIZER!r}"
        ) from error


def misread(member: bytes, serializer: Any) -> str | None:
    """Return the SCHEDULER_SERIALIZER that wrote a request if another one is set, which cannot read it.

    Args:
        member: the stored request. It is not unpickled, unless `serializer` does.
        serializer: the module of the setting.

    Returns:
        Its path, or "" of one that writes JSON; None if the request can be read, or has no known form.
    """
    name, writer = getattr(serializer, "__name__", None), _FIRST_BYTES.get(member[:1])
    if writer in (None, name) or name in _FIRST_BYTES.values():
        return None if writer == name else writer
    try:
        serializer.loads(member)
    except Exception:  # any error of the user's module
        return writer
    return None


def order_of(queue: Any) -> str:
    """Return the order that a queue class of scrapy-redis names, `fifo` or `lifo`, or nothing for priorities."""
    names = {FifoQueue: "fifo", LifoQueue: "lifo"}
    return next((name for base, name in names.items() if is_a(queue, base)), "")


class RequestCodec:
    """Serializes requests with SCHEDULER_SERIALIZER, as a queue of scrapy-redis does.

    Args:
        queue: the queue of scrapy-redis.
        keys: the keys of the queue, for log lines.
        note_unreadable: called for each request that cannot be read.
        unix_time: the clock.
    """

    def __init__(
        self,
        queue: Any,
        keys: QueueKeys,
        note_unreadable: Callable[[], object],
        unix_time: Callable[[], float],
    ) -> None:
        self._queue = queue
        self._keys = keys
        self._note_unreadable = note_unreadable
        self._failures = self._local = 0
        self._told: set[str] = set()
        self._readable: set[tuple[type[Request], object]] = set()
        self._unix_time = unix_time
        self._minute, self._of_host = 0.0, dict[str, int]()
        self._order = {"fifo": 1, "lifo": -1}.get(order_of(type(queue)), 0)

    def encode(self, request: Request, fingerprint: bytes | None) -> Offer:
        """Return a request to offer. An unserializable one is for this process alone, with a warning.

        Args:
            request: its priority becomes an int. Scrapy accepts any attribute, and fails when the request is read.
            fingerprint: for the filter, or None for a request that bypasses the filter.
        """
        try:
            request.priority = operator.index(request.priority)
            member, local = as_bytes(self._queue._encode_request(request)), None
            # Once each: a constructor may need more than Scrapy stores, and a callback may be that of another spider.
            kind = type(request), getattr(request.callback, "__func__", None)
            if kind not in self._readable:
                self.read(member)
                self._readable.add(kind)
        except Exception as error:  # any error of the serializer
            self._warn(request, error)
            self._local += 1
            member, local = b"local %d" % self._local, request
        return Offer(self._score(request, member), member, fingerprint, local)

    def _score(self, request: Request, member: bytes) -> float:
        """Return the score of a request, of which the lowest goes first.

        Below 1 it is the minute of its arrival, so that none waits behind later ones for long. Within a minute hosts
        take turns, since most links of a page are of its own host: first the first request of each, then the second
        ones, and equals by a hash. Who chose FifoQueue or LifoQueue gets arrival alone, up or down.
        """
        now = self._unix_time()
        if self._order:
            return self._order * now
        if (minute := now // 60 % _MINUTES) != self._minute:
            self._minute, self._of_host = minute, {}
        host = request.url.partition("//")[2].partition("/")[0]
        turn = self._of_host[host] = self._of_host.get(host, 0) + 1
        within = (min(turn, _TURNS - 1) + crc32(member) / 2**32) / _TURNS
        # With twelve digits: a score is a text on its way.
        arrival = int((minute + within) * (_DIGITS / _MINUTES)) / _DIGITS
        try:
            return float(max(min(-request.priority, _MAX_SCORE), -_MAX_SCORE)) + arrival
        except Exception:  # any error of a priority that is no number
            return arrival

    def _warn(self, request: Request, error: Exception) -> None:
        callback = getattr(request.callback, "func", request.callback)  # of a partial
        name = "parse" if callback is None else getattr(callback, "__qualname__", type(callback).__name__)
        if name in self._told or len(self._told) == _MAX_CALLBACKS:
            return
        self._told.add(name)
        logger.warning(
            "%s cannot be serialized: %s: %s. Only this process can crawl it; if it ends before, the request is lost. "
            "To share it, use a method of the spider as the callback, an int as the priority, and values that "
            "SCHEDULER_SERIALIZER can serialize. Further requests of the callback %s are counted in "
            "scheduler/unserializable",
            request,
            type(error).__name__,
            error,
            name,
        )

    def read(self, member: bytes) -> Request:
        """Return a serialized request; raises any error of the serializer or the spider."""
        request: Request = self._queue._decode_request(member)
        return request

    def decode(self, member: bytes) -> Request | None:
        """Return a serialized request, or None if this worker cannot read it, which is logged and counted."""
        try:
            return self.read(member)
        except Exception as error:  # any error of the serializer or the spider
            self._failures += 1
            self._note_unreadable()
            # Without the error's text, which may cite any part of the request.
            cause = type(error).__name__
            if callback := engine.missing_callback(error):
                cause = (
                    f"the spider {self._queue.spider.name!r} has no method {callback!r}: another spider has queued the "
                    "request, or another version of this one. SCHEDULER_QUEUE_KEY must name a key of this spider "
                    "alone; set one with %(spider)s in it"
                )
            logger.error(
                "A request of the queue %r cannot be read, and is kept as a dead letter: %s",
                self._keys.queue,
                cause,
                exc_info=self._failures <= _MAX_TRACEBACKS,
            )
            return None
