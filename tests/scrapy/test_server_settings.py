"""The settings of the connection, and the refusal of invalid ones, without a password."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
import redis
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.settings import Settings as ScrapySettings
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy_redis.queue import PriorityQueue

from scrapy_bloom import BloomError, BloomRFPDupeFilter, ConfigError
from scrapy_bloom.addon import Addon
from scrapy_bloom.components import require_queue
from scrapy_bloom.errors import RefusedError
from scrapy_bloom.settings import BloomSettings
from scrapy_bloom.transport.connect import FromUrl, connect
from tests.support.clusters import running_cluster
from tests.support.crawling import REDIS_SCHEDULER
from tests.support.in_process import ShopSpider, start
from tests.support.retries import told
from tests.support.servers import Server

PASSWORD = "pa55-w0rd-of-the-test"  # noqa: S105  # of no server
Settings = Mapping[str, object]


class OwnQueue(PriorityQueue):  # type: ignore[misc]  # scrapy-redis has no types
    """A queue with an order of its own."""

    def push(self, request: Request) -> None:
        super().push(request.replace(priority=7))


class Raising:
    """A user's client class whose error quotes the whole URL."""

    @staticmethod
    def from_url(url: str, **_: object) -> None:
        raise ValueError(url)


def factory(**options: Any) -> redis.Redis:
    """A function that makes a client."""
    return redis.Redis(**options)


def at(url: str = "", **params: object) -> Settings:
    """The settings of a client; `//` in the URL has the password behind it."""
    return {"REDIS_URL": url.replace("//", f"//:{PASSWORD}@", 1), "REDIS_PARAMS": json.dumps(params)}


def by_sentinel(url: str = "redis://a:1", **params: object) -> Settings:
    return at(url, redis_cls="scrapy_bloom.FromSentinel", **params)


NO_REDIS = "must be redis.Redis, "
OURS = "in scrapy_bloom.transport.connect.FromUrl; correct it, or"
# The beginning of the error, and the settings.
MISTAKES: list[tuple[str, Settings]] = [
    # The URL.
    ("REDIS_URL = 'sentinel://…': must begin with one of", at("sentinel://a:1/crawl")),
    ("REDIS_URL: must begin with one of redis://, rediss://, unix", {"REDIS_URL": f":{PASSWORD}@127.0.0.1:6379/0"}),
    ("REDIS_URL names no master: end it with", at("redis+sentinel://a:1")),
    ("REDIS_URL names no master: end it with", at("redis+sentinel://a:1/3")),
    ("REDIS_URL names no master: end it with", at("redis+sentinel://a:1/crawl/x")),
    ("REDIS_URL cannot be read", at(f"redis+sentinel://a:{PASSWORD}/crawl")),
    ("REDIS_URL cannot be read", at("redis+sentinel://a,,/crawl")),
    ("REDIS_URL cannot be read", {"REDIS_URL": f"redis+cluster://:a/{PASSWORD}@a:1"}),
    ("REDIS_URL cannot be read", {"REDIS_PARAMS": {"url": f"redis://shop:{PASSWORD}@localhost:none"}}),
    # If its first part could be a host or a port, a client's own error would quote a password with such characters.
    *(
        ("REDIS_URL", {"REDIS_URL": f"redis://{broken}@127.0.0.1:6379", "BLOOMFILTER_RETRY_TIMEOUT": 0})
        for broken in (f":{PASSWORD}#3t", f":{PASSWORD}/3t", f"{PASSWORD}?3t", f"{PASSWORD}/3t", f":5331#{PASSWORD}")
    ),
    ("REDIS_URL names a database, but a cluster", at("redis+cluster://a:1/2")),
    ("REDIS_URL names a database that is no number", at("redis://a:1/zero")),
    (f"REDIS_URL with ?sentinel_passwrd=…: TypeError {OURS}", at(f"rediss+sentinel://a/c?sentinel_passwrd={PASSWORD}")),
    ("REDIS_URL with ?sentinel_socket_timeout=…: ValueError in", at("redis+sentinel://a/c?sentinel_socket_timeout=x")),
    (f"REDIS_URL with ?foo=…: TypeError {OURS}", at("redis+cluster://127.0.0.1:1?foo=5")),
    ("REDIS_URL with ?foo=…: TypeError in redis.", at("redis://a:1/0?foo=bar")),
    # It may be the end of a password.
    ("REDIS_URL with ?…=…: TypeError in redis.", at("redis://a:1/0?foo=a@b")),
    ("REDIS_URL with ?socket_connect_timeout=…: ValueError in redis.", at("redis://a:1?socket_connect_timeout=0")),
    # REDIS_PARAMS.
    (f"REDIS_PARAMS['passwrd']: TypeError {OURS}", at("redis+sentinel://a/crawl", passwrd=PASSWORD)),
    ("REDIS_PARAMS['passwd']: TypeError in redis.", at("redis://a:1", passwd=PASSWORD)),
    ("REDIS_PARAMS['socket_timeout']: ValueError in redis.client.Redis; correct", at("redis://a:1", socket_timeout=0)),
    ("REDIS_PARAMS['socket_timeout']: ValueError in redis.client", at("redis://a:1", socket_timeout="5")),
    ("REDIS_PARAMS['ssl']: TypeError in redis.client.Redis; remove it, and begin", at("redis://a:1", ssl=True)),
    ("REDIS_URL or REDIS_PARAMS['retry']: ", at("redis://a:1", retry=3)),
    (
        "REDIS_URL or REDIS_PARAMS['max_connections'] or REDIS_PARAMS['db']: ValueError in redis.client.Redis; correct",
        at("redis://a:1", max_connections=PASSWORD, db=3),
    ),
    ("REDIS_PARAMS['ssl_password']: TypeError", {"REDIS_PARAMS": {"url": "redis://a", "ssl_password": PASSWORD}}),
    ("REDIS_PARAMS must be a dict", {"REDIS_PARAMS": PASSWORD}),
    ("REDIS_HOST or REDIS_PORT: ValueError in redis.client.Redis; ", {"REDIS_HOST": "localhost", "REDIS_PORT": "six"}),
    # The class of the client.
    (
        "REDIS_PARAMS['redis_cls'] = 'redis.RedisCluster': REDIS_URL selects the client itself, since it begins with r",
        at("redis+cluster://a:1", redis_cls="redis.RedisCluster"),
    ),
    *(
        (f"REDIS_PARAMS['redis_cls'] = {name!r}: {part}", at("redis://a:1", redis_cls=name))
        for name, part in (
            ("redis.asyncio.Redis", NO_REDIS),
            ("redis.client.Pipeline", NO_REDIS),
            (f"{__name__}.factory", NO_REDIS),
            (f"{__name__}.Raising", ""),
            ("redis.Rediss", "c"),
            ("nomodule.X", ""),
        )
    ),
    ("REDIS_URL is not set", {**by_sentinel(""), "REDIS_HOST": "127.0.0.1"}),
    ("REDIS_URL cannot be read", by_sentinel("redis://127.0.0.1,,")),
    ("REDIS_URL cannot be read", by_sentinel(f"redis://127.0.0.1:{PASSWORD}")),
    ("REDIS_PARAMS['servce_name']: TypeError in ", by_sentinel(servce_name=PASSWORD)),
]


