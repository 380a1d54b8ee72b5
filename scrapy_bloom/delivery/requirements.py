"""Refuse settings and queues that `BloomScheduler` cannot work with."""

from typing import Any

from scrapy.settings import BaseSettings
from scrapy_redis import defaults
from scrapy_redis.queue import PriorityQueue

from scrapy_bloom._scrapy.components import load_setting, read_flag, read_seconds, require_serializer
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.queue.operations import Registration, Reply


def require_settings(settings: BaseSettings, dupefilter: type[Any]) -> None:
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


def require_own_queue(queue: str, reply: Reply, spider: str) -> None:
    """Refuse a queue with a registered worker of a spider other than `spider`.

    Raises:
        ConfigError: a worker of another spider is registered.
    """
    for worker, value in (reply.workers or {}).items():
        other = Registration.parse(value).spider
        if other not in ("", spider):
            raise ConfigError(
                f"SCHEDULER_QUEUE_KEY: worker {worker} of the spider {other!r} is registered with the queue {queue!r}. "
                "Spiders cannot share a queue, since each would take the other's requests; set a key with %(spider)s "
                "in it. If that worker is dead, start its spider again, or delete the queue with `scrapy bloom clear "
                "--with-queue`"
            )


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
            "requests in batches; override request_fingerprint instead, or set scrapy-redis's SCHEDULER"
        )


def _require_queue(settings: BaseSettings) -> None:
    default = defaults.SCHEDULER_QUEUE_CLASS
    if not issubclass(load_setting(settings, "SCHEDULER_QUEUE_CLASS", default), PriorityQueue):
        path = settings.get("SCHEDULER_QUEUE_CLASS") or default
        raise ConfigError(
            f"SCHEDULER_QUEUE_CLASS = {path!r}: BloomScheduler leases requests from a sorted set, and a list has no "
            "command with the same guarantee; set 'scrapy_redis.queue.PriorityQueue', or scrapy-redis's SCHEDULER"
        )
