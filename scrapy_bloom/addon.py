"""The add-on: this package in a crawl by one line of its settings, and told of in the first lines of its log."""

import logging
from typing import Any, Self

from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom._filter_key import FilterKey
from scrapy_bloom._scrapy.components import load_setting, require_serializer
from scrapy_bloom._scrapy.exit_report import reports_at_exit, running_command
from scrapy_bloom.dupefilter import BloomRFPDupeFilter
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.settings import BloomSettings

logger = logging.getLogger(__name__)

# Commands whose requests have callbacks of the command's own, which no queue in Redis can hold.
_WITHOUT_CRAWL = ("check", "fetch", "parse", "shell", "view")
_OURS = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomRFPDupeFilter", "SCHEDULER": "scrapy_bloom.BloomScheduler"}


class Addon:
    """The filter and the scheduler of this package, set where you have not set others.

    A setting that is not allowed is refused before the engine is made. What was set, and what was found and left as it
    is, stands in the log. For `scrapy shell`, `fetch`, `view`, `parse` and `check` nothing is set: they are no crawls.

    Args:
        crawler: the crawl.

    Raises:
        ConfigError: a setting is not allowed, or does not go with another.

    Example:
        In a project's `settings.py`:

        >>> ADDONS = {"scrapy_bloom.Addon": 500}
        >>> REDIS_URL = "redis://localhost:6379"
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build it as Scrapy does.

        Args:
            crawler: the crawl.

        Returns:
            An add-on that has set nothing yet.
        """
        return cls(crawler)

    @reports_at_exit()
    def update_settings(self, settings: BaseSettings) -> None:
        """Set DUPEFILTER_CLASS and SCHEDULER where nobody has, and check what is set then.

        Args:
            settings: those of the crawl. They have the spider's own, but no add-on's that comes later.

        Raises:
            ConfigError: a setting is not allowed, or does not go with another.
        """
        command = running_command()
        if command in _WITHOUT_CRAWL:
            logger.info("scrapy-bloom sets nothing for `scrapy %s`, which is no crawl", command)
            return
        has_set = [_set(settings, "DUPEFILTER_CLASS")]
        dupefilter = load_setting(settings, "DUPEFILTER_CLASS", _OURS["DUPEFILTER_CLASS"])
        _require_dupefilter(settings["DUPEFILTER_CLASS"], dupefilter)
        filters = _is_a(dupefilter, BloomRFPDupeFilter)
        # Our scheduler works with our filter alone.
        has_set.append(filters and _set(settings, "SCHEDULER"))
        scheduler = load_setting(settings, "SCHEDULER", _OURS["SCHEDULER"])
        _tell(settings, dict(zip(_OURS, has_set, strict=True)), scheduler, filters=filters)
        # A class may leave its name to its spiders.
        spider = getattr(self._crawler.spider or self._crawler.spidercls, "name", "spider")
        _check(settings, scheduler, spider, filters=filters)


def _tell(settings: BaseSettings, has_set: dict[str, bool], scheduler: Any, *, filters: bool) -> None:
    """Say what was set and what was found, and what a user may want to set besides."""
    if not filters:
        logger.warning(
            "scrapy-bloom filters nothing in this crawl: DUPEFILTER_CLASS = %r was found, and is left as it is. "
            "Remove it, or set 'scrapy_bloom.BloomRFPDupeFilter' or a subclass",
            settings["DUPEFILTER_CLASS"],
        )
        return
    parts = [f"{name} = {settings[name]!r} was {'set' if has_set[name] else 'found'}" for name in _OURS]
    logger.info("scrapy-bloom filters this crawl: %s%s", ", ".join(parts), _meaning_of(scheduler))
    if _is_a(scheduler, Scheduler) and not settings.get("SCHEDULER_SERIALIZER"):
        logger.info(
            "Requests are stored as pickles: whoever can write to this Redis can run code in the workers. Set "
            "SCHEDULER_SERIALIZER = 'scrapy_bloom.serializers.json' before a crawl begins to store them as JSON"
        )


def _check(settings: BaseSettings, scheduler: Any, spider: str, *, filters: bool) -> None:
    """Refuse now what would be refused when the engine starts."""
    if filters:
        BloomSettings.from_settings(settings)
    # The scheduler is met as what it can do: a user may have one of their own.
    if hasattr(scheduler, "check_settings"):
        scheduler.check_settings(settings)
    if filters and _is_a(scheduler, Scheduler):
        require_serializer(settings)
        FilterKey.for_workers(settings, spider)


def _require_dupefilter(name: Any, kind: Any) -> None:
    """Refuse a class of which Scrapy can make no dupefilter, such as `scrapy_bloom.BloomFilter`."""
    if not hasattr(kind, "request_seen"):
        raise ConfigError(
            f"DUPEFILTER_CLASS = {name!r}: must be a dupefilter, and has no request_seen; set "
            f"{_OURS['DUPEFILTER_CLASS']!r} or a subclass"
        )


def _set(settings: BaseSettings, name: str) -> bool:
    """Set a setting to our class, unless somebody has chosen another; return whether it was set."""
    if settings.getpriority(name) != SETTINGS_PRIORITIES["default"]:
        return False
    settings.set(name, _OURS[name], "addon")
    return True


def _is_a(kind: Any, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)


def _meaning_of(scheduler: Any) -> str:
    """Return what a scheduler means that is not ours."""
    if hasattr(scheduler, "check_settings"):
        return ""
    if _is_a(scheduler, Scheduler):
        return ". The workers share queue and filter; what a worker held that is killed is lost"
    return ". With this scheduler nothing but the filter can be shared: each process has a queue of its own"