@pytest.mark.parametrize(("begin", "settings"), MISTAKES)
def test_refused(begin: str, settings: Settings) -> None:
    """Each mistake is named with its setting and without the password, in all that is shown of the error."""
    with pytest.raises(ConfigError) as refusal:
        connect(ScrapySettings(settings))
    assert str(refusal.value).startswith(begin)
    assert PASSWORD not in told(refusal.value)


# Of a crawl over a server that there is.
OTHERS: list[tuple[str, Settings]] = [
    ("capacity (BLOOMFILTER_CAPACITY) = 0", {"BLOOMFILTER_CAPACITY": 0}),
    ("BLOOMFILTER_CAPACTIY = 1", {"BLOOMFILTER_CAPACTIY": 1}),
    *(
        (f"DUPEFILTER_CLASS = '{name}': ", {"DUPEFILTER_CLASS": name, "SCHEDULER": "scrapy_bloom.BloomScheduler"})
        for name in ("scrapy_redis.dupefilter.RFPDupeFilter", "scrapy.dupefilters.RFPDupeFilter")
    ),
    (
        "SCHEDULER_SERIALIZER = 'scrapy_bloom.serialisers.json': cannot store a request and read it again (ModuleNotF",
        {"SCHEDULER_SERIALIZER": "scrapy_bloom.serialisers.json"},
    ),
    ("SCHEDULER_SERIALIZER = 'json': cannot store a req", {"SCHEDULER_SERIALIZER": "json"}),
    *(
        (f"{name} = {value!r}: {part}", {name: value})
        for name, value, part in (
            ("DUPEFILTER_CLASS", "scrapy_bloom.BloomFilter", ""),
            ("DUPEFILTER_CLASS", "scrapy_bloom.BloomFiltre", ""),
            ("SCHEDULER", "scrapy_bloom.BloomSchedular", "cannot be"),
            ("SCHEDULER_QUEUE_CLASS", "scrapy_redis.Priority", "c"),
            ("SCHEDULER_FLUSH_ON_START", "no", "must be True or False"),
            ("SCHEDULER_PERSIST", "yes", "must be True or False"),
            ("DUPEFILTER_DEBUG", "yes", "must be True or False"),
            ("SCHEDULER_QUEUE_KEY", "%(spidr)s:x", ""),
            ("SCHEDULER_DUPEFILTER_KEY", "100%", ""),
            # What BloomScheduler cannot use.
            ("SCHEDULER_QUEUE_CLASS", f"{__name__}.OwnQueue", "overrides push"),
            *(
                (
                    "SCHEDULER_QUEUE_CLASS",
                    f"scrapy_redis.queue.{name}",
                    "BloomScheduler leases requests from a sorted set, by their scores; set "
                    "'scrapy_redis.queue.PriorityQueue', or FifoQueue or LifoQueue",
                )
                for name in ("Base", "picklecompat")
            ),
        )
    ),
]


