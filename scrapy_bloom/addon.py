"""The Scrapy add-on: one line in ADDONS sets the dupefilter, the scheduler and the item pipeline."""

from typing import Any, Self

from scrapy import signals
from scrapy.core.scheduler import Scheduler as ScrapyScheduler
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy_redis import pipelines
from scrapy_redis.scheduler import Scheduler

from scrapy_bloom.codec import require_serializer
from scrapy_bloom.command import reports_at_exit, running_command
from scrapy_bloom.components import way_to
from scrapy_bloom.dupefilter import BloomRFPDupeFilter
from scrapy_bloom.engine import scheduler_of
from scrapy_bloom.errors import ConfigError
from scrapy_bloom.filter.parameters import FilterParameters
from scrapy_bloom.scheduler import BloomScheduler
from scrapy_bloom.settings import SERIALIZER, BloomSettings, is_a, load_setting
from scrapy_bloom.text import get_logger
from scrapy_bloom.transport.connect import RedisSettings

logger = get_logger(__name__)

# The requests of these commands have callbacks that no queue in Redis can store; `bench` measures Scrapy alone.
_COMMANDS_WITHOUT_CRAWL = ("bench", "check", "fetch", "parse", "shell", "view")
_STOCK_PIPELINE, _PIPELINE = "scrapy_redis.pipelines.RedisPipeline", "scrapy_bloom.RedisPipeline"
_OURS = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomRFPDupeFilter", "SCHEDULER": "scrapy_bloom.BloomScheduler"}

_OTHER_DUPEFILTER = (
    "scrapy-bloom filters nothing in this crawl: DUPEFILTER_CLASS = %r was found and left alone, and so was "
    "SCHEDULER = %r%s. To use the filter, %s"
)
_OTHER_SCHEDULER = (
    "scrapy-bloom filters nothing in this crawl: SCHEDULER = %r does not build DUPEFILTER_CLASS. Set %r, or build it "
    "by load_object(settings['DUPEFILTER_CLASS']).from_spider(spider)"
)
_PICKLES = (
    "Requests are stored as pickles: anyone who can write to this Redis can run code in the workers. Set "
    "SCHEDULER_SERIALIZER = %r before a crawl begins to store them as MessagePack, which runs no code"
)

# The consequences of a scheduler and its subclasses, for the log.
_CONSEQUENCES: dict[type, str] = {
    BloomScheduler: "",
    Scheduler: ". The workers share the queue; a killed worker loses the requests that it held",
    ScrapyScheduler: ". With this scheduler each process has a queue of its own",
}


