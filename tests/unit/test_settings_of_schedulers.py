"""Each setting of Scrapy's scheduler and of scrapy-redis is honoured, refused or warned of under BloomScheduler."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
import scrapy_redis
from scrapy.settings import Settings, default_settings

from scrapy_bloom.components import WITHOUT_EFFECT, without_effect
from scrapy_bloom.settings import _OF_FORKS

# What the scheduler, the dupefilter, the client, the spiders, the item pipeline and the stats collector read.
HONOURED = {
    *("SCHEDULER", "SCHEDULER_PERSIST", "SCHEDULER_FLUSH_ON_START", "SCHEDULER_SERIALIZER"),
    *("SCHEDULER_QUEUE_KEY", "SCHEDULER_QUEUE_CLASS", "SCHEDULER_DUPEFILTER_KEY"),
    *("DUPEFILTER_CLASS", "DUPEFILTER_DEBUG", "STATS_KEY"),
    *(f"REDIS_{name}" for name in ("URL", "HOST", "PORT", "DB", "PARAMS", "ENCODING", "DECODE_RESPONSES")),
    *("REDIS_ITEMS_KEY", "REDIS_ITEMS_SERIALIZER"),
    *(f"REDIS_START_URLS_{name}" for name in ("KEY", "BATCH_SIZE", "AS_SET", "AS_ZSET")),
    *("MAX_IDLE_TIME_BEFORE_CLOSE", "CONCURRENT_REQUESTS"),
    "CONCURRENT_REQUESTS_PER_IP",  # of the downloader
}
SOURCES = [
    *(f"scrapy.{name}" for name in ("core.scheduler", "dupefilters", "pqueues", "squeues", "utils.job")),
    *(f"scrapy_redis.{module.name}" for module in iter_modules(scrapy_redis.__path__) if module.name != "defaults"),
]


def settings_read() -> Iterator[str]:
    """Yield the names of settings in the sources, and the defaults of Scrapy's scheduler."""
    for name in SOURCES:
        source = Path(str(import_module(name).__file__)).read_text()
        yield from re.findall(r"""["']((?:[A-Z]+_)+[A-Z]+|JOBDIR)["']""", source)
    yield from (name for name in dir(default_settings) if name.startswith(("SCHEDULER", "DUPEFILTER", "JOBDIR")))


def test_every_setting() -> None:
    """No setting that the installed versions read is ignored in silence, and none of the tables is in two."""
    read = {*settings_read()}
    assert {"JOBDIR", "SCHEDULER_DISK_QUEUE", "REDIS_DECODE_RESPONSES", "REDIS_START_URLS_AS_ZSET"} <= read
    assert read - HONOURED - WITHOUT_EFFECT.keys() - _OF_FORKS.keys() == set()
    assert not HONOURED & WITHOUT_EFFECT.keys()
    assert not _OF_FORKS.keys() & (HONOURED | WITHOUT_EFFECT.keys())


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_without_effect(name: str) -> None:
    """A setting without effect is told, with its value unless that is a login, but not with its default."""
    ((text, instead),) = without_effect(Settings({name: "given"}))
    assert text == (name if "login" in instead else f"{name} = 'given'")
    for default in (getattr(default_settings, name, None), ""):
        assert without_effect(Settings({name: default})) == []


@pytest.mark.parametrize("login", [{"REDIS_URL": "redis://:word@host"}, {"REDIS_PARAMS": {"password": "word"}}])
def test_login_beside_a_url(login: dict[str, object]) -> None:
    """Many projects make REDIS_URL of REDIS_PASSWORD: that is no mistake."""
    assert without_effect(Settings({"REDIS_PASSWORD": "word", **login})) == []
