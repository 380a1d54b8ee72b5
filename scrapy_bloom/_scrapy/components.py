"""Read settings of Scrapy and scrapy-redis; an error names the setting that is invalid or cannot work."""

import importlib
from typing import Any

from scrapy import Request
from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object
from scrapy.utils.request import request_from_dict
from scrapy_redis import defaults
from scrapy_redis.queue import PriorityQueue

from scrapy_bloom._format import as_bytes
from scrapy_bloom.errors import ConfigError

# scrapy-redis's default, and ours.
PICKLE, SERIALIZER = "scrapy_redis.picklecompat", "scrapy_bloom.serializer"


def load_component(label: str, path: Any, example: str) -> Any:
    """Return the class at a path; a class is returned unchanged.

    Args:
        label: the setting's name for errors.
        path: the setting's value.
        example: a valid path.

    Raises:
        ConfigError: the class cannot be imported.
    """
    try:
        return load_object(path)
    except Exception as error:  # any error of the user's module
        raise ConfigError(
            f"{label} = {path!r}: cannot be imported ({type(error).__name__}: {error}); set the full path of a class, "
            f"as in {example!r}"
        ) from error


def load_setting(settings: BaseSettings, name: str, default: str) -> Any:
    """Return the class that a setting names.

    Raises:
        ConfigError: the class cannot be imported.
    """
    return load_component(name, settings.get(name) or default, default)


def read_flag(settings: BaseSettings, name: str) -> bool:
    """Return a boolean setting, read as Scrapy does.

    Args:
        settings: the crawl's settings.
        name: the setting, False by default.

    Raises:
        ConfigError: the value is not a boolean.
    """
    try:
        return settings.getbool(name)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} = {settings.get(name)!r}: must be True or False; set either") from None


def read_seconds(settings: BaseSettings, name: str) -> int:
    """Return a setting in whole seconds, read as Scrapy does.

    Args:
        settings: the crawl's settings.
        name: the setting, 0 by default.

    Raises:
        ConfigError: the value is not a whole number of at least 0.
    """
    try:
        seconds = settings.getint(name)
    except (TypeError, ValueError):
        seconds = -1
    if seconds < 0:
        raise ConfigError(f"{name} = {settings.get(name)!r}: must be a whole number of at least 0; set seconds")
    return seconds


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


def require_scheduler_settings(settings: BaseSettings, dupefilter: type[Any]) -> None:
    """Check the settings that the scheduler depends on; `dupefilter` is the base of DUPEFILTER_CLASS.

    Raises:
        ConfigError: a setting has an invalid value, or names a class that the scheduler cannot use.
    """
    _require_dupefilter(settings, dupefilter)
    _require_queue(settings)
    for name in ("SCHEDULER_PERSIST", "SCHEDULER_FLUSH_ON_START", "DUPEFILTER_DEBUG"):
        read_flag(settings, name)
    read_seconds(settings, "SCHEDULER_IDLE_BEFORE_CLOSE")
    require_serializer(settings)


def _require_dupefilter(settings: BaseSettings, base: Any) -> None:
    path = settings.get("DUPEFILTER_CLASS")
    kind = load_setting(settings, "DUPEFILTER_CLASS", "scrapy_bloom.BloomRFPDupeFilter")
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise ConfigError(
            f"DUPEFILTER_CLASS = {path!r}: cannot check requests in batches, as BloomScheduler does; set "
            "'scrapy_bloom.BloomRFPDupeFilter' or a subclass, or scrapy-redis's SCHEDULER"
        )
    if getattr(kind, "request_seen", None) is not base.request_seen:
        raise ConfigError(
            f"DUPEFILTER_CLASS = {path!r}: overrides request_seen, which BloomScheduler never calls, since it checks "
            "requests in batches; override request_fingerprint instead, which it calls"
        )


def require_request_seen(kind: type[Any], base: type[Any]) -> None:
    """Refuse a dupefilter whose own `request_seen` does not use the filter, such as one for scrapy-redis's SET.

    Raises:
        ConfigError: neither the parent's `request_seen` nor `filter` is named in it.
    """
    own: Any = kind.request_seen
    is_ours = own is base.request_seen or not issubclass(kind, base)
    if not (is_ours or {"request_seen", "filter"}.intersection(own.__code__.co_names)):
        raise ConfigError(
            f"DUPEFILTER_CLASS = '{kind.__module__}.{kind.__qualname__}': its own request_seen calls neither the "
            "parent's nor self.filter, but the key holds no SET for other commands; override request_fingerprint "
            "instead, whose hash the filter stores"
        )


def _require_queue(settings: BaseSettings) -> None:
    default = defaults.SCHEDULER_QUEUE_CLASS
    path = settings.get("SCHEDULER_QUEUE_CLASS") or default
    kind = load_setting(settings, "SCHEDULER_QUEUE_CLASS", default)
    if not issubclass(kind, PriorityQueue):
        raise ConfigError(
            f"SCHEDULER_QUEUE_CLASS = {path!r}: BloomScheduler leases requests from a sorted set, and a list has no "
            "command with the same guarantee; set 'scrapy_redis.queue.PriorityQueue', or scrapy-redis's SCHEDULER"
        )
    for name in ("push", "pop", "clear"):
        if getattr(kind, name) is not getattr(PriorityQueue, name):
            raise ConfigError(
                f"SCHEDULER_QUEUE_CLASS = {path!r}: overrides {name}, which BloomScheduler never calls, since one "
                "script queues and leases many requests. Set the priority of requests in a spider middleware instead, "
                "or SCHEDULER_SERIALIZER, or scrapy-redis's SCHEDULER"
            )