class Addon:
    """Scrapy add-on that sets this package's dupefilter and scheduler, unless the project sets others.

    This package's RedisPipeline takes the place of scrapy-redis's in ITEM_PIPELINES, whose subclasses stay. Invalid
    settings are refused before the engine starts. The log names the classes that the add-on has set or found. Nothing
    is set for `scrapy shell`, `fetch`, `view`, `parse`, `check` and `bench`.

    Args:
        crawler: the crawl.

    Raises:
        ConfigError: a setting is not allowed, or conflicts with another.

    Example:
        In a project's `settings.py`:

        >>> ADDONS = {"scrapy_bloom.Addon": 500}
        >>> REDIS_URL = "redis://localhost:6379"
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Build the add-on, as Scrapy does.

        Args:
            crawler: the crawl.

        Returns:
            The add-on, which has set nothing yet.
        """
        return cls(crawler)

    @reports_at_exit()
    def update_settings(self, settings: BaseSettings) -> None:
        """Set DUPEFILTER_CLASS and SCHEDULER if they have their defaults, and ITEM_PIPELINES; then check the settings.

        Args:
            settings: the crawl's settings, including the spider's, but not those of later add-ons.

        Raises:
            ConfigError: a setting is not allowed, or conflicts with another.
        """
        command = running_command()
        if command in _COMMANDS_WITHOUT_CRAWL:
            logger.info("scrapy-bloom sets nothing for `scrapy %s`, which needs no Redis", command)
            return
        _replace_pipeline(settings)
        found = [_set_unless_chosen(settings, "DUPEFILTER_CLASS")]
        name = settings["DUPEFILTER_CLASS"]
        dupefilter = load_setting(settings, "DUPEFILTER_CLASS", _OURS["DUPEFILTER_CLASS"])
        if not hasattr(dupefilter, "request_seen"):  # such as `scrapy_bloom.BloomFilter`
            fault = f"DUPEFILTER_CLASS = {name!r}: must be a dupefilter, but has no request_seen"
            raise ConfigError(f"{fault}; set {_OURS['DUPEFILTER_CLASS']!r} or a subclass")
        is_ours, drops_none = is_a(dupefilter, BloomRFPDupeFilter), dupefilter is BaseDupeFilter
        if is_ours or drops_none:
            found.append(_set_unless_chosen(settings, "SCHEDULER"))
        scheduler = load_setting(settings, "SCHEDULER", _OURS["SCHEDULER"])
        bases = getattr(scheduler, "__mro__", ())  # to issubclass every scheduler is Scrapy's
        consequence = next((text for base, text in _CONSEQUENCES.items() if base in bases), "")
        if not is_ours and not drops_none:
            way = way_to(_OURS["DUPEFILTER_CLASS"], "DUPEFILTER_CLASS", dupefilter)
            logger.warning(_OTHER_DUPEFILTER, name, settings["SCHEDULER"], consequence, way)
            return
        self._text = f"scrapy-bloom {'filters' if is_ours else 'drops no request of'} this crawl: {', '.join(found)}"
        self._text += consequence
        if drops_none or scheduler in _CONSEQUENCES or BloomScheduler in bases:
            logger.info("%s", self._text)
        else:  # a scheduler of the project may build another dupefilter
            self._crawler.signals.connect(self._report_dupefilter, signals.spider_opened)
        # The errors of an engine start, early.
        FilterParameters.of(BloomSettings.from_settings(settings))
        if is_a(scheduler, Scheduler):
            _check(settings, scheduler)

    def _report_dupefilter(self) -> None:
        """Report whether a scheduler of the project has built DUPEFILTER_CLASS."""
        if any(isinstance(each, BloomRFPDupeFilter) for each in vars(scheduler_of(self._crawler)).values()):
            logger.info("%s", self._text)
        else:
            logger.warning(_OTHER_SCHEDULER, self._crawler.settings["SCHEDULER"], _OURS["SCHEDULER"])


def _check(settings: BaseSettings, scheduler: Any) -> None:
    """Advise on the serializer, and refuse settings that scrapy-redis's scheduler or its subclass cannot use."""
    if not settings.get("SCHEDULER_SERIALIZER"):
        logger.info(_PICKLES, SERIALIZER)
    if is_a(scheduler, BloomScheduler):
        scheduler.check_settings(settings)
    elif RedisSettings(settings).is_selected_by_url:
        fault = "scrapy-redis cannot connect to the cluster or the Sentinels in REDIS_URL"
        raise ConfigError(f"SCHEDULER = {settings['SCHEDULER']!r}: {fault}; set {_OURS['SCHEDULER']!r}")
    else:
        require_serializer(settings)


def _set_unless_chosen(settings: BaseSettings, name: str) -> str:
    """Set a setting to our class if it has its default; return the outcome for the log."""
    is_chosen = settings.getpriority(name) != SETTINGS_PRIORITIES["default"]
    if not is_chosen:
        settings.set(name, _OURS[name], "addon")
    return f"{name} = {settings[name]!r} was {'found' if is_chosen else 'set'}"


def _replace_pipeline(settings: BaseSettings) -> None:
    """Put our item pipeline in the place of scrapy-redis's, with the same order."""
    found = settings.getdict("ITEM_PIPELINES")
    ours = {_PIPELINE if kind in (_STOCK_PIPELINE, pipelines.RedisPipeline) else kind: found[kind] for kind in found}
    if ours != found:
        settings.set("ITEM_PIPELINES", ours, settings.getpriority("ITEM_PIPELINES") or 0)
        text = "ITEM_PIPELINES: %r was replaced by %r, whose items wait while Redis is unreachable"
        logger.info(text, _STOCK_PIPELINE, _PIPELINE)
