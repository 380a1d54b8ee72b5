"""Serialize requests for the queue and read them back; failures are logged and counted."""

import contextlib
import logging
import operator
import sys
from collections.abc import Callable
from typing import Any

from scrapy import Request, Spider
from scrapy.utils.request import request_from_dict

from scrapy_bloom._scrapy import engine
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.monitoring.stats import DEAD_LETTERS, UNSERIALIZABLE, RequestNotifier
from scrapy_bloom.queue.entries import OutboxEntry, QueueEntry
from scrapy_bloom.queue.operations import RequestQueue

logger = logging.getLogger(__name__)

# Unreadable requests that are logged with a traceback.
_MAX_TRACEBACKS = 3
# Redis stores scores as floats.
_MAX_SCORE = sys.float_info.max


class RequestCodec:
    """Serializes requests with SCHEDULER_SERIALIZER, as `queue`, a queue of scrapy-redis, does."""

    def __init__(
        self,
        queue: Any,
        requests: RequestQueue,
        notifier: RequestNotifier,
        note_failed: Callable[[Request], object] | None = None,
    ) -> None:
        self._queue = queue
        self._requests = requests
        self._notifier = notifier
        self._note_failed = note_failed
        self._unreadable: set[bytes] = set()

    def encode(self, request: Request, fingerprint: bytes | None, *, is_unsure: bool = False) -> OutboxEntry | None:
        """Return a request's entry for the outbox, or None if it cannot be serialized.

        Args:
            request: its priority becomes an int. Scrapy accepts any attribute, and fails when the request is read.
            fingerprint: for the filter, or None for a request that bypasses the filter.
            is_unsure: the request is new even if the filter knows it.
        """
        try:
            request.priority = operator.index(request.priority)
            member = self._requests.encode(self._queue._encode_request(request))
        except Exception as error:  # any error of the serializer
            logger.error("%s cannot be serialized and is not crawled: %s", request, _why_not(request, error))
            self._notifier.count(UNSERIALIZABLE)
            return None
        # The lowest score goes first.
        score = max(min(-request.priority, _MAX_SCORE), -_MAX_SCORE)
        return OutboxEntry(member, score, fingerprint, is_unsure, request)

    def decode(self, entry: QueueEntry) -> Request | None:
        """Return the request of an entry, or None if this worker cannot read it."""
        try:
            request: Request = self._queue._decode_request(self._requests.decode(entry.member))
            return request
        except Exception as error:  # any error of the serializer or the spider
            self._unreadable.add(entry.member)
            self._notifier.count(DEAD_LETTERS)
            logger.error(
                "A request of the queue %r cannot be read; it is left for another worker: %s",
                self._requests.keys.queue,
                _cause_of(error, self._queue.spider),
                exc_info=len(self._unreadable) <= _MAX_TRACEBACKS,
            )
            return None

    def can_read(self, entry: QueueEntry) -> bool:
        """Return whether this worker can read a dead letter of another worker."""
        return entry.member not in self._unreadable and self.decode(entry) is not None

    def note_dead_letter(self, entry: QueueEntry) -> None:
        """Note a dead letter as failed, unless the serializer cannot read it: its fingerprint is unknown then."""
        if self._note_failed is not None:
            with contextlib.suppress(Exception):  # any error of the serializer
                stored = self._queue.serializer.loads(self._requests.decode(entry.member))
                # The spider may lack the callback.
                self._note_failed(request_from_dict({**stored, "callback": None, "errback": None}))

    def report_buried(self, entry: QueueEntry, deaths: int) -> None:
        """Log and count a request that became a dead letter after the deaths of its workers."""
        try:
            name = str(self._queue._decode_request(self._requests.decode(entry.member)))
        except Exception as error:  # the request may be from other code
            name = f"A request that cannot be read ({type(error).__name__})"
        self._notifier.count(DEAD_LETTERS)
        self.note_dead_letter(entry)
        logger.error(
            "%s: %d workers died while they ran it (BLOOMFILTER_MAX_DELIVERIES); it is not crawled, and is kept at "
            "the key %r. `scrapy bloom requeue` queues it again",
            name,
            deaths,
            self._requests.keys.dead_letters,
        )


def require_readable(queue: Any, requests: RequestQueue) -> None:
    """Read one serialized request as the client would return it: a client that decodes replies returns text.

    Args:
        queue: a queue of scrapy-redis, with the serializer.
        requests: the queue's requests, with the client.

    Raises:
        ConfigError: the client decodes replies, and the serializer cannot read the text.
    """
    stored = requests.encode(queue._encode_request(Request("https://example.com/")))
    try:
        read = requests.decode(stored)
        if isinstance(read, str):
            queue._decode_request(read)
    except Exception as error:  # any error of the serializer
        raise ConfigError(
            "REDIS_DECODE_RESPONSES = True: the client returns requests as text, which the serializer cannot read "
            f"({type(error).__name__}). Set it to False (decode_responses in REDIS_PARAMS), or set "
            "SCHEDULER_SERIALIZER = 'scrapy_bloom.serializers.json'"
        ) from None


def _why_not(request: Request, error: Exception) -> str:
    """Return why a request cannot be serialized, and the action to take."""
    if not isinstance(request.priority, int):
        return f"priority = {request.priority!r}: must be a whole number; set an int"
    return (
        f"{type(error).__name__}: {error}. Its callback must be a method of the spider, and SCHEDULER_SERIALIZER must "
        "be able to serialize all of its values"
    )


def _cause_of(error: Exception, spider: Spider) -> str:
    """Return why a request cannot be read, without the error's text, which may cite any part of the request."""
    callback = engine.missing_callback(error)
    if callback is None:
        return type(error).__name__
    return (
        f"the spider {spider.name!r} has no method {callback!r}: another spider has queued the request, or another "
        "version of this one. SCHEDULER_QUEUE_KEY must name a key of this spider alone; set one with %(spider)s in it"
    )
