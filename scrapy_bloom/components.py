"""The parts of a crawl that its settings name: which of them BloomScheduler can use, and what to do about the others.

An override that would have no effect is refused, and never ignored.
"""

from collections.abc import Mapping
from inspect import getattr_static
from typing import Any, cast

from scrapy.dupefilters import BaseDupeFilter
from scrapy.settings import BaseSettings, default_settings
from scrapy_redis import defaults
from scrapy_redis.queue import Base, FifoQueue, LifoQueue, PriorityQueue

from scrapy_bloom.dupefilter import BloomRFPDupeFilter
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.settings import is_a, load_component, load_setting
from scrapy_bloom.transport.connect import RedisSettings, require_usable

# The calls of a queue of scrapy-redis that one script of ours replaces.
CALLS = "push", "pop", "clear"
# Its classes, each for an order.
_QUEUES = PriorityQueue, FifoQueue, LifoQueue
_DUPEFILTER = "scrapy_bloom.BloomRFPDupeFilter"
# Overrides that would have no effect, and what to do instead.
_ATTRIBUTES = "where %(x)s is the attribute x of the spider"
_BY_SETTINGS = f"set SCHEDULER_DUPEFILTER_KEY, {_ATTRIBUTES}, and the BLOOMFILTER_ settings instead"
_BY_PERSIST = "set SCHEDULER_PERSIST = True to keep the filter"
OF_DUPEFILTERS = {
    "request_seen": "override request_fingerprint instead, which it calls",
    "from_spider": _BY_SETTINGS,
    "from_crawler": _BY_SETTINGS,
    "from_settings": _BY_SETTINGS,
    "open": "override __init__ instead, which it calls",
    "clear": _BY_PERSIST,
    "close": _BY_PERSIST,
}
_OF_QUEUES = {
    **dict.fromkeys(CALLS, "set the priority of requests in a spider middleware instead, or SCHEDULER_SERIALIZER"),
    "__len__": "read len(scheduler) instead",
}
OF_SCHEDULERS = {
    "flush": "set SCHEDULER_PERSIST = True to keep a crawl, or SCHEDULER_FLUSH_ON_START = True to delete it",
    "__len__": "override has_pending_requests instead",
}
# The options of a client that name its server, and their defaults.
_PLACE = {"host": "localhost", "port": 6379, "path": None, "db": 0}
# Settings of other schedulers, and what happens instead.
_IN_REDIS = "the requests are in the queue in Redis"
_BY_START = "each worker runs start() of its spider"
_LOGIN = "write the login into REDIS_URL or REDIS_PARAMS, since scrapy-redis does not read this setting either"
WITHOUT_EFFECT = {
    "SCHEDULER_PRIORITY_QUEUE": "workers take requests from the queue in Redis, by their priority",
    **dict.fromkeys(
        (f"SCHEDULER_{name}_QUEUE" for name in ("MEMORY", "DISK", "START_MEMORY", "START_DISK")), _IN_REDIS
    ),
    "JOBDIR": f"{_IN_REDIS}, and SCHEDULER_PERSIST = True keeps them; only spider.state is in JOBDIR",
    "SCHEDULER_DEBUG": "each request that cannot be serialized is logged in any case",
    "SCHEDULER_IDLE_BEFORE_CLOSE": "a worker ends when no worker holds requests any more; a RedisSpider waits "
    "for start URLs as MAX_IDLE_TIME_BEFORE_CLOSE says",
    "SCHEDULER_DUPEFILTER_CLASS": "set DUPEFILTER_CLASS, which scrapy-redis reads as well",
    "SCHEDULER_PRE_ENQUEUE_ALL_START_REQUESTS": _BY_START,
    "REDIS_START_URLS_AUTO_INSERT": _BY_START,
    **dict.fromkeys(("REDIS_PASSWORD", "REDIS_USER", "REDIS_USERNAME"), _LOGIN),
}


def without_effect(settings: BaseSettings) -> list[tuple[str, str]]:
    """Return the settings that BloomScheduler ignores, unless they have their defaults; each with what happens instead.

    Raises:
        ConfigError: REDIS_PARAMS is not a dict.
    """
    redis, found = RedisSettings(settings), []
    has_login = "@" in redis.url or "password" in redis.params
    for name, instead in WITHOUT_EFFECT.items():
        value = settings.get(name)
        is_login = instead == _LOGIN
        if str(value) not in ("", "None", str(getattr(default_settings, name, 0))) and not (is_login and has_login):
            found.append((name if is_login else f"{name} = {value!r}", instead))
    return found


