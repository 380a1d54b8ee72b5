"""All public methods and attributes of scrapy-redis's classes: whether an override in a user's subclass has an effect.

An `UNUSED` one has no effect, as in scrapy-redis. `docs/settings.md` tells users the same.
"""

from collections.abc import Callable
from inspect import getattr_static
from pathlib import Path
from typing import Any

from scrapy import Request, Spider
from scrapy_redis import pipelines, queue, spiders
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom import BloomRFPDupeFilter, BloomScheduler, RedisPipeline, RedisSpider

CALLED, REFUSED, UNUSED = "called", "refused", "without effect"
# Called, and then the spider pops its start URLs by itself, as a warning says.
ALONE = "called, without leases"
Fates = dict[str, tuple[str, str]]

# By part: what becomes of an override under BloomScheduler, and under scrapy-redis's Scheduler.
METHODS: dict[str, Fates] = {
    "dupefilter": {
        "__init__": (CALLED, CALLED),
        "from_spider": (REFUSED, CALLED),
        "from_crawler": (REFUSED, UNUSED),
        "from_settings": (REFUSED, UNUSED),
        "open": (REFUSED, UNUSED),
        "request_seen": (REFUSED, CALLED),
        "request_fingerprint": (CALLED, CALLED),
        "log": (CALLED, CALLED),
        "clear": (REFUSED, CALLED),
        "close": (REFUSED, UNUSED),
    },
    # A subclass of BloomScheduler; one of scrapy-redis's Scheduler runs none of this package's code.
    "scheduler": {
        "__init__": (CALLED, CALLED),
        "from_crawler": (CALLED, CALLED),
        "from_settings": (CALLED, CALLED),
        "open": (CALLED, CALLED),
        "enqueue_request": (CALLED, CALLED),
        "next_request": (CALLED, CALLED),
        "has_pending_requests": (CALLED, CALLED),
        "close": (CALLED, CALLED),
        "flush": (REFUSED, CALLED),
        "__len__": (REFUSED, CALLED),
    },
    "queue": {
        "__init__": (CALLED, CALLED),
        "_encode_request": (CALLED, CALLED),
        "_decode_request": (CALLED, CALLED),
        "push": (REFUSED, CALLED),
        "pop": (REFUSED, CALLED),
        "clear": (REFUSED, CALLED),
        "__len__": (REFUSED, CALLED),
    },
    "spider": {
        "from_crawler": (CALLED, CALLED),
        "setup_redis": (CALLED, CALLED),
        "spider_idle": (CALLED, CALLED),
        "schedule_next_requests": (CALLED, CALLED),
        "next_requests": (CALLED, CALLED),
        "make_request_from_data": (CALLED, CALLED),
        "pop_list_queue": (ALONE, CALLED),
        "pop_priority_queue": (ALONE, UNUSED),  # of a spider whose start URLs are a list
    },
    "pipeline": {
        "__init__": (CALLED, CALLED),
        "from_crawler": (CALLED, CALLED),
        "from_settings": (CALLED, CALLED),
        "process_item": (CALLED, CALLED),
        "_process_item": (CALLED, CALLED),
        "item_key": (CALLED, CALLED),
    },
}
# Only older versions of Scrapy call it.
OF_OLD_SCRAPY = {"start_requests"}
# Those that a subclass sets to other values, by their fate under BloomScheduler.
ATTRIBUTES: dict[str, dict[str, str]] = {
    "dupefilter": {"server": REFUSED, "key": REFUSED, "debug": CALLED, "logdupes": CALLED, "logger": CALLED},
    "scheduler": {
        "server": REFUSED,
        "persist": CALLED,
        "flush_on_start": CALLED,
        "queue_key": REFUSED,
        "queue_cls": CALLED,
        "df": REFUSED,
        "dupefilter_key": REFUSED,
        "dupefilter_cls": CALLED,
        "idle_before_close": UNUSED,  # nor do scrapy-redis's Scheduler and its PriorityQueue obey it
        "serializer": CALLED,
        "stats": CALLED,
    },
    "queue": {"server": REFUSED, "key": REFUSED, "spider": CALLED, "serializer": CALLED},
    "spider": {
        "server": CALLED,
        "redis_key": CALLED,
        "redis_batch_size": CALLED,
        "redis_encoding": CALLED,
        "max_idle_time": CALLED,
        "spider_idle_start_time": CALLED,
        "fetch_data": ALONE,
        "count_size": CALLED,
    },
    "pipeline": {"server": CALLED, "key": CALLED, "serialize": CALLED},
}
THEIRS: dict[str, type[Any]] = {
    "dupefilter": RFPDupeFilter,
    "scheduler": Scheduler,
    "queue": queue.PriorityQueue,
    "spider": spiders.RedisSpider,
    "pipeline": pipelines.RedisPipeline,
}
OURS: dict[str, type[Any]] = {
    "dupefilter": BloomRFPDupeFilter,
    "scheduler": BloomScheduler,
    "queue": queue.PriorityQueue,
    "spider": RedisSpider,
    "pipeline": RedisPipeline,
}


# Classes that note which of their methods were called, in the file `called` of the directory.

_noted: set[str] = set()


def _note(call: str) -> None:
    if call not in _noted:
        _noted.add(call)
        with Path("called").open("a") as file:
            file.write(f"{call}\n")


def _seen(self: Any, request: Request) -> bool:
    """As a user writes it: a dupefilter's request_seen must call the parent's, or use the filter."""
    _note("dupefilter.request_seen")
    return bool(BloomRFPDupeFilter.request_seen(self, request))


async def _processed(self: Any, item: Any, spider: Spider | None = None) -> Any:
    """As newer versions of Scrapy require it."""
    _note("pipeline.process_item")
    return await RedisPipeline.process_item(self, item, spider)


def _idle(self: Any) -> None:
    """Without parameters, since the signal passes as many as there are."""
    _note("spider.spider_idle")
    RedisSpider.spider_idle(self)


def _next(self: Any) -> Any:
    """With the parent's name in it: a `next_requests` that pops is left alone."""
    _note("spider.next_requests")
    return RedisSpider.next_requests(self)


_WRITTEN: dict[str, Callable[..., Any]] = {
    "dupefilter.request_seen": _seen,
    "pipeline.process_item": _processed,
    "spider.spider_idle": _idle,
    "spider.next_requests": _next,
}


def noting(part: str, place: int) -> type[Any]:
    """Return a subclass that notes the calls of all methods that the scheduler at this place of a fate allows."""
    base = OURS[part]

    def noted(name: str) -> Any:
        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            _note(f"{part}.{name}")
            return getattr(super(kind, self), name)(*arguments, **options)

        method = _WRITTEN.get(f"{part}.{name}", call)
        return classmethod(method) if isinstance(getattr_static(base, name), classmethod) else method

    allowed = [name for name, fates in METHODS[part].items() if fates[place] in (CALLED, UNUSED)]
    kind = type(f"Noting{base.__name__}", (base,), {name: noted(name) for name in allowed})
    return kind


OurScheduler = noting("scheduler", 0)
OurQueue = noting("queue", 0)
OurDupeFilter, TheirDupeFilter = noting("dupefilter", 0), noting("dupefilter", 1)
OurSpider, TheirSpider = noting("spider", 0), noting("spider", 1)
Pipeline = noting("pipeline", 0)
