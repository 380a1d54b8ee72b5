"""The bytes of requests in a queue: what cannot be one of both is told of."""

import logging
import operator
from typing import Protocol

from scrapy import Request, Spider

from scrapy_bloom._scrapy import engine
from scrapy_bloom.monitoring.notifier import RequestNotifier
from scrapy_bloom.monitoring.stats import DEAD_LETTERS, UNSERIALIZABLE
from scrapy_bloom.queue.entries import QueueEntry
from scrapy_bloom.queue.request_queue import RequestQueue

logger = logging.getLogger(__name__)

# Unreadable requests whose errors are logged in full.
_TRACEBACKS = 3


class Serializing(Protocol):
    """A queue of scrapy-redis, which serialises requests with SCHEDULER_SERIALIZER."""

    spider: Spider

    def _encode_request(self, request: Request) -> str | bytes: ...

    def _decode_request(self, encoded_request: str | bytes) -> Request: ...


class RequestCodec:
    """Serialises requests as the scrapy-redis queue of this crawl does, and reads them again."""

    def __init__(self, queue: Serializing, requests: RequestQueue, notifier: RequestNotifier) -> None:
        self._queue = queue
        self._requests = requests
        self._notifier = notifier
        self._unreadable: set[bytes] = set()

    def encode(self, request: Request) -> bytes | None:
        """Return what the queue has of a request, or None: it cannot be serialised.

        The priority becomes an int: Scrapy lets an attribute be anything, and refuses it when the request is read.
        """
        try:
            request.priority = operator.index(request.priority)
            return self._requests.encode(self._queue._encode_request(request))
        except Exception as error:  # whatever the serialiser makes of it
            logger.error("%s cannot be serialised and is not crawled: %s", request, _why_not(request, error))
            self._notifier.count(UNSERIALIZABLE)
            return None

    def decode(self, entry: QueueEntry) -> Request | None:
        """Return the request that was serialised, or None: this worker cannot read it."""
        try:
            return self._queue._decode_request(self._requests.decode(entry.member))
        except Exception as error:  # whatever the serialiser or the spider makes of it
            self._unreadable.add(entry.member)
            self._notifier.count(DEAD_LETTERS)
            logger.error(
                "A request of the queue %r cannot be read; it is left for another worker: %s",
                self._requests.keys.queue,
                _cause_of(error, self._queue.spider),
                exc_info=len(self._unreadable) <= _TRACEBACKS,
            )
            return None

    def name(self, entry: QueueEntry) -> str:
        """Return the request of an entry for the log, as Scrapy shows it."""
        try:
            return str(self._queue._decode_request(self._requests.decode(entry.member)))
        except Exception as error:  # the request may be that of other code
            return f"A request that cannot be read ({type(error).__name__})"

    def can_read(self, entry: QueueEntry) -> bool:
        """Return whether this worker can read a request that another one could not."""
        return entry.member not in self._unreadable and self.decode(entry) is not None


def _why_not(request: Request, error: Exception) -> str:
    """Return why a request cannot be serialised, and what to do."""
    if not isinstance(request.priority, int):
        return f"priority = {request.priority!r}: must be a whole number; set an int"
    return (
        f"{type(error).__name__}: {error}. Its callback must be a method of the spider, and all in it what "
        "SCHEDULER_SERIALIZER can serialise"
    )


def _cause_of(error: Exception, spider: Spider) -> str:
    """Return why a request cannot be read; the text of an error may have anything of the request."""
    callback = engine.missing_callback(error)
    if callback is None:
        return type(error).__name__
    return (
        f"the spider {spider.name!r} has no method {callback!r}. Another spider has queued it, or this one with other "
        "code. SCHEDULER_QUEUE_KEY must give a key of this spider alone: where several have it, set one with "
        "%(spider)s in it"
    )