@pytest.mark.parametrize(("begin", "settings"), OTHERS)
def test_refused_by_a_crawl(begin: str, settings: Settings, valkey: Server, key: str) -> None:
    """So is a mistake in a setting of scrapy-redis or Scrapy."""
    settings = {"REDIS_URL": valkey.url, "SCHEDULER_DUPEFILTER_KEY": key, **settings}
    with pytest.raises(BloomError) as refusal:
        open_scheduler({"ADDONS": {"scrapy_bloom.Addon": 500}, **settings})
    assert str(refusal.value).startswith(begin)


@pytest.mark.parametrize(
    ("name", "keeping"),
    [
        ("scrapy_redis.queue.Base", "keep this class with SCHEDULER = 'scrapy_redis.scheduler.Scheduler'"),
        (f"{__name__}.Raising", "keep this class with the SCHEDULER that it was written for"),
    ],
)
def test_keeping_a_queue(name: str, keeping: str) -> None:
    """A foreign queue is advised to stay with a scheduler that can build it."""
    with pytest.raises(ConfigError, match=re.escape(keeping)):
        require_queue(name)


def open_scheduler(settings: dict[str, object]) -> None:
    crawler = start(settings)
    build_from_crawler(load_object(crawler.settings["SCHEDULER"]), crawler).open(crawler.spider)


def test_misspelt_setting() -> None:
    """A misspelt setting with a URL is refused without its value."""
    with pytest.raises(ConfigError, match=r"^BLOOMFILTER_SERVER = …: there is no such setting") as refusal:
        BloomSettings.from_settings(ScrapySettings({"BLOOMFILTER_SERVER": f"redis://:{PASSWORD}@localhost"}))
    assert PASSWORD not in str(refusal.value)


def test_timeouts() -> None:
    """They are short by default; those in REDIS_PARAMS, and in the URL, are kept."""
    for url, params, expected in (
        ("redis://localhost", {}, (5, 5)),
        ("redis://localhost", {"socket_timeout": 9}, (9, 5)),
        ("redis://localhost?socket_connect_timeout=7", {"socket_timeout": None}, (None, 7)),
        ("redis://localhost?socket_timeout=7", {"socket_timeout": 9, "socket_connect_timeout": 8}, (7, 8)),
    ):
        options = connect(ScrapySettings({"REDIS_URL": url, "REDIS_PARAMS": params})).get_connection_kwargs()
        assert (options["socket_timeout"], options["socket_connect_timeout"]) == expected


def test_sentinels_have_options_of_their_own() -> None:
    """The URL's options are the master's, those with `sentinel_` the Sentinels', and TLS is for both."""
    url = "rediss+sentinel://shop:p%40ss@one,[::1]:7001,two:7000/crawl/5?ssl_ca_certs=/ca&sentinel_username=watch"
    client = FromUrl.from_url(f"{url}&sentinel_password=x%2Fy", ssl_certfile="/mine", sentinel_kwargs={"db": 1})
    pool = client.connection_pool
    names = ("username", "password", "db", "ssl_ca_certs", "ssl_certfile")
    assert [pool.connection_kwargs[name] for name in names] == ["shop", "p@ss", 5, "/ca", "/mine"]
    assert pool.service_name == "crawl"
    asked = [each.get_connection_kwargs() for each in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"]) for each in asked] == [("one", 26379), ("::1", 7001), ("two", 7000)]
    for each in asked:
        assert [each[name] for name in names] == ["watch", "x/y", 1, "/ca", "/mine"]
    plain = FromUrl.from_url(f"{url}&sentinel_ssl=false").connection_pool.sentinel_manager.sentinels[0]
    assert "ssl_ca_certs" not in plain.get_connection_kwargs()


def test_node_of_a_cluster(key: str) -> None:
    """A plain client of a cluster's node is refused, with advice for the URL."""
    settings = {"SCHEDULER_DUPEFILTER_KEY": key, "BLOOMFILTER_CAPACITY": 1000}
    advice = r"the server is a node of a cluster: begin REDIS_URL with redis\+cluster://"
    with running_cluster(2) as nodes:
        of_nodes = [ScrapySettings({"REDIS_URL": node.url, **settings}) for node in nodes]
        # One of the nodes has the slot of the filter.
        with pytest.raises(RefusedError, match=advice):
            list(map(BloomRFPDupeFilter.from_settings, of_nodes))


def test_scheduler_of_scrapy_redis() -> None:
    """The add-on refuses scrapy-redis's Scheduler over a cluster or Sentinels, which it cannot reach."""
    settings = ScrapySettings({"REDIS_URL": "redis+sentinel://localhost/crawl", "SCHEDULER": REDIS_SCHEDULER})
    crawler = Crawler(ShopSpider, settings)
    with pytest.raises(ConfigError, match="scrapy-redis cannot connect to the cluster or the Sentinels in REDIS_URL"):
        Addon.from_crawler(crawler).update_settings(settings)
