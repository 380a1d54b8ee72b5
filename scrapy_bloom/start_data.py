"""Start data of scrapy-redis's spiders as entries of the queue: a worker that dies loses none.

A sync that finds nothing to take pops start data into the worker's leases, as members of `start_entry` in `queue.lua`.
The spider's own `next_requests` makes requests of one datum at a time, and the entry is acknowledged behind these.
"""

from collections.abc import Iterable, Iterator
from itertools import takewhile
from types import FunctionType
from typing import Any

from scrapy import Request, Spider
from scrapy.settings import BaseSettings
from scrapy_redis import defaults
from scrapy_redis.spiders import RedisMixin

from scrapy_bloom.queue.keys import key_of
from scrapy_bloom.runtime import RUNTIME, Runtime

_BEGINNING = b"\0start "


def is_start(member: bytes) -> bool:
    """Return whether a member of the queue is a start datum."""
    return member.startswith(_BEGINNING)


def data_of(member: bytes) -> tuple[str, bytes]:
    r"""Return the key and the datum of an entry.

    Example:
        >>> data_of(b"\0start list worker,1,1,0 0 4 newshttps://example.com/")
        ('news', b'https://example.com/')
    """
    _, _, _, size, rest = member[len(_BEGINNING) :].split(b" ", 4)
    return rest[: int(size)].decode(), rest[int(size) :]


class StartData:
    """The start data of a spider. It replaces `fetch_data` and `count_size` of the spider, which would pop and ask.

    Args:
        spider: a spider with scrapy-redis's `RedisMixin`, connected, that does not pop by itself, see `why_it_pops`.
        runtime: the clock.

    Attributes:
        keys: the keys of its start data.
        kind: their type: list, set or zset.
        batch: data that it takes at once.
    """

    def __init__(self, spider: Any, runtime: Runtime = RUNTIME) -> None:
        given = spider.redis_key
        self.keys: list[str] = [*given] if isinstance(given, (list, tuple)) else [given]
        self.kind = _kind_of(spider) or "list"
        self.batch: int = spider.redis_batch_size
        self._spider = spider
        self._runtime = runtime
        self._datum: bytes | None = None
        self._key = ""
        self._fetch_foreign, spider.fetch_data = spider.fetch_data, self._fetch
        server, self._count_foreign = spider.server, spider.count_size
        if self._count_foreign in (server.llen, server.scard, server.zcard):
            spider.count_size = self._count

    def requests_of(self, member: bytes) -> Iterator[Request]:
        """Yield the requests that the spider makes of a datum.

        Raises:
            ValueError: the spider has not taken the datum, or has made something else of it; or scrapy-redis's own
                method has made nothing of it.
        """
        self._key, self._datum = data_of(member)
        self._spider.spider_idle_start_time = int(self._runtime.unix_time())
        number = 0
        try:
            for request in self._spider.next_requests() or ():
                if not isinstance(request, Request):
                    raise ValueError(f"next_requests yields a {type(request).__name__}, and no request")
                yield request
                number += 1
            if self._datum is not None:
                raise ValueError(f"next_requests does not take it by fetch_data({self._key!r}, …)")
        finally:  # scrapy-redis asks for start requests, too, when the spider is idle
            self._datum = None
        if not number and type(self._spider).make_request_from_data is RedisMixin.make_request_from_data:
            raise ValueError("it has no url")

    def _fetch(self, key: str, want: int) -> Iterable[bytes]:
        """Return the datum at hand, once; of a foreign key what the spider's own method returns."""
        if key not in self.keys:
            return self._fetch_foreign(key, want)  # type: ignore[no-any-return]  # the user's
        if key != self._key or self._datum is None:
            return []
        datum, self._datum = self._datum, None
        return [datum]

    def _count(self, key: str) -> int:
        return 0 if key in self.keys else self._count_foreign(key)


def start_key_of(settings: BaseSettings, spider: Any) -> str:
    """Return the key of the start data of a spider, or another object with its attributes.

    Raises:
        ConfigError: the key is invalid.
    """
    setting, key = "redis_key", spider.redis_key
    if key is None:
        setting = "REDIS_START_URLS_KEY"
        key = settings.get(setting) or defaults.START_URLS_KEY
    return key_of(setting, key, spider)


def why_it_pops(spider: Spider) -> str | None:
    """Return why a spider with `RedisMixin` pops its start data by itself, or None if it does not."""
    server: Any = getattr(spider, "server", None)
    if server is None:
        return "it has no connection by setup_redis"
    if bypasses_fetch_data(type(spider)):
        return "its next_requests does not call fetch_data"
    return None if _kind_of(spider) else "its fetch_data is its own"


def _kind_of(spider: Any) -> str | None:
    """Return the type of the keys that a spider pops: list, set or zset; None if it pops by a method of its own."""
    method = getattr(spider, "fetch_data", None)
    if method == spider.server.spop:
        return "set"
    kinds: dict[Any, str] = {RedisMixin.pop_list_queue: "list", RedisMixin.pop_priority_queue: "zset"}
    return kinds.get(getattr(method, "__func__", None))


def bypasses_fetch_data(kind: Any) -> bool:
    """Return whether a spider's class has its own `next_requests`, which calls `fetch_data` in no way."""
    if kind.next_requests is RedisMixin.next_requests:
        return False
    own = takewhile(lambda base: not base.__module__.startswith(("scrapy_bloom.", "scrapy_redis.")), kind.__mro__)
    methods = {name: each for base in own for name, each in vars(base).items() if isinstance(each, FunctionType)}
    # The names that it reads, and the methods among them, and so on.
    named, new = set[str](), {"next_requests"}
    while new:
        read = {name for each in new & methods.keys() for name in methods[each].__code__.co_names}
        named, new = named | read, read - named
    return named.isdisjoint(("fetch_data", "next_requests"))