def way_to(ours: str, setting: str, kind: Any) -> str:
    """Return how to use a class of ours in place of another one, which may choose keys if it is the project's own."""
    if str(getattr(kind, "__module__", "scrapy.")).startswith(("scrapy.", "scrapy_redis.")):
        return f"remove {setting} from the project and the spider, and have 'scrapy_bloom.Addon': 500 in ADDONS"
    return (
        f"derive {setting} from {ours!r}; or if it only chooses keys, write %(x)s, the attribute x of the spider, into "
        f"SCHEDULER_QUEUE_KEY and SCHEDULER_DUPEFILTER_KEY, and remove {setting}"
    )


def is_unfiltered(settings: BaseSettings) -> bool:
    """Return whether DUPEFILTER_CLASS is Scrapy's class that drops no request."""
    return load_setting(settings, "DUPEFILTER_CLASS", _DUPEFILTER) is BaseDupeFilter


def require_dupefilter(path: Any) -> type[BloomRFPDupeFilter]:
    """Return the class at a path, or the default; refuse one that cannot be used."""
    kind = load_component("DUPEFILTER_CLASS", path or _DUPEFILTER, _DUPEFILTER)
    if not (isinstance(kind, type) and issubclass(kind, BloomRFPDupeFilter)):
        raise ConfigError(
            f"DUPEFILTER_CLASS = {path!r}: cannot check requests in batches, as BloomScheduler does; set "
            f"{_DUPEFILTER!r} or a subclass, 'scrapy.dupefilters.BaseDupeFilter' to drop no request, or scrapy-redis's "
            "SCHEDULER"
        )
    require_methods("DUPEFILTER_CLASS", path, kind, BloomRFPDupeFilter, OF_DUPEFILTERS)
    return kind


def require_queue(path: Any) -> type[Any]:
    """Return the class at a path, or the default; refuse one that cannot be used."""
    default = defaults.SCHEDULER_QUEUE_CLASS
    kind: Any = load_component("SCHEDULER_QUEUE_CLASS", path or default, default)
    parent = next((each for each in _QUEUES if is_a(kind, each)), None)
    if parent is None:
        stock = "SCHEDULER = 'scrapy_redis.scheduler.Scheduler'"
        keeper = stock if is_a(kind, Base) else "the SCHEDULER that it was written for"
        raise ConfigError(
            f"SCHEDULER_QUEUE_CLASS = {path!r}: BloomScheduler leases requests from a sorted set, by their scores; set "
            f"{default!r}, or FifoQueue or LifoQueue of the same module for the order of their arrival, or keep this "
            f"class with {keeper}"
        )
    require_methods("SCHEDULER_QUEUE_CLASS", path, kind, parent, _OF_QUEUES)
    return cast("type[Any]", kind)


def require_methods(setting: str, path: Any, part: Any, parent: type, methods: Mapping[str, str]) -> None:
    """Refuse a class, or an instance, that overrides a method which is never called; `methods` has what to do."""
    for name, instead in methods.items():
        if getattr_static(part, name) is not getattr_static(parent, name):
            raise ConfigError(
                f"{setting} = {path!r}: overrides {name}, which BloomScheduler never calls, since one script checks, "
                f"queues and leases many requests; {instead}, or use scrapy-redis's SCHEDULER"
            )


def require_key(setting: str, part: Any, key: str, name: str = "key") -> None:
    """Refuse a class whose attribute chooses another key than the setting."""
    if (own := getattr(part, name)) != key:
        raise ConfigError(
            f"{setting} = {key!r}: {type(part).__qualname__} has the {name} {own!r} instead, which BloomScheduler "
            f"does not use; set {setting} to it, {_ATTRIBUTES}, or use scrapy-redis's SCHEDULER"
        )


def require_one_server(*parts: Any) -> None:
    """Refuse parts with clients of their own for other servers, since one script uses the data of all parts."""
    first, *others = map(place_of, parts)
    for part, place in zip(parts[1:], others, strict=True):
        if place != first:
            raise ConfigError(
                f"REDIS_URL: {type(part).__qualname__}.server is at {place}, {type(parts[0]).__qualname__}.server at "
                f"{first}, but BloomScheduler needs one server for queue and filter; set REDIS_URL for all of them, or "
                "use scrapy-redis's SCHEDULER"
            )


def place_of(part: Any) -> dict[str, Any]:
    """Return the options of a part's client that name its server."""
    options = require_usable(part.server).get_connection_kwargs()
    return {name: options.get(name, default) for name, default in _PLACE.items()}
