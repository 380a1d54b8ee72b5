"""Classes of projects with a copy of scrapy-redis, and schedulers with dupefilters of their own."""

from importlib.util import find_spec, module_from_spec
from typing import Any

from scrapy_redis import scheduler
from scrapy_redis.dupefilter import RFPDupeFilter


def _copy_of(module: str) -> Any:
    spec = find_spec(f"scrapy_redis.{module}")
    assert spec is not None
    assert spec.loader is not None
    copy = module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


CopiedScheduler: Any = _copy_of("scheduler").Scheduler
CopiedPipeline: Any = _copy_of("pipelines").RedisPipeline
CopiedSpider: Any = _copy_of("spiders").RedisSpider
CopiedStats: Any = _copy_of("stats").RedisStatsCollector


class _WithSet:
    """Builds its dupefilter itself, as old versions of scrapy-redis did."""

    server: Any

    def open(self, spider: Any) -> None:
        """Build scrapy-redis's dupefilter, whatever DUPEFILTER_CLASS says."""
        self.df = RFPDupeFilter(self.server, spider.settings["SCHEDULER_DUPEFILTER_KEY"])
        super().open(spider)  # type: ignore[misc]  # the scheduler's


class OldScheduler(_WithSet, CopiedScheduler):  # type: ignore[misc]  # scrapy-redis has no types
    """A copy that does so."""


class OwnScheduler(_WithSet, scheduler.Scheduler):  # type: ignore[misc]  # as above
    """A subclass of the installed class that does so."""
